import { describe, expect, it } from 'vitest'
import { afterStep, callModel, runAgent, START, type Step } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { type ChatMessage, runaway, type Script } from '../support/provider.ts'

const iteration = (step: Step | undefined) => step?.headers.get('x-governor-iteration')
const session = (step: Step | undefined) => step?.headers.get('x-governor-session')
const named = (name: string, more: Record<string, string> = {}) => ({
  headers: { 'x-governor-session': name, ...more },
})

/** A transcript of `count` iterations of one run. */
function worked(count: number, start: readonly ChatMessage[] = START): ChatMessage[] {
  const rounds = Array.from({ length: count }, (_, at): ChatMessage[] => [
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: `c${at}`, function: { name: 'search', arguments: `{"n":${at}}` } }],
    },
    { role: 'tool', tool_call_id: `c${at}`, content: `found ${at}` },
  ])
  return [...start, ...rounds.flat()]
}

describe('sessions', () => {
  it('are separate for fifty parallel runs of one prompt', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 4 } })
    const runs = await Promise.all(Array.from({ length: 50 }, () => runAgent(url, START)))
    for (const { steps } of runs) {
      expect(steps.map(iteration)).toEqual(['1/4', '2/4', '3/4', '4/4', '4/4'])
      expect(new Set(steps.slice(1).map(session)).size).toBe(1)
    }
    expect(new Set(runs.map(({ steps }) => session(steps.at(-1)))).size).toBe(50)
  })

  it('with one id under two credentials are two sessions', async () => {
    const { url } = await startBoth(runaway())
    const a = { headers: { 'x-governor-session': 'shared', authorization: 'Bearer a' } }
    const b = { headers: { 'x-governor-session': 'shared', authorization: 'Bearer b' } }
    await callModel(url, worked(5), a)
    expect(iteration(await callModel(url, worked(6), a))).toBe('7/300')
    expect(iteration(await callModel(url, worked(1), b))).toBe('2/300')
  })

  it('of one credential are kept, however many sessions another credential begins', async () => {
    const { url } = await startBoth(runaway(), { sessions: { max: 10 } })
    const own = named('mine', { authorization: 'Bearer a' })
    const summary: ChatMessage[] = [...START, { role: 'user', content: '<system-reminder>x</system-reminder>' }]
    await callModel(url, worked(5), own)
    for (let at = 0; at < 20; at++) await callModel(url, worked(1), named(`s${at}`, { authorization: 'Bearer b' }))
    expect(iteration(await callModel(url, summary, own))).toBe('7/300')
  })

  it('get their id from the first place that has one', async () => {
    const { url } = await startBoth(runaway())
    const body = { metadata: { session_id: 'from-body' }, conversation: { id: 'from-conversation' } }
    const all = { 'x-governor-session': 'own', 'x-session-id': 'from-header' }
    expect(session(await callModel(url, START, { headers: all, body }))).toBe('own')
    expect(session(await callModel(url, START, { headers: { 'x-session-id': 'from-header' }, body }))).toBe(
      'from-header',
    )
    expect(session(await callModel(url, START, { headers: { session_id: 'pi' } }))).toBe('pi')
    expect(session(await callModel(url, START, { body }))).toBe('from-body')
    expect(session(await callModel(url, START, { body: { conversation: 'conv_1' } }))).toBe('conv_1')
    const claude = { metadata: { user_id: JSON.stringify({ device_id: 'd', session_id: 'cc' }) } }
    expect(session(await callModel(url, START, { body: claude }))).toBe('cc')
    const kimi = 'session_8f7cc978-22fe-4537-a46d-5e6ee25f3e23'
    expect(session(await callModel(url, START, { body: { metadata: { user_id: kimi } } }))).toBe(kimi)
    expect(session(await callModel(url, START, { body: { prompt_cache_key: kimi } }))).toBe(kimi)
    expect(
      session(
        await callModel(url, START, {
          body: { metadata: { user_id: 'u-1' }, user: 'u', prompt_cache_key: 'k' },
        }),
      ),
    ).toBeNull()
  })

  it('show a hash if their id cannot be sent in a header', async () => {
    const { url } = await startBoth(runaway())
    const step = await callModel(url, START, { body: { metadata: { session_id: 'línea\r\nx-evil: 1' } } })
    expect(session(step)).toMatch(/^[0-9a-f]{32}$/)
    expect(step.headers.get('x-evil')).toBeNull()
  })

  it('count concurrent threads of one id separately, by header and by how they began', async () => {
    const { url } = await startBoth(runaway())
    const sub: ChatMessage[] = [
      { role: 'system', content: 'You are a helper.' },
      { role: 'user', content: 'Look there.' },
    ]
    for (let count = 0; count < 3; count++) {
      expect(iteration(await callModel(url, worked(count), named('s')))).toBe(`${count + 1}/300`)
      expect(iteration(await callModel(url, worked(count, sub), named('s')))).toBe(`${count + 1}/300`)
      expect(iteration(await callModel(url, worked(count), named('s', { 'thread-id': 't1' })))).toBe(`${count + 1}/300`)
    }
    expect(
      iteration(await callModel(url, worked(0, [...sub, { role: 'user', content: 'Now here.' }]), named('s'))),
    ).toBe('1/300')
    expect(iteration(await callModel(url, worked(3), named('s')))).toBe('4/300')
  })
})

