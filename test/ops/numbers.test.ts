/** Whatever the API, the command line, the log, the webhook and the headers say about one session, the numbers agree. */
import { describe, expect, it } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import { limitText } from '../../src/ops/sessions/labels.ts'
import { act, firstSession, listed, type Shown } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { type ChatMessage, runaway, type Script } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'

const ONE = { headers: { 'x-governor-session': 'one' } }
const MODELS = [{ model: '*', price: { input: 1_000, output: 0 } }]

const twoCalls: Script = ({ json }, number) =>
  json.tool_choice === 'none'
    ? { text: 'Enough.' }
    : { calls: ['a', 'b'].map((name) => ({ name, arguments: `{"n":${number}}` })) }
const stuck: Script = ({ json }) =>
  json.tool_choice === 'none' || !json.tools
    ? { text: 'Enough.' }
    : { calls: [{ name: 'read', arguments: '{"path":"a"}' }] }

interface Way {
  readonly way: string
  readonly script?: Script
  readonly config: Record<string, unknown>
  /** What an operator does after three iterations. */
  readonly operator?: readonly [action: string, body?: unknown]
}

/** Every way in which Governor ends a run. */
const WAYS: readonly Way[] = [
  { way: 'max_iterations', config: { budget: { max_iterations: 6 } } },
  { way: 'max_tool_calls', config: { budget: { run: { max_tool_calls: 7 } } }, script: twoCalls },
  { way: 'max_tokens', config: { budget: { run: { max_tokens: 500 } } } },
  { way: 'max_cost', config: { budget: { run: { max_cost_usd: 0.45 } } } },
  { way: 'max_seconds', config: { budget: { run: { max_seconds: 45 } } } },
  { way: 'max_iterations of the session', config: { budget: { session: { max_iterations: 6 } } } },
  {
    way: 'max_tool_calls of the session',
    config: { budget: { session: { max_tool_calls: 7 } } },
    script: twoCalls,
  },
  { way: 'max_tokens of the session', config: { budget: { session: { max_tokens: 500 } } } },
  { way: 'max_cost of the session', config: { budget: { session: { max_cost_usd: 0.45 } } } },
  { way: 'max_seconds of the session', config: { budget: { session: { max_seconds: 45 } } } },
  { way: 'the loop guard', config: { budget: { max_iterations: 30 } }, script: stuck },
  { way: 'an operator', config: { budget: { max_iterations: 30 } }, operator: ['stop'] },
  {
    way: 'a limit that an operator lowered',
    config: { budget: { max_iterations: 30 } },
    operator: ['budget', { max_iterations: 2 }],
  },
]

/** The numbers of a session that must not move any more once it has ended. */
function numbersOf(shown: Shown) {
  const { iteration, max_iterations, total_iterations, tool_calls, tokens, cost_usd, meters, terminal } = shown
  const { threads, runs, iterations } = shown
  return {
    row: { iteration, max_iterations, total_iterations, tool_calls, tokens, cost_usd },
    meters,
    terminal,
    threads: threads.map(({ iteration: at, max_iterations: max, meters: own }) => ({ at, max, own })),
    runs: runs.map(({ iterations: steps, tool_calls: calls, tokens: used, cost_usd: cost }) => ({
      steps,
      calls,
      used,
      cost,
    })),
    iterations,
  }
}

async function printed(url: string, ...args: readonly string[]): Promise<string> {
  const terminal = captureTerminal()
  await run([...args, '--url', url], terminal)
  return terminal.printed
}

async function ended({ config, script = runaway(), operator }: Way) {
  const time = { now: 1_800_000_000_000 }
  const ticking: Script = (request, number) => {
    time.now += 10_000
    return script(request, number)
  }
  const both = await startBoth(
    ticking,
    { models: MODELS, loop_guard: { enabled: script === stuck }, ...config },
    {
      now: () => time.now,
    },
  )
  if (!operator) return { ...both, time, ...(await runAgent(both.url, START, ONE)) }
  const first = await runAgent(both.url, START, { ...ONE, max: 3 })
  await act(both.url, (await firstSession(both.url)).id, ...operator)
  return { ...both, time, ...(await runAgent(both.url, first.messages, ONE)) }
}

describe.each(WAYS)('the numbers of a run that is ended by $way', (way) => {
  it('agree wherever they are said, and none exceeds its limit', async () => {
    const { url, logs, steps } = await ended(way)
    const shown = await firstSession(url)
    const [row] = await listed(url)
    const { terminal, threads, runs } = shown
    const [thread] = threads
    const used = (name: string, from = thread?.meters) => from?.find((meter) => meter.name === name)
    const name = String(terminal?.terminal_reason).replace('max_', '')
    const meters = [used(name) ?? used('iterations'), used(name, shown.meters)]
    const own = meters.find((meter) => meter?.max === terminal?.budget_max)
    expect(terminal?.budget_used).toBe(name === 'seconds' ? Math.floor(Number(own?.used)) : own?.used)
    for (const { used: some, max } of [...shown.meters, ...threads.flatMap(({ meters }) => meters)])
      if (max > 0) expect(some).toBeLessThanOrEqual(max)
    const iteration = Number(used('iterations')?.used)
    expect([shown.iteration, row?.iteration, thread?.iteration, runs.at(-1)?.iterations]).toEqual(
      Array(4).fill(iteration),
    )
    // A limit that was lowered below what had been used already is the only one that a step may exceed.
    const last = Math.max(...shown.iterations.map((one) => one.iteration))
    expect(last).toBe(way.way.includes('lowered') ? 3 : iteration)
    expect(shown.total_iterations).toBe(last)
    const said = steps.at(-1)?.headers.get('x-governor-iteration')
    expect(said).toBe(shown.max_iterations > 0 ? `${iteration}/${shown.max_iterations}` : String(iteration))
    const lines = logs.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'request')
    expect(lines.at(-1)).toMatchObject({ iteration, session_id: shown.id })
    const list = await printed(url, 'sessions')
    expect(list).toContain(limitText(shown, '/', 11))
    if (shown.limit)
      expect([...shown.meters, ...(thread?.meters ?? [])].map((one) => one.used)).toContain(shown.limit.used)
  })

  it('do not move any more, whatever its agent does and however much time goes by', async () => {
    const { url, time, messages } = await ended(way)
    const before = numbersOf(await firstSession(url))
    let transcript: readonly ChatMessage[] = messages
    for (let more = 0; more < 4; more++) {
      time.now += 1_000_000
      const calls = [{ id: `x${more}`, type: 'function' as const, function: { name: 'x', arguments: `{"n":${more}}` } }]
      const message = { role: 'assistant' as const, content: null, tool_calls: calls }
      transcript = [...transcript, message, { role: 'tool', tool_call_id: `x${more}`, content: 'nothing' }]
      await callModel(url, transcript, ONE)
      expect(numbersOf(await firstSession(url))).toEqual(before)
    }
  })
})

describe('the seconds of a run that its agent has ended', () => {
  it('are those until its last answer', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(
      () => {
        time.now += 10_000
        return { text: 'Done.' }
      },
      { budget: { run: { max_seconds: 500 } } },
      { now: () => time.now },
    )
    await runAgent(url, START, ONE)
    const seconds = async () =>
      (await firstSession(url)).threads[0]?.meters.find(({ name }) => name === 'seconds')?.used
    for (let more = 0; more < 4; more++) {
      expect(await seconds()).toBe(10)
      time.now += 200_000
    }
  })
})
