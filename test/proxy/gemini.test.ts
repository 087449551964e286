import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  answerIn,
  EVENTS,
  generated,
  LIST,
  MODEL,
  mayCall,
  RESULT,
  runawayGemini,
  runGemini,
  TOOLS,
  WHOLE,
} from '../support/gemini.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { type Script, serve } from '../support/provider.ts'

type Asked = { readonly contents: readonly { readonly role: string; readonly parts: readonly object[] }[] }

const WAYS = [
  ['a whole response', WHOLE],
  ['a stream of events', EVENTS],
  ['a list in JSON', LIST],
] as const

const budget = (max_iterations: number) => ({ budget: { max_iterations, adaptive: false } })

describe.each(WAYS)('an agent over Gemini that reads %s', (_, path) => {
  it('is cautioned, then warned, at the end of its input', async () => {
    const { url, provider } = await startBoth(runawayGemini(), budget(10))
    await runGemini(url, path, 10)
    const told = provider.requests.map(
      ({ body }) => /\[BUDGET: Iteration \d+\/10\. You (\w+)/.exec(body.toString())?.[1],
    )
    expect(told).toEqual([...Array.from({ length: 6 }), 'have', 'have', 'MUST', 'MUST'])
    const contents = provider.requests.slice(-2).map(({ json }) => (json as unknown as Asked).contents)
    const result = { functionResponse: { name: 'search', response: { output: RESULT } } }
    expect(contents[0]?.at(-1)?.parts).toEqual([result, { text: expect.stringContaining('[BUDGET: Iteration 9/10.') }])
    // The warning was ignored.
    expect(contents[1]?.slice(-2)).toEqual([
      { role: 'user', parts: [result] },
      { role: 'user', parts: [{ text: expect.stringContaining('[BUDGET: Iteration 10/10.') }] },
    ])
  })

  it('is stopped with the model’s answer, which says so, and gets it again without another call', async () => {
    const { url, provider, events } = await startBoth(runawayGemini(), budget(3))
    const { last, contents } = await runGemini(url, path)
    expect(last).toMatchObject({ status: 200, text: 'This is what I found so far.', calls: [], reason: 'STOP' })
    expect(last?.governor).toMatchObject({
      terminal_state: 'tool_limit_reached',
      has_final_answer: true,
      budget_used: 3,
    })
    expect(last?.headers.get('x-governor-terminal-reason')).toBe('max_iterations')
    const asked = provider.requests.at(-1)?.json
    expect(asked).toMatchObject({ tools: TOOLS, toolConfig: { functionCallingConfig: { mode: 'NONE' } } })
    expect(provider.requests).toHaveLength(4)
    const again = await fetch(`${url}${path}`, {
      method: 'POST',
      headers: { 'x-goog-api-key': 'k' },
      body: JSON.stringify({ contents, tools: TOOLS, labels: { sent: 'again' } }),
    })
    expect(answerIn(await again.text())).toMatchObject({ text: last?.text, reason: 'STOP', governor: last?.governor })
    expect(again.headers.get('content-type')).toContain(path === EVENTS ? 'text/event-stream' : 'application/json')
    expect(provider.requests).toHaveLength(4)
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it('reaches a limit on tool calls with equal calls, which have no ids', async () => {
    const { url } = await startBoth(
      (request) => (mayCall(request) ? { calls: [{ name: 'search', arguments: {} }] } : { text: 'Enough.' }),
      { budget: { run: { max_tool_calls: 3 } }, loop_guard: { mode: 'observe' } },
    )
    const { last, seen } = await runGemini(url, path)
    expect(last?.governor).toMatchObject({ terminal_reason: 'max_tool_calls', budget_used: 3, has_final_answer: true })
    expect(seen).toHaveLength(4)
  })

  it('gets Governor’s text where the model calls tools in its last answer too', async () => {
    const { url } = await startBoth(
      (_, number) => ({ calls: [{ name: 'search', arguments: { n: number } }] }),
      budget(2),
    )
    const { last } = await runGemini(url, path)
    expect(last).toMatchObject({ text: '(Reached max iterations: 2)', calls: [], reason: 'STOP' })
    expect(last?.governor).toMatchObject({ has_final_answer: false })
  })

  it('continues with the next answer of the model when its call is blocked, and pays for both', async () => {
    const same: Script = ({ body }) =>
      body.includes('[LOOP GUARD] Blocked')
        ? { text: 'Then I stop.' }
        : { text: 'Again. ', calls: [{ name: 'search', arguments: { query: 'x', big: 1 } }] }
    const { url, provider, events } = await startBoth(same)
    const { last, seen } = await runGemini(url, path)
    expect(last?.text).toBe('Again. \n\nThen I stop.')
    expect(last).toMatchObject({ calls: [], reason: 'STOP', usage: { promptTokenCount: 200, totalTokenCount: 220 } })
    expect(provider.requests).toHaveLength(seen.length + 1)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'call_blocked' }))
    const { contents } = JSON.parse(String(provider.requests.at(-1)?.body)) as Asked
    expect(contents.slice(-2)).toMatchObject([
      { role: 'model', parts: expect.arrayContaining([expect.objectContaining({ thoughtSignature: 'c2lnbmVk' })]) },
      {
        role: 'user',
        parts: [{ functionResponse: { name: 'search', response: { error: expect.stringContaining('Blocked') } } }],
      },
    ])
  })

  it.each([
    ['System: Please continue.', ['', 'search']],
    ['System: Potential loop detected. Details: Repeated tool call: search.', ['Then I stop.']],
  ])('whose fifth equal call is dropped by its client, with the words %s, gets %s', async (words, expected) => {
    const { url } = await startBoth(({ body }) =>
      body.includes('[LOOP GUARD] Blocked')
        ? { text: 'Then I stop.' }
        : { calls: [{ name: 'search', arguments: { query: 'x' } }] },
    )
    const { contents, seen } = await runGemini(url, path, 5)
    expect(seen.map(({ calls }) => calls.length)).toEqual([1, 1, 1, 1, 1])
    const rest = [
      { role: 'model', parts: [{ text: '[The previous response was interrupted before it completed.]' }] },
      { role: 'user', parts: [{ text: words }] },
    ]
    const body = JSON.stringify({ contents: [...contents.slice(0, -2), ...rest], tools: TOOLS })
    // The request that is sent again gets the same.
    for (const _ of [1, 2]) {
      const response = await fetch(`${url}${path}`, { method: 'POST', headers: { 'x-goog-api-key': 'k' }, body })
      const { text, calls } = answerIn(await response.text())
      expect([text, ...calls.map(({ functionCall }) => (functionCall as { name: string }).name)]).toEqual(expected)
    }
  })

  it('gets a signature for the first call that is left of a response whose signed call was blocked', async () => {
    const search = { name: 'search', arguments: { query: 'x' } }
    const read = { name: 'read', arguments: { page: 9_007_199_254_740_991 } }
    const { url } = await startBoth((_, number) => ({ calls: number < 7 ? [search] : [search, read] }))
    const { last } = await runGemini(url, path, 7)
    expect(last?.calls).toEqual([
      {
        functionCall: { name: 'read', args: read.arguments },
        thoughtSignature: 'skip_thought_signature_validator',
      },
    ])
  })

  it('gets every byte as it came, in any pieces, while nothing is said', async () => {
    const pieces: Buffer[] = []
    const upstream = await serve((request, response) => {
      request.resume()
      response.writeHead(200, { 'content-type': path === EVENTS ? 'text/event-stream' : 'application/json' })
      for (const piece of pieces) response.write(piece)
      response.end()
    })
    onTestFinished(upstream.close)
    const { url } = await startGovernor(upstream.url)
    const { seen } = await startBoth(runawayGemini()).then((both) => runGemini(both.url, path, 1))
    const bytes = Buffer.from(seen[0]?.body ?? '')
    expect(bytes.length).toBeGreaterThan(100)
    const body = JSON.stringify({ contents: [{ role: 'user', parts: [{ text: 'Go.' }] }], tools: TOOLS })
    await fc.assert(
      fc.asyncProperty(fc.uniqueArray(fc.nat(bytes.length), { maxLength: 8 }), async (cuts) => {
        const places = [0, ...cuts.toSorted((a, b) => a - b), bytes.length]
        pieces.splice(0, pieces.length, ...places.slice(1).map((end, at) => bytes.subarray(places[at], end)))
        const response = await fetch(`${url}${path}`, { method: 'POST', body })
        expect(Buffer.from(await response.arrayBuffer())).toEqual(bytes)
      }),
      { numRuns: 20 },
    )
  })
})

