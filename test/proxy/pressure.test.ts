import { describe, expect, it } from 'vitest'
import { afterStep, callModel, runAgent, START, type Step } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { type ChatMessage, type Received, runaway, type Script } from '../support/provider.ts'

/** Each call of the scripted model takes 110 tokens, costs ten cents and ten seconds. */
const models = [{ model: 'gpt-test', price: { input: 1_000, output: 0 } }]
const SECONDS = 10

/** A provider whose answers take time on a test clock, and that clock. */
function takingTime(script: Script) {
  let time = 1_760_000_000_000
  const timed: Script = (request, number) => {
    time += SECONDS * 1_000
    return script(request, number)
  }
  return { script: timed, now: () => time }
}

/** A step that was not requested from the model: it calls search. */
function searching(id: string, text: string): Step {
  const message = { role: 'assistant', tool_calls: [{ id, function: { name: 'search', arguments: text } }] }
  return { message } as unknown as Step
}

interface Case {
  readonly meter: string
  readonly budget: Record<string, unknown>
  /** The first request that is cautioned, the first that is warned; the one after the last is stopped. */
  readonly caution: number
  readonly warning: number
  readonly says: (request: number) => { name: string; used: string; max: string; left: string; unit: string }
  readonly reason: string
  readonly state: string
  readonly used: number
}

const CASES: readonly Case[] = [
  {
    meter: 'iterations',
    budget: { max_iterations: 10 },
    caution: 7,
    warning: 9,
    says: (n) => ({ name: 'Iteration', used: `${n}`, max: '10', left: `${10 - n}`, unit: ' iterations' }),
    reason: 'max_iterations',
    state: 'tool_limit_reached',
    used: 10,
  },
  {
    meter: 'tool_calls',
    budget: { run: { max_tool_calls: 10 } },
    caution: 8,
    warning: 10,
    says: (n) => ({ name: 'Tool call', used: `${n - 1}`, max: '10', left: `${11 - n}`, unit: ' tool calls' }),
    reason: 'max_tool_calls',
    state: 'tool_limit_reached',
    used: 10,
  },
  {
    meter: 'tokens',
    budget: { run: { max_tokens: 1_100 } },
    caution: 8,
    warning: 10,
    says: (n) => ({
      name: 'Tokens',
      used: `${110 * (n - 1)}`,
      max: '1.1k',
      left: `${110 * (11 - n)}`,
      unit: ' tokens',
    }),
    reason: 'max_tokens',
    state: 'budget_exceeded',
    used: 1_100,
  },
  {
    meter: 'cost',
    budget: { run: { max_cost_usd: 1 } },
    caution: 8,
    warning: 10,
    says: (n) => ({ name: 'Cost', used: `$0.${n - 1}0`, max: '$1.00', left: `$0.${11 - n}0`, unit: '' }),
    reason: 'max_cost',
    state: 'budget_exceeded',
    used: 1,
  },
  {
    meter: 'seconds',
    budget: { run: { max_seconds: 100 } },
    caution: 8,
    warning: 10,
    says: (n) => ({
      name: 'Time',
      used: `${10 * (n - 1)}s`,
      max: '100s',
      left: `${10 * (11 - n)}s`,
      unit: '',
    }),
    reason: 'max_seconds',
    state: 'budget_exceeded',
    used: 100,
  },
  {
    meter: 'session tool_calls',
    budget: { session: { max_tool_calls: 10 } },
    caution: 8,
    warning: 10,
    says: (n) => ({ name: 'Tool call', used: `${n - 1}`, max: '10', left: `${11 - n}`, unit: ' tool calls' }),
    reason: 'max_tool_calls',
    state: 'tool_limit_reached',
    used: 10,
  },
]

const STYLES = ['tiers', 'countdown'] as const
const CHANNELS = ['auto', 'tool_result', 'system', 'user'] as const

function noticeOf(style: (typeof STYLES)[number], tier: string, said: ReturnType<Case['says']>): string {
  if (style === 'countdown') {
    const advice = tier === 'warning' ? 'finalize now' : 'wrap up soon'
    return `[budget: ${said.left} of ${said.max}${said.unit} left — ${advice}]`
  }
  const end =
    tier === 'warning'
      ? 'You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]'
      : `You have ${said.left}${said.unit} left. Start consolidating your work and prepare to provide a final response.]`
  return `[BUDGET: ${said.name} ${said.used}/${said.max}. ${end}`
}

/** Returns the text in the place of the channel; checks that the original messages are before it. */
function toldIn({ json: { messages } }: Received, channel: (typeof CHANNELS)[number]) {
  const last = messages.at(-1)
  const isOwn = channel === 'system' || channel === 'user'
  return { role: last?.role, text: String(last?.content), count: messages.length - (isOwn ? 1 : 0) }
}

const TABLE = CASES.flatMap((one) =>
  STYLES.flatMap((style) =>
    CHANNELS.flatMap((channel) => [false, true].map((stream) => ({ ...one, style, channel, stream }))),
  ),
)

