import { describe, expect, it } from 'vitest'
import { DEFAULT_TEXTS } from '../../src/core/budget/budget-notices.ts'
import { amountsBy, type TimeMeter } from '../../src/core/budget/meters.ts'
import { type BudgetPolicy, decide, decideInStorm, decideWithoutBudget, observeOnly } from '../../src/core/decide.ts'
import type { RunState } from '../../src/core/session/session.ts'
import { type FinalAnswer, terminalOf } from '../../src/core/terminal.ts'
import { BUDGET, newSession, user } from './transcript.ts'

const NO_LIMITS = amountsBy(() => 0)

const POLICY: BudgetPolicy = { ...BUDGET, run: { ...NO_LIMITS, iterations: 20 } }

const at = (iteration: number, toolCalls = 0, more: Partial<RunState> = {}): RunState => ({
  ...newSession().see([user('Fix the bug.')]),
  iteration,
  used: { ...NO_LIMITS, iterations: iteration, tool_calls: toolCalls },
  usedBySession: { ...NO_LIMITS, iterations: iteration, tool_calls: toolCalls },
  ...more,
})
const meter = { name: 'iterations', used: 21, max: 20 } as const
const ended: FinalAnswer = {
  text: 'Done.',
  model: 'gpt-4o',
  terminal: terminalOf({ meter }, 'session', true),
}

describe('the verdict', () => {
  it.each([
    [13, 'allow'],
    [14, 'warn'],
    [20, 'warn'],
    [21, 'stop'],
  ] as const)('on iteration %i of 20 is %s', (iteration, kind) => {
    expect(decide({ runState: at(iteration), policy: POLICY }).kind).toBe(kind)
  })

  it('is a warning with the tier and its sentence', () => {
    expect(decide({ runState: at(18), policy: POLICY })).toEqual({
      kind: 'warn',
      verdict: 'warn',
      resumesRun: false,
      speech: {
        tier: 'warning',
        meter: { name: 'iterations', used: 18, max: 20 },
        channel: 'auto',
        dropTools: [],
        notice:
          '[BUDGET: Iteration 18/20. You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]',
      },
    })
  })

  it('is a stop with the limit, the request for an answer and the fallback text', () => {
    expect(decide({ runState: at(21), policy: POLICY })).toEqual({
      kind: 'stop',
      verdict: 'stop',
      speech: { notice: DEFAULT_TEXTS.stop, channel: 'auto', dropTools: [] },
      limit: { meter },
      fallback: '(Reached max iterations: 20)',
    })
  })

  it('repeats the answer of a stopped run, and allows requests again once its budget is raised', () => {
    const runState = { ...at(22), finalAnswer: ended }
    expect(decide({ runState, policy: POLICY })).toEqual({ kind: 'replay', verdict: 'stop', answer: ended })
    const raised = { ...POLICY, run: { ...POLICY.run, iterations: 90 } }
    expect(decide({ runState, policy: raised })).toEqual({
      kind: 'allow',
      verdict: 'allow',
      resumesRun: true,
    })
  })

  it('allows everything when there is no limit or the budget is turned off', () => {
    const allowed = { kind: 'allow', verdict: 'allow', resumesRun: false }
    const unlimited = { ...POLICY, run: NO_LIMITS }
    expect(decide({ runState: at(100_000, 100_000), policy: unlimited })).toEqual(allowed)
    const turnedOff: BudgetPolicy = { ...POLICY, enabled: false }
    const { run, ...others } = at(100_000)
    const announced = { ...NO_LIMITS, iterations: 20 }
    expect(decide({ runState: { ...others, run: { ...run, announced } }, policy: turnedOff })).toEqual(allowed)
  })

  it('is a stop that names the tool calls when they are used up first', () => {
    const both = { ...POLICY, run: { ...POLICY.run, tool_calls: 8 } }
    expect(decide({ runState: at(5, 8), policy: both })).toMatchObject({
      kind: 'stop',
      limit: { meter: { name: 'tool_calls', max: 8 } },
    })
    expect(decide({ runState: at(5, 7), policy: both })).toMatchObject({
      kind: 'warn',
      speech: { notice: expect.stringContaining('Tool call 7/8') },
    })
  })

  it('comes with an announcement of the budget in the same words in every request of a run', () => {
    const announced = { ...NO_LIMITS, iterations: 20 }
    const words = [1, 13, 14, 20, 21].map((iteration) => {
      const runState = at(iteration)
      const run = { ...runState.run, announced }
      return decide({ runState: { ...runState, run }, policy: POLICY }).speech?.announcement
    })
    expect(new Set(words)).toEqual(
      new Set([
        "Tool budget: you have 20 iterations total. Pace yourself: if you can't fully resolve the task, stop early and return what you have plus the gap, rather than burning the budget on one branch.",
      ]),
    )
  })
})

