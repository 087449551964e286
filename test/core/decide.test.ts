import { describe, expect, it } from 'vitest'
import { NO_LIMITS } from '../../src/core/budget/meters.ts'
import { DEFAULT_TEXTS } from '../../src/core/budget/notice.ts'
import { type BudgetPolicy, decide } from '../../src/core/decide.ts'
import type { RunState } from '../../src/core/session/session.ts'
import { type FinalAnswer, terminalOf } from '../../src/core/terminal.ts'

const POLICY: BudgetPolicy = {
  enabled: true,
  run: { ...NO_LIMITS, iterations: 20 },
  session: NO_LIMITS,
  thresholds: { style: 'tiers', caution: 0.7, warning: 0.9, adaptive: true },
  trackerEvery: 5,
  channel: 'auto',
  announce: [],
  cautionWhen: 'always',
  escalate: true,
  dropTools: [],
  texts: DEFAULT_TEXTS,
}

const at = (iteration: number, toolCalls = 0, more: Partial<RunState> = {}): RunState => ({
  iteration,
  toolCalls,
  isRetry: false,
  isNewRun: false,
  isNew: false,
  run: { ...NO_LIMITS, iterations: iteration, tool_calls: toolCalls },
  session: { ...NO_LIMITS, iterations: iteration, tool_calls: toolCalls },
  isStagnating: false,
  wasIgnored: false,
  hasErrors: false,
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
    expect(decide(at(iteration), POLICY).kind).toBe(kind)
  })

  it('warns with the tier and its sentence', () => {
    expect(decide(at(18), POLICY)).toEqual({
      kind: 'warn',
      tier: 'warning',
      meter: 'iterations',
      channel: 'auto',
      dropTools: [],
      notice:
        '[BUDGET: Iteration 18/20. You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]',
    })
  })

  it('stops with the limit, the request for an answer, and what stands in for one', () => {
    expect(decide(at(21), POLICY)).toEqual({
      kind: 'stop',
      limit: { meter },
      notice: DEFAULT_TEXTS.stop,
      fallback: '(Reached max iterations: 20)',
    })
  })

  it('repeats the answer of a run that was stopped, and goes on once its budget is raised', () => {
    expect(decide({ ...at(22), finalAnswer: ended }, POLICY)).toEqual({ kind: 'repeat', answer: ended })
    expect(
      decide({ ...at(22), finalAnswer: ended }, { ...POLICY, run: { ...POLICY.run, iterations: 90 } }).kind,
    ).toBe('allow')
  })

  it('allows everything without a limit and everything when it is turned off', () => {
    expect(decide(at(100_000, 100_000), { ...POLICY, run: NO_LIMITS })).toEqual({ kind: 'allow' })
    expect(decide(at(100_000), { ...POLICY, enabled: false, announce: ['iterations'] })).toEqual({
      kind: 'allow',
    })
  })

  it('stops at the tool calls where they are used up first, and names them', () => {
    const both = { ...POLICY, run: { ...POLICY.run, tool_calls: 8 } }
    expect(decide(at(5, 8), both)).toMatchObject({
      kind: 'stop',
      limit: { meter: { name: 'tool_calls', max: 8 } },
    })
    expect(decide(at(5, 7), both)).toMatchObject({
      kind: 'warn',
      notice: expect.stringContaining('Tool call 7/8'),
    })
  })

  it('announces the budget in the same words in every request of a run', () => {
    const announcing = { ...POLICY, announce: ['iterations'] as const }
    const words = [1, 13, 14, 20].map((iteration) => {
      const decision = decide(at(iteration), announcing)
      return 'announcement' in decision ? decision.announcement : undefined
    })
    expect(new Set(words)).toEqual(
      new Set([
        "Tool budget: you have 20 iterations total. Pace yourself: if you can't fully resolve the task, stop early and return what you have plus the gap, rather than burning the budget on one branch.",
      ]),
    )
  })
})

describe('the terminal object', () => {
  it('says the limit and never more used than there was', () => {
    expect(terminalOf({ meter }, 'abc', false)).toEqual({
      terminal_state: 'tool_limit_reached',
      terminal_reason: 'max_iterations',
      has_final_answer: false,
      budget_used: 20,
      budget_max: 20,
      session: 'abc',
    })
    const calls = { name: 'tool_calls', used: 23, max: 20 } as const
    expect(terminalOf({ meter: calls }, '', true)).toMatchObject({
      terminal_reason: 'max_tool_calls',
      has_final_answer: true,
      budget_used: 20,
    })
  })

  it('of an agent that ended itself without a limit says what it used', () => {
    const own = { name: 'iterations', used: 91, max: 0 } as const
    expect(terminalOf({ meter: own }, '', true)).toMatchObject({ budget_used: 91, budget_max: 0 })
  })
})