describe.each(TABLE)('the meter $meter, style $style, channel $channel, streamed: $stream', (one) => {
  const { caution, warning, style, channel, stream } = one

  it('warns and stops at the numbers that its notices state', async () => {
    const { script, now } = takingTime(runaway())
    const base = { max_iterations: 0, adaptive: false, escalate: false, style, channel }
    const { url, provider } = await startBoth(
      script,
      { models, loop_guard: { enabled: false }, budget: { ...base, ...one.budget } },
      { now },
    )
    const { steps } = await runAgent(url, START, { stream, max: 20 })
    expect(steps).toHaveLength(11)
    // A countdown covers only the last three; for iterations, the current one is not among them.
    const isCountdown = style === 'countdown' && one.meter === 'iterations'
    const tiers = steps.slice(0, 10).map((_, at) => {
      if (at + 1 >= (isCountdown ? 9 : warning)) return 'warning'
      return at + 1 >= (isCountdown ? 7 : caution) ? 'caution' : null
    })
    expect(steps.slice(0, 10).map(({ headers }) => headers.get('x-governor-tier'))).toEqual(tiers)
    for (const [at, tier] of tiers.entries()) {
      const request = provider.requests[at]
      if (!request) throw new Error('no such request')
      if (!tier) {
        expect(request.body.toString()).not.toMatch(/\[budget/i)
        continue
      }
      const told = toldIn(request, channel)
      const notice = noticeOf(style, tier, one.says(at + 1))
      const isOwn = channel === 'system' || channel === 'user'
      expect(told).toEqual({
        role: isOwn ? channel : 'tool',
        text: isOwn ? notice : `the result of search\n\n${notice}`,
        count: 2 + 2 * at,
      })
    }
    const last = steps.at(-1)
    expect(last?.governor).toMatchObject({
      terminal_state: one.state,
      terminal_reason: one.reason,
      has_final_answer: true,
      budget_used: one.used,
      budget_max: one.used,
    })
    expect(last?.finish).toBe('stop')
    expect(last?.headers.get('x-governor-terminal-reason')).toBe(one.reason)
  })
})

describe('a limit of a session', () => {
  const header = (run: string) => ({ 'x-governor-session': 's', 'thread-id': run })

  it('adds up over the runs and the sub-agents in it', async () => {
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 0, session: { max_iterations: 10 } },
      loop_guard: { enabled: false },
    })
    const agents = await Promise.all(
      ['a', 'b', 'c'].map((name) => runAgent(url, START, { headers: header(name), max: 20 })),
    )
    const counts = agents.map(({ steps }) => steps.length)
    // Ten for all of them, and each is asked for its last answer.
    expect(counts.reduce((sum, count) => sum + count, 0)).toBe(10 + 3)
    for (const { steps } of agents) {
      expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations', budget_max: 10 })
    }
  })

  it('still holds in the next run, and each run is asked for an answer once', async () => {
    const { url, provider } = await startBoth(runaway(), {
      budget: { max_iterations: 0, session: { max_tokens: 330 } },
      loop_guard: { enabled: false },
    })
    const first = await runAgent(url, START, { headers: header('a') })
    expect(first.steps).toHaveLength(4)
    const more = [...first.messages, { role: 'user', content: 'Go on.' }]
    const second = await runAgent(url, more, { headers: header('a') })
    expect(second.steps).toHaveLength(1)
    expect(second.steps[0]?.governor).toMatchObject({ terminal_reason: 'max_tokens', budget_max: 330 })
    expect(provider.requests).toHaveLength(5)
  })

  it('stays reached when the client sends the stopped request again or a new one', async () => {
    const { url, provider } = await startBoth(runaway(), {
      budget: { max_iterations: 0, session: { max_iterations: 3 } },
      loop_guard: { enabled: false },
    })
    const { steps, messages } = await runAgent(url, START, { headers: header('a') })
    expect(steps).toHaveLength(4)
    const asked = provider.requests.length
    const stopped = messages.slice(0, -1)
    const more = afterStep(stopped, searching('x', '{}'))
    for (const again of [stopped, messages, more, more]) {
      const step = await callModel(url, again, { headers: header('a') })
      expect(step.governor).toEqual(steps[3]?.governor)
      expect(step.message.content).toBe(steps[3]?.message.content)
    }
    expect(provider.requests).toHaveLength(asked)
  })

  it('ends a run for good, even if the limit of the run itself is not reached', async () => {
    const { url, provider } = await startBoth(runaway(), {
      budget: { max_iterations: 4, session: { max_iterations: 2 } },
      loop_guard: { enabled: false },
    })
    const { steps, messages } = await runAgent(url, START, { headers: header('a') })
    expect(steps).toHaveLength(3)
    let transcript: readonly ChatMessage[] = messages.slice(0, -1)
    for (let more = 0; more < 4; more++) {
      transcript = afterStep(transcript, searching(`x${more}`, `{"n":${more}}`))
      const step = await callModel(url, transcript, { headers: header('a') })
      expect(step.governor).toEqual(steps[2]?.governor)
    }
    expect(provider.requests).toHaveLength(3)
  })

  it('still counts a run whose own limit was raised after a stop', async () => {
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 3, session: { max_iterations: 6 } },
      loop_guard: { enabled: false },
    })
    const first = await runAgent(url, START, { headers: header('a') })
    expect(first.steps).toHaveLength(4)
    const raised = { ...header('a'), 'x-governor-max-iterations': '50' }
    const second = await runAgent(url, first.messages.slice(0, -1), { headers: raised, max: 10 })
    expect(second.steps).toHaveLength(4)
    expect(second.steps.at(-1)?.governor).toMatchObject({ budget_used: 6, budget_max: 6 })
  })

  it('counts no request without an answer and no retry', async () => {
    const { url } = await startBoth(
      (request, number) => (number % 2 === 1 ? { status: 503, body: {} } : runaway()(request, number)),
      { budget: { max_iterations: 0, session: { max_iterations: 3 } }, loop_guard: { enabled: false } },
    )
    const headers = header('a')
    let messages: readonly ChatMessage[] = START
    for (const decision of ['warn', 'warn', 'warn', 'stop']) {
      const failed = await callModel(url, messages, { headers })
      expect(failed.status).toBe(503)
      const step = await callModel(url, messages, { headers })
      expect(step.headers.get('x-governor-verdict')).toBe(decision)
      messages = afterStep(messages, step)
    }
  })
})