describe('a decision that depends on more than the budget', () => {
  const storm = { error: { status: 529, contentType: 'text/plain', body: '' }, retryAfter: 5, errors: 9 }

  it("allows an agent's own request for its final answer, without a warning or a caution", () => {
    const limit = { meter: { name: 'iterations', used: 18, max: 20 } }
    expect(decide({ runState: at(18), policy: POLICY, asksForSummary: true, mayBlock: true })).toMatchObject({
      kind: 'self_stop',
      verdict: 'allow',
      limit,
    })
  })

  it('stops an agent at its limit without a notice when the agent asks for its final answer itself', () => {
    const decision = decide({ runState: at(21), policy: POLICY, asksForSummary: true })
    expect(decision).toMatchObject({ kind: 'stop', verdict: 'stop' })
    expect(decision.speech?.notice).toBeUndefined()
  })

  it('filters the calls of a response when one may be blocked, and can warn in the same request', () => {
    const filtered = (iteration: number) => decide({ runState: at(iteration), policy: POLICY, mayBlock: true })
    expect(filtered(1)).toMatchObject({ kind: 'filter_calls', verdict: 'allow' })
    expect(filtered(18)).toMatchObject({
      kind: 'filter_calls',
      verdict: 'warn',
      speech: { tier: 'warning' },
    })
  })

  it.each([
    [1, 'allow'],
    [18, 'warn'],
    [21, 'stop'],
  ] as const)(
    'tells the client to wait during a storm of errors on iteration %i of 20, with verdict %s',
    (iteration, verdict) => {
      const runState = at(iteration)
      const decision = decide({ runState, policy: POLICY, mayBlock: true })
      expect(decideInStorm(decision, storm)).toMatchObject({
        kind: 'wait',
        verdict,
        storm,
      })
    },
  )

  it('replays the answer of a run that is over, also in a storm and after a fault in the budget', () => {
    const over = { runState: at(22, 0, { finalAnswer: ended }), policy: POLICY }
    const replayed = { kind: 'replay', verdict: 'stop', answer: ended }
    expect(decideInStorm(decide(over), storm)).toEqual(replayed)
    expect(decideWithoutBudget(over)).toEqual(replayed)
    expect(decideWithoutBudget({ runState: at(21), policy: POLICY })).toMatchObject({ kind: 'stop' })
  })

  it('stops a run for an operator also in a storm of errors', () => {
    const { run, ...rest } = at(5)
    const runState = { ...rest, run: { ...run, operator: { isStopAsked: true } } }
    const decision = decide({ runState, policy: POLICY })
    expect(decision).toMatchObject({ kind: 'stop', limit: { reason: 'operator' } })
    expect(decideInStorm(decision, storm)).toBe(decision)
  })

  it('allows a request in another form after the end of a run, and does not resume the run', () => {
    const runState = at(22, 0, { finalAnswer: ended, asksForOtherForm: true })
    expect(decide({ runState, policy: POLICY, mayBlock: true })).toMatchObject({
      kind: 'allow',
      resumesRun: false,
    })
  })
})

/** A limit of a day. */
const today = (name: TimeMeter['name'], used: number, max: number): TimeMeter => {
  const time = { scope: 'day', resetsAt: 0, resets: 'midnight', left: Math.max(0, max - used), step: 1 } as const
  return { name, used, max, scope: 'day', time }
}
const guardEnd = { guard: 'max_agents', askText: 'Answer.', fallback: 'No more.' } as const