describe('iterations', () => {
  it('are not counted for a repeated body, which is a retry', async () => {
    const { url, provider } = await startBoth(runaway())
    const transcript = worked(4)
    const steps = [await callModel(url, transcript, named('s')), await callModel(url, transcript, named('s'))]
    expect(steps.map(iteration)).toEqual(['5/300', '5/300'])
    expect(iteration(await callModel(url, worked(5), named('s')))).toBe('6/300')
    expect(provider.requests).toHaveLength(3)
  })

  it('are not counted for the same step with other results, which another branch of the agent may send', async () => {
    const { url } = await startBoth(runaway())
    const branch = (result: string): ChatMessage[] =>
      worked(4).map((message) => (message.role === 'tool' ? { ...message, content: result } : message))
    const iterations: unknown[] = []
    for (const result of ['a', 'b', 'c']) {
      iterations.push(iteration(await callModel(url, branch(result), named('s'))))
    }
    expect(iterations).toEqual(['5/300', '5/300', '5/300'])
  })

  const summary = 'This session is being continued from a previous conversation that ran out of context. Summary: …'
  it.each<[string, (whole: ChatMessage[]) => ChatMessage[]]>([
    [
      'the first human message and a summary',
      () => [...START, { role: 'assistant', content: 'Summary: much was found.' }, ...worked(10).slice(-2)],
    ],
    ['a summary in the human’s place', () => [START[0] as ChatMessage, { role: 'user', content: summary }]],
    ['the end of a sliding window', (whole) => [START[0] as ChatMessage, ...whole.slice(-4)]],
  ])('continue from the stored count when a history shrinks to %s', async (_, compacted) => {
    const { url } = await startBoth(runaway())
    const whole = worked(10)
    expect(iteration(await callModel(url, worked(9), named('s')))).toBe('10/300')
    expect(iteration(await callModel(url, whole, named('s')))).toBe('11/300')
    const short = compacted(whole)
    expect(iteration(await callModel(url, short, named('s')))).toBe('12/300')
    expect(iteration(await callModel(url, [...short, ...worked(12).slice(-2)], named('s')))).toBe('13/300')
  })

  it('start at 1 with a human message, also with the same words as before', async () => {
    const { url } = await startBoth(runaway())
    const first = worked(3, [...START, { role: 'user', content: 'continue' }])
    expect(iteration(await callModel(url, first, named('s')))).toBe('4/300')
    const again = [...first, { role: 'user', content: 'continue' }]
    expect(iteration(await callModel(url, again, named('s')))).toBe('1/300')
    expect(iteration(await callModel(url, worked(1, again), named('s')))).toBe('2/300')
  })

  it.each([
    '<skill> is a tag in my XML, why is it not read?',
    '# AGENTS.md instructions for the team are missing: write them',
    '[Request interrupted by user] do the other one instead',
    'You appear to be repeating the same action, so stop',
    '[BUDGET: Iteration 3/20. You have 17 iterations left.] What is that?',
    '[CONTEXT COMPACTION — REFERENCE ONLY] It was done.\n\n--- END OF CONTEXT SUMMARY — respond to the message below, not the summary above ---\n\nNow the other one.',
    'The conversation history before this point was compacted into the following summary:\n\n<summary>\nIt was done.\n</summary>\n\nNow the other one.',
  ])('start at 1 when a human writes %j', async (content) => {
    const { url } = await startBoth(runaway())
    const step = await callModel(url, [...worked(3), { role: 'user', content }], named('s'))
    expect(iteration(step)).toBe('1/300')
  })

  it.each([
    ['a reminder', '<system-reminder>\nMind the todo list.\n</system-reminder>'],
    [
      'a nudge',
      '[System: Your previous response was truncated by the output length limit. Continue exactly where you left off.]',
    ],
    ['a configured text', 'HARNESS: keep going (3)'],
    ['a configured text that has an end', '((note: keep going))'],
  ])('continue after %s', async (_, content) => {
    const { url } = await startBoth(runaway(), {
      sessions: { scaffolding: { prefixes: ['HARNESS: keep going', { text: '((note', end: '))' }] } },
    })
    const transcript = [...worked(3), { role: 'user', content }]
    expect(iteration(await callModel(url, transcript, named('s')))).toBe('4/300')
    const human = [...worked(3), { role: 'user', content: `What does "${content}" mean?` }]
    expect(iteration(await callModel(url, human, named('s')))).toBe('1/300')
  })

  it('continue when a shorter view of the same history comes in between', async () => {
    const { url } = await startBoth(runaway())
    const two = [...worked(2), { role: 'assistant', content: 'Done.' }, { role: 'user', content: 'Now the rest.' }]
    await callModel(url, two, named('s'))
    expect(iteration(await callModel(url, worked(1, two), named('s')))).toBe('2/300')
    expect(iteration(await callModel(url, worked(1), named('s')))).toBe('2/300')
    expect(iteration(await callModel(url, worked(2, two), named('s')))).toBe('3/300')
  })

  it('start at 1 when a run without an id starts over', async () => {
    // A provider that gives the same ids every time, so that both runs look the same from the start.
    const script: Script = ({ json }) => ({
      calls: [{ id: `call_${json.messages.length}`, name: 'search', arguments: { n: json.messages.length } }],
    })
    const { url } = await startBoth(script, { budget: { max_iterations: 30 } })
    await runAgent(url, START, { max: 20 })
    const { steps } = await runAgent(url, START, { max: 20, stream: true })
    expect(steps.map(iteration)).toEqual(Array.from({ length: 20 }, (_, at) => `${at + 1}/30`))
  })

  it.each([{}, named('s')])(
    'of a stopped run never reach the provider, whatever form its last step has (%j)',
    async (options) => {
      const { url, provider } = await startBoth(runaway(), { budget: { max_iterations: 3 } })
      const { messages } = await runAgent(url, START, options)
      const asked = provider.requests.length
      for (let seed = 1; seed <= 6; seed++) {
        const step = await callModel(url, messages.slice(0, -1), { ...options, body: { seed } })
        expect(step.governor).toMatchObject({ terminal_reason: 'max_iterations' })
      }
      expect(provider.requests).toHaveLength(asked)
    },
  )

  it('are not counted for requests without tools, which are relayed unchanged', async () => {
    const { url, provider } = await startBoth(() => ({ text: 'A title' }))
    const title = await callModel(url, START, { ...named('s'), body: { tools: undefined } })
    expect([...title.headers.keys()].filter((name) => name.startsWith('x-governor'))).toEqual([])
    expect(iteration(await callModel(url, START, named('s')))).toBe('1/300')
    expect(provider.requests).toHaveLength(2)
  })
})