describe('a run over Gemini', () => {
  it.each([
    ['a response', WHOLE, ['', '']],
    ['a list', LIST, ['[', ']']],
  ] as const)('is blocked and ended where a byte order mark begins %s', async (_, path, [open, close]) => {
    const script: Script = (request, number) => {
      const call = { calls: [{ name: 'search', arguments: { query: 'x' } }] }
      const answer = mayCall(request) ? call : { text: 'I could not find it.' }
      return { body: `\ufeff${open}${JSON.stringify(generated(answer, number))}${close}` }
    }
    const { url, events } = await startBoth(script, { loop_guard: { max_warnings_before_block: 0 } })
    const { last, seen } = await runGemini(url, path)
    expect(last).toMatchObject({ text: 'I could not find it.', governor: { terminal_reason: 'loop_guard' } })
    expect(seen).toHaveLength(3)
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it('counts a streamed answer once if the client sends each event as a content of its own', async () => {
    const { url, events, until } = await startBoth(() => ({ text: 'ok' }))
    const call = { functionCall: { name: 'search', args: {} } }
    const contents = [
      { role: 'user', parts: [{ text: 'Go.' }] },
      ...['Let ', 'me ', 'see.'].map((text) => ({ role: 'model', parts: [{ text }] })),
      { role: 'model', parts: [call] },
      { role: 'user', parts: [{ functionResponse: { name: 'search', response: { output: 'x' } } }] },
    ]
    await (await fetch(`${url}${EVENTS}`, { method: 'POST', body: JSON.stringify({ contents, tools: TOOLS }) })).text()
    await until(({ kind }) => kind === 'request_ended')
    expect(events).toContainEqual(expect.objectContaining({ kind: 'request_ended', iteration: 2, dialect: 'gemini' }))
  })

  it('is one session without any id, apart from another with the same prompt', async () => {
    const { url } = await startBoth(runawayGemini())
    const [one, other] = [await runGemini(url, EVENTS, 3), await runGemini(url, EVENTS, 3)]
    const sessions = ({ seen }: typeof one) =>
      new Set(seen.slice(1).map(({ headers }) => headers.get('x-governor-session')))
    expect(sessions(one).size).toBe(1)
    expect([...sessions(one)]).not.toEqual([...sessions(other)])
  })

  it.each(WAYS)('costs what the catalogue says of its model, by the usage that comes last, as %s', async (_, path) => {
    const usage = {
      promptTokenCount: 100_000,
      cachedContentTokenCount: 60_000,
      candidatesTokenCount: 1_000,
      thoughtsTokenCount: 2_000,
      toolUsePromptTokenCount: 10_000,
      totalTokenCount: 113_000,
    }
    const calls = [{ name: 'search', arguments: {} }]
    const { url, events, until } = await startBoth(() => ({ text: 'Let me see. ', calls, usage }))
    await runGemini(url, path, 2)
    await until((event) => event.kind === 'answered' && event.iteration === 2)
    const billed = events.flatMap((event) => (event.kind === 'answered' ? [event] : []))
    // US dollars per million tokens: 0.30 for input, 0.03 for cached input, 2.50 for output and thoughts.
    const cost = (50_000 * 0.3 + 60_000 * 0.03 + 3_000 * 2.5) / 1e6
    for (const { model, usage: used } of billed.slice(-1)) {
      expect(model).toBe('gemini-2.5-flash')
      expect(used).toMatchObject({ input: 110_000, cachedInput: 60_000, output: 3_000, reasoning: 2_000 })
      expect(used.cost).toBeCloseTo(cost, 10)
    }
    const total = billed.reduce((sum, { usage: { cost = 0 } }) => sum + cost, 0)
    expect(total).toBeCloseTo(2 * cost, 10)
  })

  it('ends at a limit in dollars by the catalogue’s price', async () => {
    const usage = { promptTokenCount: 1_000_000, candidatesTokenCount: 100_000, thoughtsTokenCount: 100_000 }
    const { url, provider } = await startBoth((request, number) => ({ ...runawayGemini()(request, number), usage }), {
      budget: { session: { max_cost_usd: 1.5 } },
    })
    // 0.80 dollars a request.
    const { last } = await runGemini(url, EVENTS)
    expect(last?.governor).toMatchObject({ terminal_reason: 'max_cost', has_final_answer: true })
    expect(provider.requests).toHaveLength(3)
  })

  it('gets the meaning of an overflow in its own API’s errors, also in those of a list', async () => {
    const error = {
      code: 400,
      message: 'The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).',
      status: 'INVALID_ARGUMENT',
    }
    for (const [path, body] of [
      [EVENTS, { error }],
      [LIST, [{ error }]],
    ] as const) {
      const { url } = await startBoth(() => ({ status: 400, body }))
      const response = await fetch(`${url}${path}`, {
        method: 'POST',
        body: JSON.stringify({ contents: [], tools: TOOLS }),
      })
      const [{ error: read }] = [await response.json()].flat() as [{ error: Record<string, unknown> }]
      expect(response.headers.get('x-governor-overflow')).toBe('shrink_context')
      expect(read).toMatchObject({ ...error, governor: { limit: 1_048_576, prompt_tokens: 1_100_000 } })
    }
  })

  it('is sent again once with a smaller output cap if that alone was too large', async () => {
    const message =
      'Unable to submit request because it has a maxOutputTokens value of 9000 but the supported range is from 1 (inclusive) to 8193 (exclusive). Update the value and try again.'
    const { url, provider } = await startBoth((_, number) =>
      number === 1
        ? { status: 400, body: { error: { code: 400, message, status: 'INVALID_ARGUMENT' } } }
        : { text: 'ok' },
    )
    const { last } = await runGemini(url, WHOLE, 1, { generationConfig: { maxOutputTokens: 9000, temperature: 0 } })
    expect(last?.headers.get('x-governor-recovered')).toBe('clamp_output_only')
    expect(provider.requests[1]?.json['generationConfig']).toEqual({ maxOutputTokens: 8192, temperature: 0 })
  })

  it('gets errors of Governor’s own in the form of its API, which repeats the status', async () => {
    const { url, provider } = await startBoth(runawayGemini())
    await provider.close()
    const response = await fetch(`${url}${WHOLE}`, { method: 'POST', body: '{"contents":[]}' })
    expect(response.status).toBe(502)
    expect(await response.json()).toEqual({ error: { code: 502, status: 'UNAVAILABLE', message: expect.any(String) } })
  })
})

describe('paths of Google’s API', () => {
  it.each([
    ['/v1beta/models', true],
    ['/v1beta/models/m:countTokens', true],
    ['/v1/models/m:countTokens', true],
    ['/v1/models/m:generateContent', true],
    ['/v1alpha/models/m:streamGenerateContent', true],
    ['/v1/projects/p/locations/l/publishers/google/models/m:generateContent', true],
    ['/v1beta1/projects/p/locations/l/publishers/google/models/m:streamGenerateContent', true],
    ['/v1/projects/p/locations/l/endpoints/123:streamGenerateContent', true],
    ['/v1beta/interactions', true],
    ['/upload/v1beta/files', true],
    ['/v1beta/openai/chat/completions', false],
    ['/v1/models', false],
  ])('%s goes to its own upstream: %s', async (path, isGoogles) => {
    const [own, other] = await Promise.all([startBoth(() => ({ text: 'own' })), startBoth(() => ({ text: 'other' }))])
    const upstreams = { gemini: { url: own.provider.url }, openai: { url: other.provider.url } }
    const { url } = await startGovernor(other.provider.url, { upstreams })
    await (await fetch(`${url}${path}`, { method: 'POST', body: '{"messages":[]}' })).text()
    expect(own.provider.requests).toHaveLength(isGoogles ? 1 : 0)
    expect(other.provider.requests).toHaveLength(isGoogles ? 0 : 1)
  })

  it.each([
    ['its colon is encoded', WHOLE.replace(':', '%3A')],
    ['letters and slashes are encoded', EVENTS.replace('/models/', '%2fmod%65ls%2F').replace(':', '%3a')],
    ['a tuned model stands', WHOLE.replace('/models/', '/tunedModels/')],
    ['an endpoint stands', EVENTS.replace('/models/', '/projects/p/locations/l/endpoints/')],
  ])('a run is ended where %s in the path, which arrives as it came', async (_, path) => {
    const { url, provider, events } = await startBoth(runawayGemini(), budget(3))
    const { last } = await runGemini(url, path)
    expect(last?.governor).toMatchObject({ terminal_reason: 'max_iterations', has_final_answer: true })
    const asked = events.filter((event) => event.kind === 'request_ended' && event.model !== undefined)
    expect(asked.map((event) => 'model' in event && event.model)).toEqual(Array(4).fill(MODEL))
    expect(new Set(provider.requests.map(({ target }) => target))).toEqual(new Set([path]))
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it('a request of an agent to Interactions is relayed as it is, and counted as not guarded', async () => {
    const { url, provider, until } = await startBoth(() => ({ body: { id: 'i1', status: 'completed', outputs: [] } }))
    const body = JSON.stringify({ model: 'm', input: 'Go.', tools: [], previous_interaction_id: 'i0' })
    const response = await fetch(`${url}/v1beta/interactions`, { method: 'POST', body })
    expect([response.status, provider.requests[0]?.body.toString()]).toEqual([200, body])
    await until((event) => event.kind === 'failed_open' && event.reason === 'path')
  })
})
