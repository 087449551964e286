import Anthropic from '@anthropic-ai/sdk'
import { AnthropicVertex } from '@anthropic-ai/vertex-sdk'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { ProxyEvent } from '../../src/telemetry/event.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { keepingThreads, runawayMessages } from '../support/messages.ts'
import { type Received, type Script, startProvider } from '../support/provider.ts'

const THINKING = { type: 'thinking', thinking: 'Let me see.', signature: 'c2lnbmVk' }

/** Looks three things up, two of them at once, then answers. */
const research: Script = (_, number) =>
  [
    { blocks: [THINKING], calls: [{ name: 'search', arguments: { query: 'größe 9007199254740993' } }] },
    { text: 'Two more. ', calls: [1, 2].map((n) => ({ name: 'search', arguments: { query: `part ${n}` } })) },
    { text: 'It is — after all — 42. 🎉' },
  ][number - 1] ?? { text: 'Nothing more.' }

interface Form {
  readonly api?: 'Vertex AI' | 'Anthropic'
  readonly stream: boolean
  readonly thread: boolean
}

interface Client {
  readonly beta: { readonly messages: Pick<Anthropic['beta']['messages'], 'toolRunner'> }
}

function client(baseURL: string, headers: Record<string, string> = {}): Anthropic {
  return new Anthropic({ apiKey: 'sk-test', baseURL, maxRetries: 0, defaultHeaders: headers })
}

/** A client of Vertex AI, or of Anthropic. */
function clientOf({ api }: Form, url: string): Client {
  if (api !== 'Vertex AI') return client(url)
  const authClient = { getRequestHeaders: () => Promise.resolve(new Headers({ authorization: 'Bearer ya29.test' })) }
  const place = { projectId: 'p', region: 'us-east5', baseURL: `${url}/v1`, maxRetries: 0 }
  return new AnthropicVertex({ ...place, authClient: authClient as never })
}

/** Runs the SDK's own tool loop and returns what an application sees of it. */
async function run(sdk: Client, { stream, thread }: Form, content = 'What is it?', compactAfter = 0) {
  const runner = sdk.beta.messages.toolRunner({
    model: 'claude-test',
    max_tokens: 1000,
    system: 'You are a research agent.',
    messages: [{ role: 'user', content }],
    tools: [
      {
        name: 'search',
        description: 'Search',
        input_schema: { type: 'object', properties: { query: { type: 'string' } } },
        run: (input: unknown) => `found all about ${(input as { query: string }).query}`,
        parse: (input: unknown) => input,
      },
    ],
    max_iterations: 40,
    stream,
    ...(thread ? {} : { thread: false as const }),
  })
  const steps: Anthropic.Beta.BetaMessage[] = []
  let governor: unknown
  for await (const step of runner) {
    // Only clients that read events see the other fields of a stream's last event.
    const note = (object: object) => {
      governor = footerIn(object) ?? governor
    }
    if ('finalMessage' in step) step.on('streamEvent', note)
    else note(step)
    steps.push('finalMessage' in step ? await step.finalMessage() : step)
    if (steps.length === compactAfter) runner.compactBeforeNextTurn()
  }
  const last = steps.at(-1) as (Anthropic.Beta.BetaMessage & { governor?: Record<string, unknown> }) | undefined
  return { steps, last, text: textOf(last), governor }
}

const footerIn = (object: object): unknown => Reflect.get(object, 'governor')

function textOf(message: Anthropic.Beta.BetaMessage | undefined): string {
  return (message?.content ?? []).map((block) => (block.type === 'text' ? block.text : '')).join('')
}

const FORMS: readonly Form[] = [false, true].flatMap((stream) => [
  { api: 'Anthropic', stream, thread: false },
  { api: 'Anthropic', stream, thread: true },
  { api: 'Vertex AI', stream, thread: false },
])

const bodies = (requests: readonly Received[]) => requests.map(({ body }) => body.toString())