describe('the limit of a session', () => {
  const withClock = (time: number): ChatMessage[] => [
    { role: 'system', content: `You are a research agent. It is ${time}.` },
    { role: 'user', content: 'Find out everything.' },
  ]

  it('counts each call once although the system text contains a clock, and its stopped run is recognized', async () => {
    const { url, provider } = await startBoth(runaway(), { budget: { session: { max_iterations: 12 } } })
    const recentRequests = []
    for (let count = 0; count < 15; count++)
      recentRequests.push(await callModel(url, worked(count, withClock(count)), named('s')))
    expect(recentRequests.map(({ governor }) => governor?.['terminal_reason'])).toEqual([
      ...Array.from({ length: 12 }, () => undefined),
      ...Array.from({ length: 3 }, () => 'max_iterations'),
    ])
    // A run that was stopped has its answer, whatever time it is.
    expect(provider.requests).toHaveLength(13)
  })

  it('counts each call once even if there are more threads than are remembered', async () => {
    const { url } = await startBoth(runaway(), { budget: { session: { max_iterations: 400 } } })
    const task = (at: number): ChatMessage[] => [{ role: 'user', content: `Task ${at}.` }]
    const recentRequests = []
    for (let count = 0; count < 5; count++)
      for (let at = 0; at < 80; at++) recentRequests.push(await callModel(url, worked(count, task(at)), named('s')))
    expect(recentRequests.filter(({ governor }) => governor)).toEqual([])
    expect((await callModel(url, worked(5, task(0)), named('s'))).governor).toMatchObject({
      terminal_reason: 'max_iterations',
      budget_used: 400,
    })
  })
})