describe('the end of a run', () => {
  it('by an operator or a guard states the iterations that were made, without the request that is stopped', () => {
    const { run, ...rest } = at(5)
    const runState = { ...rest, run: { ...run, operator: { isStopAsked: true } } }
    for (const input of [{ runState }, { runState: at(5), guardEnd }])
      expect(decide({ ...input, policy: POLICY })).toMatchObject({ limit: { meter: { used: 4, max: 20 } } })
  })

  it('stays where a guard would end the run once more', () => {
    const runState = at(22, 0, { finalAnswer: ended })
    expect(decide({ runState, policy: POLICY, guardEnd })).toMatchObject({ kind: 'replay', answer: ended })
  })

  it('stays where the price of the model is not known any more', () => {
    const policy = { ...POLICY, run: { ...POLICY.run, cost: 5 }, unknownPrice: 'refuse' } as const
    const input = { policy, isUnpriced: true, contextWindow: 0 }
    expect(decide({ ...input, runState: at(3, 0, { finalAnswer: ended }) })).toMatchObject({ kind: 'replay' })
    const { run, ...others } = at(3)
    const announced = { ...NO_LIMITS, iterations: 20 }
    const refused = decide({ ...input, runState: { ...others, run: { ...run, announced } } })
    expect(refused).toMatchObject({ kind: 'stop', unsent: 'unpriced', limit: { meter: { name: 'cost', max: 5 } } })
    expect(refused.speech).toMatchObject({ notice: undefined, announcement: undefined })
  })

  it('is another one at an equal limit of another scope', () => {
    const policy = { ...POLICY, session: { ...NO_LIMITS, iterations: 40 } }
    const terminal = terminalOf({ meter: { ...meter, scope: 'session' } }, 'session', true)
    expect(decide({ runState: at(21, 0, { finalAnswer: { ...ended, terminal } }), policy })).toMatchObject({
      kind: 'stop',
      limit: { meter: { max: 20 } },
    })
    expect(decide({ runState: at(21, 0, { finalAnswer: ended }), policy })).toMatchObject({ kind: 'replay' })
  })

  it('of several limits that are reached names the first', () => {
    const policy = { ...POLICY, run: { ...POLICY.run, tool_calls: 8 } }
    expect(decide({ runState: at(21, 9), policy })).toMatchObject({ limit: { meter: { name: 'iterations' } } })
  })

  it('with a call is asked for anew by a client that lost it, and else repeated', () => {
    const finalAnswer = { ...ended, isCall: true } as const
    const decided = (isRetry: boolean) => decide({ runState: at(21, 0, { finalAnswer, isRetry }), policy: POLICY }).kind
    expect([decided(true), decided(false)]).toEqual(['stop', 'replay'])
  })

  it('costs no model call where a limit of a day is reached before the run begins', () => {
    const time = { enforced: [today('cost', 20, 20)], observed: [] }
    const stopped = (iteration: number) => decide({ runState: at(iteration), policy: POLICY, time })
    expect(stopped(1)).toMatchObject({ kind: 'stop', unsent: 'closed', speech: { notice: undefined } })
    expect(stopped(2)).toMatchObject({ kind: 'stop', speech: { notice: expect.stringContaining("today's cost") } })
    expect(stopped(2)).not.toHaveProperty('unsent')
  })

  it('is only noted at limits that are only observed', () => {
    const time = { enforced: [], observed: [today('cost', 20, 20)] }
    expect(decide({ runState: at(2), policy: POLICY, time })).toMatchObject({ kind: 'allow', observed: 'stop' })
    const replayed = decide({ runState: at(22, 0, { finalAnswer: ended }), policy: POLICY })
    expect(observeOnly(replayed)).toMatchObject({ kind: 'allow', resumesRun: true, observed: 'stop' })
  })
})

/** A limit on the rate. */
const rate = (used: number, max: number): TimeMeter => {
  const time = { resetsAt: 0, resets: '', left: Math.max(0, max - used) }
  return { name: 'tokens', used, max, scope: 'minute', time }
}

describe('a limit on the rate', () => {
  const slows = { limits: NO_LIMITS, minutes: 1, slows: true, isObserved: true }
  const decideAt = (time: Partial<Record<'enforced' | 'observed' | 'slowing', TimeMeter[]>>, policy = POLICY) =>
    decide({ runState: at(2), policy, time: { enforced: [], observed: [], ...time } })

  it('that slows makes the request wait once it is reached', () => {
    expect(decideAt({ slowing: [rate(9, 10)] })).not.toHaveProperty('slowedBy')
    const slowed = decideAt({ slowing: [rate(10, 10)] })
    expect(slowed).toMatchObject({ kind: 'allow', verdict: 'allow', slowedBy: { used: 10, max: 10 } })
    expect(observeOnly(slowed)).toMatchObject({ kind: 'allow', observed: 'slow' })
  })

  it('that is only observed is noted by what it would do', () => {
    expect(decideAt({ observed: [rate(10, 10)] })).toMatchObject({ kind: 'allow', observed: 'stop' })
    expect(decideAt({ observed: [rate(10, 10)] }, { ...POLICY, velocity: slows })).toMatchObject({ observed: 'slow' })
    const both = { observed: [today('cost', 20, 20)], slowing: [rate(10, 10)] }
    expect(decideAt(both, { ...POLICY, velocity: slows })).toMatchObject({ observed: 'stop', slowedBy: { max: 10 } })
  })

  it('that ended a run keeps it ended when the rate falls, until the limit is raised', () => {
    const runState = at(3, 0, { finalAnswer: { ...ended, terminal: terminalOf({ meter: rate(10, 10) }, 's', true) } })
    const decided = (meter: TimeMeter) =>
      decide({ runState, policy: POLICY, time: { enforced: [meter], observed: [] } })
    expect([decided(rate(10, 10)).kind, decided(rate(1, 10)).kind]).toEqual(['replay', 'replay'])
    expect(decided(rate(1, 99))).toMatchObject({ kind: 'allow', resumesRun: true })
    const ofRun = decide({ runState: at(3, 0, { finalAnswer: ended }), policy: { ...POLICY, run: NO_LIMITS } })
    expect(ofRun).toMatchObject({ kind: 'allow', resumesRun: true })
  })

  it('is another limit than one of the same amount for something else', () => {
    const terminal = terminalOf({ meter: { ...meter, max: 8 } }, 's', true)
    const runState = at(5, 9, { finalAnswer: { ...ended, terminal } })
    const policy = { ...POLICY, run: { ...NO_LIMITS, iterations: 9, tool_calls: 8 } }
    expect(decide({ runState, policy })).toMatchObject({ kind: 'stop', limit: { meter: { name: 'tool_calls' } } })
  })
})