describe('the price of a model', () => {
  it('that is in the catalogue counts from the first answer on', async () => {
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 0, run: { max_cost_usd: 0.0006 } },
    })
    // 100 tokens of prompt and 10 of answer: $0.00035.
    const { steps } = await runAgent(url, START, { body: { model: 'gpt-4o' } })
    expect(steps).toHaveLength(3)
    expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_cost', budget_max: 0.0006 })
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toMatch(/governor_cost_usd_total\{upstream="openai",model="[\w.-]+"\} 0\.00\d+/)
  })
})

describe('parallel tool calls', () => {
  it('are each counted', async () => {
    const calls = ['a', 'b', 'c'].map((query) => ({ name: 'search', arguments: { query } }))
    const { url, provider } = await startBoth(
      ({ json }) => (json.tool_choice === 'none' ? { text: 'done' } : { calls }),
      {
        budget: { max_iterations: 0, style: 'countdown', run: { max_tool_calls: 7 } },
        loop_guard: { enabled: false },
      },
    )
    const { steps } = await runAgent(url, START)
    expect(steps).toHaveLength(4)
    expect(provider.requests[2]?.body.toString()).toContain('[budget: 1 of 7 tool calls left — finalize now]')
    expect(steps.at(-1)?.governor).toMatchObject({ budget_used: 7, budget_max: 7 })
  })
})

describe('a context window that is nearly full', () => {
  const stating =
    (prompt: number): Script =>
    ({ json }, number) => {
      const call = {
        id: `c${number}`,
        type: 'function',
        function: { name: 'search', arguments: `{"q":${number}}` },
      }
      return {
        body: {
          id: 'x',
          model: json.model,
          choices: [{ index: 0, message: { role: 'assistant', content: null, tool_calls: [call] } }],
          usage: { prompt_tokens: prompt, completion_tokens: 0 },
        },
      }
    }
  const config = { models: [{ model: 'gpt-test', context_window: 10_000 }] }

  it.each([
    [7_900, undefined],
    [
      8_000,
      '[CONTEXT: 8k/10k tokens used. You have 2k tokens left. Start consolidating your work and prepare to provide a final response.]',
    ],
    [
      9_250,
      '[CONTEXT: 9.2k/10k tokens used. You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]',
    ],
  ])('at %i of 10,000 tokens gets this notice: %s', async (prompt, notice) => {
    const { url, provider } = await startBoth(stating(prompt), config)
    await runAgent(url, START, { max: 2, headers: { 'x-governor-session': 's' } })
    const told = String(provider.requests[1]?.json.messages.at(-1)?.content)
    expect(told).toBe(notice ? `the result of search\n\n${notice}` : 'the result of search')
  })

  it('gets no notice after the history was compacted', async () => {
    const { url, provider } = await startBoth(stating(9_500), config)
    const headers = { 'x-governor-session': 's' }
    const long = [...START, { role: 'user', content: 'x'.repeat(20_000) }]
    await runAgent(url, long, { max: 2, headers })
    expect(provider.requests[1]?.body.toString()).toContain('[CONTEXT')
    await runAgent(url, [...START, { role: 'user', content: 'Go on.' }], { max: 1, headers })
    expect(provider.requests[2]?.body.toString()).not.toContain('[CONTEXT')
  })
})