describe('a conversation that begins with the same words under the same session id', () => {
  /** Calls a tool so many times, then answers. */
  const job =
    (calls: number): Script =>
    ({ json }, number) =>
      json.messages.length <= 2 * calls + 1
        ? { calls: [{ name: 'search', arguments: { query: `q${number}` } }] }
        : { text: 'Done.' }

  it.each([{ stream: false }, { stream: true }])(
    'is a new run after the one before has answered (stream: $stream)',
    async ({ stream }) => {
      const { url } = await startBoth(job(6), { budget: { max_iterations: 10 } })
      for (let day = 0; day < 4; day++) {
        const { steps } = await runAgent(url, START, { ...named('daily'), stream })
        expect(steps.map(iteration)).toEqual(['1/10', '2/10', '3/10', '4/10', '5/10', '6/10', '7/10'])
      }
    },
  )

  it('is a new run after the one before was stopped', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 6 } })
    for (let day = 0; day < 3; day++) {
      const { steps } = await runAgent(url, START, named('daily'))
      expect(steps.map(iteration)).toEqual(['1/6', '2/6', '3/6', '4/6', '5/6', '6/6', '6/6'])
    }
  })

  it('is a new run while the one before goes on, which keeps its count', async () => {
    const { url } = await startBoth(runaway())
    for (let count = 0; count < 6; count++) await callModel(url, worked(count), named('s'))
    expect(iteration(await callModel(url, START, named('s')))).toBe('1/300')
    expect(iteration(await callModel(url, worked(6), named('s')))).toBe('7/300')
  })

  it.each([
    ['bytes', {}],
    ['words in other bytes', { seed: 0 }],
  ])('is one of ten parallel runs, which are counted separately: the same %s', async (_, more) => {
    const { url } = await startBoth(runaway())
    const workers = Array.from({ length: 10 }, (_, at) => ({
      headers: { 'x-litellm-trace-id': 'trace' },
      body: 'seed' in more ? { seed: at } : {},
    }))
    const begun = await Promise.all(workers.map((options) => callModel(url, START, options)))
    const transcripts = begun.map((step) => afterStep(START, step))
    const counts: (string | null | undefined)[][] = workers.map(() => [])
    for (let round = 0; round < 4; round++) {
      for (const [at, options] of workers.entries()) {
        const step = await callModel(url, transcripts[at] ?? [], options)
        counts[at]?.push(iteration(step))
        transcripts[at] = afterStep(transcripts[at] ?? [], step)
      }
    }
    expect(counts).toEqual(Array.from({ length: 10 }, () => ['2/300', '3/300', '4/300', '5/300']))
  })
})

