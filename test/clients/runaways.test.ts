/** Agents of the official package in a loop: they are warned, their calls are blocked, and the model's own answer ends them. */
import { setMaxListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Answer, Script } from '../support/provider.ts'
import { OPENAI_CLIENTS } from '../support/versions.ts'

/** A model that makes the same calls despite all notices, until it may call no tool. */
function stubborn(callAt: (step: number) => Answer): Script {
  let step = 0
  return ({ json }) => (json.tool_choice === 'none' ? { text: 'I could not find it.' } : callAt(step++))
}

const search = (query: string): Answer => ({
  calls: [{ name: 'search', arguments: JSON.stringify({ query }) }],
})
const fixed = () => 'nothing to be found'

type Agent = (typeof OPENAI_CLIENTS)[number] & { readonly stream: boolean; readonly turn: number }

interface Outcome {
  readonly executed: number
  readonly answer: string | null
  readonly requests: number
  readonly verdicts: (string | null)[]
  readonly metrics: string
}

async function run({ OpenAI, stream }: Agent, script: Script, result: (at: number) => string): Promise<Outcome> {
  const { url, provider } = await startBoth(script)
  const verdicts: (string | null)[] = []
  const client = new OpenAI({
    apiKey: 'sk-test',
    baseURL: `${url}/v1`,
    fetch: async (...request) => {
      const response = await fetch(...request)
      verdicts.push(response.headers.get('x-governor-verdict'))
      return response
    },
  })
  let executed = 0
  const tool = {
    type: 'function' as const,
    function: {
      name: 'search',
      description: 'Searches.',
      parameters: { type: 'object', properties: {} },
      parse: JSON.parse,
      function: () => result(executed++),
    },
  }
  const body = {
    model: 'gpt-test',
    messages: [{ role: 'user' as const, content: 'Find it.' }],
    tools: [tool],
  }
  const options = { maxChatCompletions: 40 }
  const runner = stream
    ? client.chat.completions.runTools({ ...body, stream: true }, options)
    : client.chat.completions.runTools(body, options)
  // The client adds a listener to this signal for each request.
  setMaxListeners(0, runner.controller.signal)
  const answer = await runner.finalContent()
  const metrics = await (await fetch(`${url}/metrics`)).text()
  return { executed, answer, requests: provider.requests.length, verdicts, metrics }
}

const AGENTS = OPENAI_CLIENTS.flatMap((client, at) =>
  [false, true].map((stream): Agent => ({ ...client, stream, turn: (at + Number(stream)) % 2 })),
)

/** What agents do: the call of a step, its result, and the pattern of that loop. */
type Habit = readonly [string, (step: number) => Answer, (at: number) => string, string]

const LOOPS: readonly Habit[] = [
  ['repeats one call', () => search('x'), fixed, 'repetition'],
  ['alternates two calls', (step) => search(step % 2 ? 'x' : 'y'), fixed, 'ping_pong'],
  ['repeats three calls in turn', (step) => search(['x', 'y', 'z'][step % 3] ?? ''), fixed, 'cycle'],
  [
    'changes only the order of keys',
    (step) => ({
      calls: [{ name: 'search', arguments: step % 2 ? '{"a":1,"b":2}' : '{ "b": 2, "a": 1 }' }],
    }),
    fixed,
    'repetition',
  ],
  [
    'gets results that differ in what its harness adds to each',
    () => search('x'),
    (at) => `Chunk ID: ${(0x70e5d1 + at).toString(16)}\nWall time: 0.00${at} seconds\nOutput:\nnothing`,
    'repetition',
  ],
]

const WORK: readonly (readonly [string, Habit[1], Habit[2]])[] = [
  ['pages', (step) => ({ calls: [{ name: 'search', arguments: JSON.stringify({ page: step }) }] }), fixed],
  ['works off a list with one result', (step) => search(`item ${step}`), fixed],
  ['polls', () => ({ calls: [{ name: 'search', arguments: '{"action":"status"}' }] }), (at) => `${at} of 30 done`],
]

describe.each(AGENTS)('an agent with $name (stream: $stream)', (agent) => {
  // Each habit is tried with both versions, whole and streamed: half of all combinations.
  const isTheirTurn = (_: unknown, at: number) => at % 2 === agent.turn

  it.each(LOOPS.filter(isTheirTurn))(
    'that %s is warned, then has its calls blocked, and ends with its model’s own answer',
    async (_, callAt, result, pattern) => {
      const { executed, answer, requests, verdicts, metrics } = await run(agent, stubborn(callAt), result)
      expect(answer).toBe('I could not find it.')
      expect(verdicts.filter((verdict) => verdict === 'warn')).toHaveLength(2)
      expect(verdicts.at(-1)).toBe('stop')
      expect(executed).toBe(verdicts.length - 1)
      // The blocked response, two more, and the answer.
      expect(requests).toBe(verdicts.length + 3)
      expect(metrics).toContain(`governor_loops_total{pattern="${pattern}",tool="search",action="blocked"} 3`)
    },
  )

  it('that gets results that differ in times and ids is warned once and never blocked', async () => {
    const resultAt = (at: number) =>
      `2026-01-02T03:04:${String(at % 60).padStart(2, '0')}Z pid ${4000 + at} took ${at}ms: nothing`
    const script = stubborn((step) => (step === 30 ? { text: 'All done.' } : search('x')))
    const { answer, verdicts } = await run(agent, script, resultAt)
    expect(answer).toBe('All done.')
    expect(verdicts.filter((verdict) => verdict !== 'allow')).toEqual(['warn'])
  })

  it.each(WORK.filter(isTheirTurn))('that %s is never blocked or stopped', async (_, callAt, result) => {
    const script: Script = stubborn((step) => (step === 30 ? { text: 'All done.' } : callAt(step)))
    const { answer, verdicts, metrics } = await run(agent, script, result)
    expect(answer).toBe('All done.')
    expect(verdicts).not.toContain('block')
    expect(verdicts).not.toContain('stop')
    expect(metrics).not.toContain('action="blocked"')
  })
})