describe.each(FORMS)('the Anthropic SDK in its tool loop ($api, stream: $stream, thread: $thread)', (form) => {
  it('gives the same answer by the same steps, and sends the provider the same bytes, as without Governor', async () => {
    const direct = await startProvider(keepingThreads(research))
    const behind = await startProvider(keepingThreads(research))
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url } = await startGovernor(behind.url)
    const without = await run(clientOf(form, direct.url), form)
    const through = await run(clientOf(form, url), form)
    expect(through).toEqual(without)
    expect(through.text).toBe('It is — after all — 42. 🎉')
    expect(bodies(behind.requests)).toEqual(bodies(direct.requests))
    expect(behind.requests).toHaveLength(3)
    expect(behind.requests.some(({ json }) => json['thread'] !== undefined)).toBe(form.thread)
  })

  it('compacts its history by a request of its own, which is no step of the run and gets no notice', async () => {
    const compaction = { type: 'compaction', content: 'The summary.', encrypted_content: null, signature: 'c2ln' }
    const runaway = runawayMessages()
    const compacting: Script = (request, number) =>
      request.json['compaction'] ? { blocks: [compaction], finish: 'compaction' } : runaway(request, number)
    const { url, provider } = await startBoth(keepingThreads(compacting), {
      budget: { max_iterations: 4, adaptive: false, caution_threshold: 0.1, warning_threshold: 0.6 },
    })
    const { steps, text } = await run(clientOf(form, url), form, 'What is it?', 2)
    // Two steps, their summary, two more steps, and the last answer.
    expect(steps.map(({ content }) => content[0]?.type)).toEqual([
      ...['tool_use', 'tool_use', 'compaction', 'tool_use', 'tool_use', 'text'],
    ])
    expect(steps[2]?.content).toEqual([compaction])
    expect(text).toBe('This is what I found so far.')
    const said = bodies(provider.requests).map((body) => /Iteration (\d)/.exec(body)?.[1])
    expect(said).toEqual(['1', '2', undefined, '3', '4', undefined])
  })

  it('gets notices, and an answer instead of an error when its run is stopped', async () => {
    const { url, provider, events } = await startBoth(keepingThreads(runawayMessages()), {
      budget: { max_iterations: 5, adaptive: false },
    })
    const { last, text, steps, governor } = await run(clientOf(form, url), form)
    expect(text).toBe('This is what I found so far.')
    expect(last?.stop_reason).toBe('end_turn')
    expect(steps).toHaveLength(6)
    expect(provider.requests).toHaveLength(6)
    const told = provider.requests.map(({ body }) => /\[BUDGET: Iteration (\d+\/\d+)/.exec(body.toString())?.[1])
    const asked = provider.requests.at(-1)
    expect(told.slice(0, 5)).toEqual([undefined, undefined, undefined, '4/5', '5/5'])
    expect(asked?.json.tool_choice).toEqual({ type: 'none' })
    expect(asked?.body.toString()).toContain('maximum number of tool-calling iterations')
    expect(governor).toMatchObject({ terminal_state: 'tool_limit_reached', has_final_answer: true })
    const sessions = events.flatMap((event) => (event.kind === 'request_ended' ? (event.session ?? []) : []))
    expect(new Set(sessions).size).toBe(1)
  })

  it('has its calls blocked after ignored warnings, and gets the model’s next answer', async () => {
    const same = { text: 'Again. ', calls: [{ name: 'search', arguments: { query: 'the same' } }] }
    const { url, provider } = await startBoth(
      keepingThreads(({ json }) =>
        JSON.stringify(json.messages).includes('[LOOP GUARD] Blocked') ? { text: 'I give up.' } : same,
      ),
    )
    const { text, last, steps } = await run(clientOf(form, url), form)
    expect(text).toMatch(/^(?:Again\. )?I give up\.$/)
    expect(last?.stop_reason).toBe('end_turn')
    expect(steps).toHaveLength(7)
    expect(provider.requests).toHaveLength(8)
  })

  it('continues after some calls of one response were blocked', async () => {
    const same = { name: 'search', arguments: { query: 'the same' } }
    let blocked = 0
    const { url, provider } = await startBoth(
      keepingThreads((_, number) => {
        if (number < 7) return { text: 'Again. ', calls: [same] }
        if (number === 7) return { calls: [same, { name: 'search', arguments: { query: 'another' } }] }
        return number === 8
          ? { text: 'And a third. ', calls: [{ name: 'search', arguments: { query: 'third' } }] }
          : { text: 'Done.' }
      }),
    )
    const { text } = await run(clientOf(form, url), form)
    for (const { body } of provider.requests) if (body.includes('[LOOP GUARD] Blocked')) blocked++
    expect(text).toBe('Done.')
    expect(blocked).toBeGreaterThan(0)
    expect(provider.requests).toHaveLength(9)
  })
})