it('the session id of LiteLLM names a session, and its trace id where there is no other', async () => {
  const { url } = await startBoth(runaway())
  const trace = { 'x-litellm-trace-id': 'trace' }
  expect(session(await callModel(url, START, { headers: { ...trace, 'x-litellm-session-id': 'own' } }))).toBe('own')
  expect(session(await callModel(url, START, { headers: trace }))).toBe('trace')
})

it('an empty session id of Grok Build names no session', async () => {
  const { url } = await startBoth(runaway())
  const named = await callModel(url, START, { headers: { 'x-grok-session-id': '01a2' } })
  expect(session(named)).toBe('01a2')
  expect(session(await callModel(url, START, { headers: { 'x-grok-session-id': '' } }))).toBeNull()
})

describe('a budget that a client declares', () => {
  const DECLARED = { 'x-governor-max-iterations': '5' }
  const declared = { headers: DECLARED }

  it('is enforced, and announced in the system text with the same bytes in every request', async () => {
    const { url, provider } = await startBoth(runaway())
    const { steps } = await runAgent(url, START, declared)
    expect(steps.map(iteration)).toEqual(['1/5', '2/5', '3/5', '4/5', '5/5', '5/5'])
    const systems = provider.requests.slice(0, 5).map(({ json }) => json.messages[0]?.content)
    expect(new Set(systems).size).toBe(1)
    expect(systems[0]).toBe(
      "You are a research agent.\n\nTool budget: you have 5 iterations total. Pace yourself: if you can't fully resolve the task, stop early and return what you have plus the gap, rather than burning the budget on one branch.",
    )
    expect(provider.requests.every((request) => request.header('x-governor-max-iterations') === undefined)).toBe(true)
  })

  it.each([
    [true, '100', '1/100'],
    ['lower_only', '400', '1/300'],
    ['lower_only', '5', '1/5'],
    [false, '5', '1/300'],
    [true, 'many', '1/300'],
    [true, '0', '1'],
    ['lower_only', '0', '1/300'],
  ])('is counted with client_override %s: %s gives %s', async (mode, value, expected) => {
    const { url } = await startBoth(runaway(), { budget: { client_override: mode } })
    const step = await callModel(url, START, { headers: { 'x-governor-max-iterations': value } })
    expect(iteration(step)).toBe(expected)
  })

  it.each([
    ['changes', ['10', '10', '30', undefined, '10']],
    ['begins', [undefined, '10', '30', undefined, '10']],
  ])('is announced as the first request of the run says, whatever its client %s to declare', async (_, limits) => {
    const { url, provider } = await startBoth(runaway())
    let messages = [...START]
    const iterations: unknown[] = []
    for (const limit of limits) {
      const step = await callModel(url, messages, named('run', limit ? { 'x-governor-max-iterations': limit } : {}))
      iterations.push(iteration(step))
      messages = afterStep(messages, step)
    }
    expect(iterations).toEqual(limits.map((limit, at) => `${at + 1}/${limit ?? 300}`))
    const systems = new Set(provider.requests.map(({ json }) => json.messages[0]?.content))
    expect(systems.size).toBe(1)
    expect([...systems].join().includes('you have 10 iterations total')).toBe(limits[0] !== undefined)
    await callModel(url, [...messages, { role: 'user', content: 'And now?' }], named('run', DECLARED))
    expect(provider.requests.at(-1)?.json.messages[0]?.content).toContain('you have 5 iterations total')
  })

  it('is announced in tool calls if the client declares tool calls', async () => {
    const { url, provider } = await startBoth(runaway())
    await callModel(url, START, { headers: { 'x-governor-max-tool-calls': '20' } })
    expect(provider.requests[0]?.json.messages[0]?.content).toContain('Tool budget: you have 20 tool calls total.')
  })

  it('is not announced if announcements are off', async () => {
    const { url, provider } = await startBoth(runaway(), { budget: { announce: 'never' } })
    await callModel(url, START, declared)
    expect(provider.requests[0]?.json.messages).toEqual(START)
  })
})

