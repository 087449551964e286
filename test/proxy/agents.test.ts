/** The tree of agents: a call that would start one too many is blocked, and the run goes on. */
import { describe, expect, it } from 'vitest'
import { spawnedBy } from '../../src/core/session/agents.ts'
import { ask, listed } from '../support/admin.ts'
import { afterStep, callModel, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { ASKED, callMessages, type Message, resultsFor } from '../support/messages.ts'
import type { Answer, ChatMessage, Received, Script } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { callResponses, type Item } from '../support/responses-agent.ts'

const SPAWN = 'spawn_agent'
const READ = { name: 'read', arguments: { file: 'a' } }
const spawn = (task: unknown) => ({ name: SPAWN, arguments: { task } })
const schema = { type: 'object', properties: {} }
const loop_guard = { enabled: false }

/** One step of a conversation: the names of the calls that the client gets, and the conversation after them. */
interface Step {
  readonly calls: readonly string[]
  readonly governor: unknown
  readonly next: readonly unknown[]
}
type Talk = (
  url: string,
  history: readonly unknown[],
  headers: Record<string, string>,
  stream: boolean,
) => Promise<Step>

const DIALECTS: readonly { readonly dialect: string; readonly begin: readonly unknown[]; readonly talk: Talk }[] = [
  {
    dialect: 'chat',
    begin: START,
    async talk(url, history, headers, stream) {
      const tools = [SPAWN, 'read'].map((name) => ({ type: 'function', function: { name, parameters: schema } }))
      const step = await callModel(url, history as ChatMessage[], { headers, stream, body: { tools } })
      const calls = (step.message.tool_calls ?? []).map((call) => call.function.name)
      return { calls, governor: step.governor, next: afterStep(history as ChatMessage[], step) }
    },
  },
  {
    dialect: 'messages',
    begin: ASKED,
    async talk(url, history, headers, stream) {
      const tools = [SPAWN, 'read'].map((name) => ({ name, input_schema: schema }))
      const { message, governor } = await callMessages(url, history as Message[], { headers, stream, body: { tools } })
      const calls = message.content.filter(({ type }) => type === 'tool_use').map(({ name = '' }) => name)
      const next = [...history, { role: 'assistant', content: message.content }, resultsFor(message.content)]
      return { calls, governor, next }
    },
  },
  {
    dialect: 'responses',
    begin: [{ role: 'user', content: 'Find out everything.' }],
    async talk(url, history, headers, stream) {
      const tools = [SPAWN, 'read'].map((name) => ({ type: 'function', name, parameters: schema }))
      const { calls, response } = await callResponses(url, { input: history, tools, store: false }, { headers, stream })
      const outputs = calls.map((call) => ({ type: 'function_call_output', call_id: call['call_id'], output: 'ok' }))
      const next = [...history, ...(response['output'] as Item[]), ...outputs]
      return { calls: calls.map((call) => String(call['name'])), governor: response['governor'], next }
    },
  },
]
const WAYS = DIALECTS.flatMap((one) => [false, true].map((stream) => ({ ...one, stream })))

const offersSpawn = ({ json }: Received) => JSON.stringify(json.tools ?? []).includes(SPAWN)
const count = (calls: readonly string[]) => calls.filter((name) => name === SPAWN).length
const limited = (session: object) => ({ loop_guard, budget: { session } })
const MAIN = { 'x-claude-code-session-id': 'tree', 'session-id': 'tree' }

/** How clients name an agent and the one that started it. */
const CLIENTS = {
  'Claude Code': (at: number) => ({
    'x-claude-code-session-id': 'tree',
    ...(at > 0 && { 'x-claude-code-agent-id': `a${at}` }),
    ...(at > 1 && { 'x-claude-code-parent-agent-id': `a${at - 1}` }),
  }),
  codex: (at: number) => ({
    'session-id': 'tree',
    'thread-id': `t${at}`,
    ...(at > 0 && { 'x-codex-parent-thread-id': `t${at - 1}` }),
  }),
  opencode: (at: number) => ({
    'x-opencode-session': `s${at}`,
    ...(at > 0 && { 'x-parent-session-id': `s${at - 1}` }),
  }),
} as const satisfies Readonly<Record<string, (at: number) => Record<string, unknown>>>
const headersOf = (client: keyof typeof CLIENTS, at: number) => CLIENTS[client](at) as Record<string, string>

describe.each(WAYS)('the tree of agents ($dialect, stream: $stream)', ({ begin, talk, stream }) => {
  it('has 20 agents where one prompt would start 361; the other calls pass, and the model is told', async () => {
    const script: Script = (_, number): Answer => ({
      calls: [...Array.from({ length: 19 }, (_, at) => spawn(`${number} ${at}`)), { ...READ, arguments: { number } }],
    })
    const { url, provider } = await startBoth(script, limited({ max_agents: 20 }))
    let history = begin
    const passed: number[] = []
    for (let step = 0; step < 19; step++) {
      const { calls, governor, next } = await talk(url, history, MAIN, stream)
      expect([calls.includes('read'), governor]).toEqual([true, undefined])
      passed.push(count(calls))
      history = next
    }
    expect(passed).toEqual([19, 1, ...Array.from({ length: 17 }, () => 0)])
    expect(provider.requests).toHaveLength(19)
    const text =
      '[GOVERNOR] This session already runs 20 of 20 agents. Do not retry. Do this part yourself with your tools.'
    expect(provider.requests.map(({ body }) => body.includes(text))).toEqual([
      false,
      false,
      ...Array.from({ length: 17 }, () => true),
    ])
    expect((await ask(url, '/metrics')).text).toContain(
      `governor_loops_total{pattern="max_agents",tool="${SPAWN}",action="blocked"} ${361 - 20}`,
    )
  })

  it.each(Object.keys(CLIENTS) as (keyof typeof CLIENTS)[])(
    'is 3 deep where it would be 50 deep (%s)',
    async (client) => {
      const script: Script = (_, number): Answer => ({ calls: [spawn(number), { ...READ, arguments: { number } }] })
      const { url, provider } = await startBoth(script, limited({ max_depth: 3 }))
      const passed: number[] = []
      for (let at = 0; at < 50; at++) passed.push(count((await talk(url, begin, headersOf(client, at), stream)).calls))
      expect(passed).toEqual([1, 1, 1, ...Array.from({ length: 47 }, () => 0)])
      expect(provider.requests).toHaveLength(50)
    },
  )

  it('starts none of 48 agents of one call where 8 may run at once; 8 of one call run', async () => {
    const batch = (size: number) => ({
      name: SPAWN,
      arguments: { tasks: Array.from({ length: size }, (_, at) => ({ goal: `${at}` })), toolsets: ['a', 'b'] },
    })
    const sizes = [48, 8, 1]
    const script: Script = (_, number): Answer => ({
      calls: [batch(sizes[number - 1] ?? 1), { ...READ, arguments: { number } }],
    })
    const { url, provider } = await startBoth(script, limited({ max_concurrent_agents: 8 }))
    let history = begin
    const passed: number[] = []
    for (let step = 0; step < 3; step++) {
      const { calls, next } = await talk(url, history, MAIN, stream)
      passed.push(count(calls))
      history = next
    }
    expect(passed).toEqual([0, 1, 0])
    await talk(url, history, MAIN, stream)
    const text = (used: number) =>
      `[GOVERNOR] This session already runs ${used} of 8 agents. Do not retry. Do this part yourself with your tools, or wait for one to finish.`
    expect(provider.requests[1]?.body.includes(text(0))).toBe(true)
    expect(provider.requests[3]?.body.includes(text(8))).toBe(true)
  })

  it('lets a run that calls nothing else go on without the tool', async () => {
    const script: Script = (request, number): Answer =>
      offersSpawn(request) ? { calls: [spawn(number)] } : { text: 'Done it myself.' }
    const { url } = await startBoth(script, limited({ max_agents: 1 }))
    const first = await talk(url, begin, MAIN, stream)
    expect(first.calls).toEqual([SPAWN])
    const second = await talk(url, first.next, MAIN, stream)
    expect([second.calls, second.governor]).toEqual([[], undefined])
    expect(JSON.stringify(second.next)).toContain('Done it myself.')
  })
})

const [{ begin, talk }] = DIALECTS as [(typeof DIALECTS)[number]]
const one: Script = (request, number) =>
  JSON.stringify(request.json.messages.at(-1)).includes('END HERE')
    ? { text: 'Finished.' }
    : { calls: [spawn(number), { ...READ, arguments: { number } }] }
const child = (at: number) => ({ 'x-claude-code-session-id': 'tree', 'x-claude-code-agent-id': `a${at}` })
const ENDING = [...START.slice(0, 1), { role: 'user', content: 'END HERE' }]

describe('an agent', () => {
  it('counts although nobody saw it started', async () => {
    const { url } = await startBoth(one, limited({ max_agents: 2 }))
    const main = await talk(url, begin, MAIN, false)
    expect(count(main.calls)).toBe(1)
    // One of these two was announced.
    for (const at of [1, 2]) await talk(url, ENDING, child(at), false)
    expect(count((await talk(url, main.next, MAIN, false)).calls)).toBe(0)
  })

  it('runs until it answers, or asks for nothing for five minutes; one that never shows up counts a minute', async () => {
    let time = 1_760_000_000_000
    const { url } = await startBoth(one, limited({ max_concurrent_agents: 1 }), { now: () => time })
    const first = await talk(url, begin, MAIN, false)
    const second = await talk(url, first.next, MAIN, false)
    expect([count(first.calls), count(second.calls)]).toEqual([1, 0])
    time += 62_000
    const third = await talk(url, second.next, MAIN, false)
    expect(count(third.calls)).toBe(1)
    await talk(url, ENDING, child(1), false)
    const fourth = await talk(url, third.next, MAIN, false)
    expect(count(fourth.calls)).toBe(1)
    await talk(url, begin, child(2), false)
    time += 299_000
    const fifth = await talk(url, fourth.next, MAIN, false)
    expect(count(fifth.calls)).toBe(0)
    time += 2_000
    expect(count((await talk(url, fifth.next, MAIN, false)).calls)).toBe(1)
  })
})

describe('agents that run at once', () => {
  it('are counted where one that was started long ago works again while another one is started', async () => {
    let time = 1_760_000_000_000
    const script: Script = async (request, number) => {
      const { text, calls = [] } = await one(request, number)
      // An agent that was started starts none itself.
      const isChild = request.header('x-claude-code-agent-id') !== undefined
      return { ...(text && { text }), calls: isChild ? calls.filter(({ name }) => name !== SPAWN) : calls }
    }
    const { url } = await startBoth(script, limited({ max_concurrent_agents: 2 }), { now: () => time })
    const first = await talk(url, begin, MAIN, false)
    const { next } = await talk(url, ENDING, child(1), false)
    time += 600_000
    await talk(url, [...next, { role: 'user', content: 'Go on with this.' }], child(1), false)
    const second = await talk(url, first.next, MAIN, false)
    const third = await talk(url, second.next, MAIN, false)
    expect([first, second, third].map(({ calls }) => count(calls))).toEqual([1, 1, 0])
  })

  it('are counted where the request that started them had failed before', async () => {
    const script: Script = (_, number): Answer =>
      number === 1 ? { status: 500, body: {} } : { calls: [spawn('a'), spawn('b'), { ...READ, arguments: { number } }] }
    const { url } = await startBoth(script, limited({ max_concurrent_agents: 2 }))
    await talk(url, begin, MAIN, false)
    const second = await talk(url, begin, MAIN, false)
    const third = await talk(url, second.next, MAIN, false)
    expect([second, third].map(({ calls }) => count(calls))).toEqual([2, 0])
  })

  it('are started by the request that is sent again, as its client did not get the calls before', async () => {
    const sizes = [1, 2, 0, 1, 1]
    const script: Script = (_, number): Answer => ({
      calls: [...Array.from({ length: sizes[number - 1] ?? 0 }, spawn), { ...READ, arguments: { number } }],
    })
    const { url } = await startBoth(script, limited({ max_agents: 2 }))
    const sent = []
    for (let at = 0; at < 4; at++) sent.push(await talk(url, begin, MAIN, false))
    sent.push(await talk(url, sent.at(-1)?.next ?? [], MAIN, false))
    expect(sent.map(({ calls }) => count(calls))).toEqual(sizes)
  })
})

describe('the limits of a session', () => {
  it('count agents with sessions of their own, which are agents of the root then', async () => {
    const { url } = await startBoth(one, limited({ max_iterations: 5 }))
    const ends: unknown[] = []
    for (let at = 0; at < 6; at++) {
      const { governor } = await talk(url, begin, headersOf('opencode', at), false)
      ends.push((governor as { terminal_reason?: string } | undefined)?.terminal_reason)
    }
    expect(ends).toEqual([...Array.from({ length: 5 }, () => undefined), 'max_iterations'])
    expect((await listed(url)).map(({ name, agents }) => ({ name, total: agents.total }))).toEqual([
      { name: 's0', total: 6 },
    ])
  })

  it.each([false, true])(
    'count agents that ask before the one that started them has named its own root (Redis: %s)',
    async (isShared) => {
      const limits = limited({ max_iterations: 4 })
      const redis = isShared ? await startRedis() : undefined
      const config = redis ? { ...limits, store: 'redis', redis: { url: redis.url } } : limits
      const { url, provider } = await startBoth(one, config)
      const urls = [url, redis ? (await startGovernor(provider.url, config)).url : url]
      const step = async (at: number, history: readonly unknown[] = begin) => {
        const to = urls[at % urls.length] ?? url
        const { governor, next } = await talk(to, history, headersOf('opencode', at), false)
        return { reason: (governor as { terminal_reason?: string } | undefined)?.terminal_reason, next }
      }
      // The deepest asks first: nobody knows yet that the two above it belong to a tree.
      const first = new Map<number, readonly unknown[]>()
      for (const at of [3, 2, 1, 0]) first.set(at, (await step(at)).next)
      const ends: unknown[] = []
      for (const at of [3, 2, 1]) ends.push((await step(at, first.get(at))).reason)
      expect(ends).toEqual([undefined, undefined, 'max_iterations'])
    },
  )

  it('leave sessions alone where there are none, and in mode observe nothing is blocked', async () => {
    const { url } = await startBoth(one, { loop_guard })
    for (let at = 0; at < 3; at++) await talk(url, begin, headersOf('opencode', at), false)
    expect((await listed(url)).map(({ name }) => name).sort()).toEqual(['s0', 's1', 's2'])
    const observed = await startBoth(one, { ...limited({ max_depth: 1, max_agents: 1 }), mode: 'observe' })
    for (let at = 0; at < 3; at++)
      expect(count((await talk(observed.url, begin, headersOf('codex', at), false)).calls)).toBe(1)
  })
})

it.each([
  ['{"task":"a"}', 1],
  ['{"tasks":[{},{},{}]}', 3],
  ['{"agents":["a","b"],"toolsets":["x","y","z"]}', 2],
  ['{"items":[1,2,3]}', 1],
  ['{"tasks":[]}', 1],
  ['no JSON', 1],
])('a call with the arguments %s starts so many agents: %i', (text, agents) => {
  expect(spawnedBy(text)).toBe(agents)
})