describe('what the model is told', () => {
  it('leaves out the runs of a day: one that is under way is not a new one', () => {
    const kindAt = (meter: TimeMeter) =>
      decide({ runState: at(2), policy: POLICY, time: { enforced: [meter], observed: [] } }).kind
    expect([kindAt(today('cost', 19, 20)), kindAt(today('runs', 19, 20))]).toEqual(['warn', 'allow'])
  })

  it('has the notice about blocked calls in the request in which it is due, and with the one about a loop', () => {
    const { thread, ...rest } = at(2)
    const noticeOf = (isDue: true | undefined) => {
      const blockNotice = isDue ? { text: 'Blocked.', isDue } : { text: 'Blocked.' }
      return decide({ runState: { ...rest, thread: { ...thread, blockNotice } }, policy: POLICY }).speech?.notice
    }
    expect([noticeOf(undefined), noticeOf(true)]).toEqual([undefined, 'Blocked.'])
  })

  it('comes as a message of its own only with a warning after one that was ignored', () => {
    const { run, ...rest } = at(14)
    const channelAt = (iteration: number, wasIgnored: boolean, escalate = true) => {
      const runState = { ...rest, ...at(iteration), run: { ...run, wasIgnored } }
      return decide({ runState, policy: { ...POLICY, escalate } }).speech?.channel
    }
    expect([channelAt(14, true), channelAt(18, false), channelAt(18, true), channelAt(18, true, false)]).toEqual([
      ...['auto', 'auto', 'user', 'auto'],
    ])
  })

  it('by a tracker is nothing where it may not state anything and no tools are to be dropped', () => {
    const policy = { ...POLICY, thresholds: { ...POLICY.thresholds, style: 'tracker' } } as const
    const noticeOf = (dropTools: readonly string[], iteration = 18) =>
      decide({ runState: at(iteration), policy: { ...policy, dropTools }, mayState: false }).speech?.notice
    expect(noticeOf([])).toBeUndefined()
    expect(noticeOf(['search'], 17)).toBeUndefined()
    expect(noticeOf(['search'])).toContain('18 of 20')
  })

  it('by a tracker is said with the last call even where it may state nothing, and drops tools', () => {
    const thresholds = { ...POLICY.thresholds, style: 'tracker' } as const
    const policy = { ...POLICY, thresholds, dropTools: ['search'] }
    const speech = decide({ runState: at(20), policy, mayState: false }).speech
    expect(speech).toMatchObject({ notice: DEFAULT_TEXTS.trackerLast, dropTools: ['search'] })
  })
})

describe('the terminal object', () => {
  it('states the limit, and never more used than the limit', () => {
    expect(terminalOf({ meter }, 'abc', false)).toEqual({
      terminal_state: 'tool_limit_reached',
      terminal_reason: 'max_iterations',
      has_final_answer: false,
      budget_used: 20,
      budget_max: 20,
      scope: 'run',
      session: 'abc',
    })
    const calls = { name: 'tool_calls', used: 23, max: 20 } as const
    expect(terminalOf({ meter: calls }, '', true)).toMatchObject({
      terminal_reason: 'max_tool_calls',
      has_final_answer: true,
      budget_used: 20,
    })
  })

  it('of an agent that ended itself without a limit states what it used', () => {
    const own = { name: 'iterations', used: 91, max: 0 } as const
    expect(terminalOf({ meter: own }, '', true)).toMatchObject({ budget_used: 91, budget_max: 0 })
  })
})