describe('a request without messages', () => {
  const TOOLS = [{ type: 'function', name: 'f', function: { name: 'f', parameters: {} } }]

  it.each([
    ['chat/completions', { messages: null }],
    ['chat/completions', {}],
    ['messages', {}],
    ['responses', { input: null }],
    ['responses', {}],
  ])('to %s with tools and %j is guarded', async (path, fields) => {
    const { url, provider, events } = await startBoth(() => ({ body: { odd: true } }), {
      budget: { announce: 'always' },
    })
    const body = JSON.stringify({ model: 'm', ...fields, tools: TOOLS })
    const response = await fetch(`${url}/v1/${path}`, { method: 'POST', body })
    expect(await response.json()).toEqual({ odd: true })
    expect(response.headers.get('x-governor-verdict')).toBe('allow')
    expect(provider.requests[0]?.json).toMatchObject({ model: 'm', ...fields, tools: TOOLS })
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it.each(['chat/completions', 'messages', 'responses'])(
    'to %s that is an empty object is relayed without an error or a warning',
    async (path) => {
      const { url, events, logs } = await startBoth(() => ({ status: 400, body: { error: {} } }))
      const response = await fetch(`${url}/v1/${path}`, { method: 'POST', body: '{}' })
      expect(response.status).toBe(400)
      expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
      expect(logs.filter((line) => JSON.parse(line).level >= 40)).toEqual([])
    },
  )
})

describe('a request that Governor can’t read', () => {
  it('is relayed and counted as failed open', async () => {
    const { url, events } = await startBoth(() => ({ body: { odd: true } }))
    for (const body of ['{"messages": [', '[]', '{"messages": {}}', 'hello']) {
      const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', body })
      expect(await response.json()).toEqual({ odd: true })
    }
    expect(events.filter((event) => event.kind === 'failed_open')).toHaveLength(4)
  })

  it('because it has more than 50,000 messages is relayed and counted as failed open', async () => {
    const { url, events, provider } = await startBoth(() => ({ text: 'Hi.' }))
    const list = (count: number) => Array.from({ length: count }, () => ({ role: 'user', content: 'hi' }))
    const fits = await callModel(url, list(50_000))
    expect(fits.headers.get('x-governor-verdict')).toBe('allow')
    const asked = list(50_001)
    const step = await callModel(url, asked)
    expect(step.message.content).toBe('Hi.')
    expect(step.headers.get('x-governor-verdict')).toBeNull()
    expect(provider.requests.at(-1)?.json.messages).toHaveLength(50_001)
    expect(events).toContainEqual({ kind: 'failed_open', reason: 'body_too_large' })
  })
})

describe('logs and metrics about requests', () => {
  it('contain no key, no prompt and no tool argument', async () => {
    const { url, logs, until } = await startBoth(runaway('search', 'SECRET answer'), {
      budget: { max_iterations: 2 },
    })
    const start = [{ role: 'user', content: 'SECRET question' }]
    const headers = { authorization: 'Bearer sk-SECRET', 'x-governor-session': 's' }
    const { steps, messages } = await runAgent(url, start, { headers })
    await callModel(url, afterStep(messages, steps.at(-1) as Step), { headers })
    await fetch(`${url}/v1/models?key=SECRET`).then((response) => response.text())
    await until((event) => event.kind === 'request_ended' && event.path === '/v1/models')
    const metrics = await fetch(`${url}/metrics`).then((response) => response.text())
    expect(logs.join('\n')).toContain('"iteration":2')
    expect(logs.join('\n') + metrics).not.toContain('SECRET')
    expect(metrics).toContain('governor_stops_total{reason="max_iterations",by="model"} 1')
    expect(metrics).toContain('governor_notices_total{tier="warning",channel="auto",meter="iterations"}')
  })
})