describe('a message thread', () => {
  const params = { model: 'claude-test', max_tokens: 100, system: 'You help.' }
  const tools = [{ name: 'search', input_schema: { type: 'object' as const } }]
  const iterations = ({ events }: { readonly events: readonly ProxyEvent[] }) =>
    events.flatMap((event) => (event.kind === 'request_ended' ? event.iteration : []))

  it('begins a run with every human message, and with nothing else', async () => {
    const running = await startBoth(keepingThreads((_, number) => ({ text: `Answer ${number}.` })))
    const thread = client(running.url).beta.messages.thread({ ...params, tools })
    for (const content of ['Go on.', 'Go on.', 'And now?']) await thread.send({ role: 'user', content })
    expect(iterations(running)).toEqual([1, 1, 1])
  })

  it('continues its session if the client names one, even if the provider has lost the thread', async () => {
    const keeping = keepingThreads(runawayMessages())
    let isLost = false
    const running = await startBoth(
      async (request, number) => {
        const isContinued = JSON.stringify(request.json['thread'] ?? {}).includes('continue')
        if (number !== 4 || !isContinued) return keeping(request, number)
        isLost = true
        const details = { error_code: 'thread_not_found' }
        return {
          status: 404,
          body: { type: 'error', error: { type: 'not_found_error', message: 'gone', details } },
        }
      },
      { budget: { max_iterations: 6 } },
    )
    const { text } = await run(client(running.url, { 'x-governor-session': 'mine' }), {
      stream: true,
      thread: true,
    })
    expect(isLost).toBe(true)
    expect(text).toBe('This is what I found so far.')
    // The refused request does not count; the client's next request gets its number.
    expect(iterations(running)).toEqual([1, 2, 3, 4, 4, 5, 6, 6])
  })

  it.each([{ stream: false }, { stream: true }])(
    'continues after the response to a second attempt of a refused request (stream: $stream)',
    async ({ stream }) => {
      const same = { text: 'Again. ', calls: [{ name: 'search', arguments: { query: 'the same' } }] }
      let refusals = 0
      const { url, provider } = await startBoth(
        keepingThreads(({ json }) => {
          const noticeSent = JSON.stringify(json.messages).includes('[LOOP GUARD] Blocked')
          if (!noticeSent) return same
          return refusals++ === 0 ? { calls: [{ name: 'search', arguments: { query: 'new' } }] } : { text: 'Done.' }
        }),
      )
      const { text, steps } = await run(client(url), { stream, thread: true })
      expect(text).toMatch(/Done\.$/)
      expect(steps).toHaveLength(8)
      expect(provider.requests).toHaveLength(9)
    },
  )

  it('is not continued with another credential', async () => {
    const running = await startBoth(() => ({ text: 'Yes.' }))
    const send = (key: string, thread: object) =>
      fetch(`${running.url}/v1/messages`, {
        method: 'POST',
        headers: { 'x-api-key': key, 'content-type': 'application/json' },
        body: JSON.stringify({
          ...params,
          thread,
          messages: [{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: 'x' }] }],
        }),
      }).then((response) => response.headers.get('x-governor-iteration'))
    expect(await send('mine', { type: 'create' })).toBe('1/300')
    const next = { type: 'continue', previous_message_id: 'msg_1' }
    expect(await send('mine', next)).toBe('2/300')
    expect(await send('yours', next)).toBe('1/300')
  })
})

describe('a run whose tools the provider executes, without a session id', () => {
  /** Pauses for ever; answers when tool_choice is none. */
  const pausing: Script = ({ json }, number) => {
    const choice = json.tool_choice as { type?: string } | undefined
    if (choice?.type === 'none') return { text: 'So far.' }
    const id = `srvtoolu_${number}`
    return {
      blocks: [
        { type: 'server_tool_use', id, name: 'web_search', input: { query: 'more' } },
        { type: 'web_search_tool_result', tool_use_id: id, content: [] },
      ],
      finish: 'pause_turn',
    }
  }

  type Content = Anthropic.ContentBlockParam[]
  /** How clients send back paused responses. */
  const messageForEach = (pauses: readonly Content[]) =>
    pauses.map((content) => ({ role: 'assistant' as const, content }))
  const oneMessage = (pauses: readonly Content[]) => messageForEach([pauses.flat()])
  const newestAlone = (pauses: readonly Content[]) => messageForEach(pauses.slice(-1))

  it.each([
    ['a message for each pause', messageForEach],
    ['one message that grows', oneMessage],
    ['the newest pause in place of the ones before', newestAlone],
  ])('is counted with each request that continues from %s', async (_, written) => {
    const { url, provider } = await startBoth(pausing, { budget: { max_iterations: 4 } })
    const sdk = client(url)
    const pauses: Content[] = []
    const iterations: (string | null)[] = []
    let reason: string | null = 'pause_turn'
    while (reason === 'pause_turn' && pauses.length < 10) {
      const { data, response } = await sdk.messages
        .create({
          model: 'claude-test',
          max_tokens: 1000,
          messages: [{ role: 'user', content: 'What is new?' }, ...(pauses.length > 0 ? written(pauses) : [])],
          tools: [{ type: 'web_search_20250305', name: 'web_search' }],
        })
        .withResponse()
      iterations.push(response.headers.get('x-governor-iteration'))
      reason = data.stop_reason
      pauses.push(data.content as Content)
    }
    expect(iterations).toEqual(['1/4', '2/4', '3/4', '4/4', '4/4'])
    expect(pauses.at(-1)).toMatchObject([{ type: 'text', text: 'So far.' }])
    expect(provider.requests).toHaveLength(5)
  })

  it('does not begin with an answer that the client itself wrote', async () => {
    const { url } = await startBoth(pausing)
    const { response } = await client(url)
      .messages.create({
        model: 'claude-test',
        max_tokens: 1000,
        messages: [
          { role: 'user', content: 'What is new?' },
          { role: 'assistant', content: [{ type: 'text', text: 'The news:' }] },
        ],
        tools: [{ type: 'web_search_20250305', name: 'web_search' }],
      })
      .withResponse()
    expect(response.headers.get('x-governor-iteration')).toBe('1/300')
  })
})
