import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { amountsBy, LIMITS, METERS, type MeterName } from '../../../src/core/budget/meters.ts'
import { type BudgetSettings, policyFor } from '../../../src/core/budget/policy.ts'
import { type BudgetPolicy, decide } from '../../../src/core/decide.ts'
import { tableBy } from '../../../src/core/names.ts'
import { countRequest } from '../../../src/core/session/count-request.ts'
import { NEW_SESSION, type RunState } from '../../../src/core/session/session.ts'
import { noteAnswer } from '../../../src/core/session/transitions.ts'
import { BUDGET, requestFacts, requestOf, steps, system, user } from '../transcript.ts'

const NO_LIMITS = amountsBy(() => 0)

const TASK = [system('You are an agent.'), user('Fix the bug.')]
const RANKS = ['none', 'caution', 'warning', 'stop']

const anyLimits = fc.record({
  ...tableBy(LIMITS, (): fc.Arbitrary<number> => fc.nat({ max: 25 })),
  tokens: fc.nat({ max: 5_000 }),
  cost: fc.double({ min: 0, max: 3, noNaN: true }),
  seconds: fc.nat({ max: 200 }),
})

const anyPolicy = fc
  .record({
    run: anyLimits,
    session: anyLimits,
    style: fc.constantFrom('tiers' as const, 'countdown' as const),
    adaptive: fc.boolean(),
    shares: fc.tuple(fc.double({ min: 0, max: 1, noNaN: true }), fc.double({ min: 0, max: 1, noNaN: true })),
  })
  .map(
    ({ run, session, style, adaptive, shares: [a, b] }): BudgetPolicy => ({
      ...BUDGET,
      run,
      session,
      thresholds: { style, adaptive, caution: Math.min(a, b), warning: Math.max(a, b) },
    }),
  )

const anyAnswers = fc.array(
  fc.record({
    tokens: fc.nat({ max: 600 }),
    cost: fc.double({ min: 0, max: 0.4, noNaN: true }),
    seconds: fc.nat({ max: 20 }),
  }),
  { minLength: 1, maxLength: 25 },
)

/** The states of a run whose answers use these amounts. */
function positionsOf(answers: readonly { tokens: number; cost: number; seconds: number }[]): RunState[] {
  let session = NEW_SESSION
  let now = 1_000
  return answers.map(({ tokens, cost, seconds }, at) => {
    const facts = requestFacts([...TASK, ...steps('a', at)])
    const seen = countRequest(session, requestOf(facts, { now }))
    const usage = { input: tokens, output: 0, cost, estimated: false }
    const request = { fingerprint: facts.fingerprint, thread: '' }
    session = noteAnswer(seen.session, request, { usage, ids: [], requestBytes: 100 })
    now += seconds * 1_000
    return seen.result
  })
}

describe('the pressure on a run', () => {
  it('never falls during a run, under any limits and with any usage, and a stop is never lifted', () => {
    fc.assert(
      fc.property(anyPolicy, anyAnswers, (policy, answers) => {
        const ranks = positionsOf(answers).map((runState) => {
          const { kind, speech } = decide({ runState, policy })
          const name = kind === 'warn' ? (speech?.tier ?? 'none') : kind
          return RANKS.indexOf(name === 'allow' ? 'none' : name)
        })
        expect(ranks).toEqual(ranks.toSorted((a, b) => a - b))
      }),
      { numRuns: 150 },
    )
  })

  it('never shows a negative remainder', () => {
    fc.assert(
      fc.property(anyPolicy, anyAnswers, (policy, answers) => {
        for (const runState of positionsOf(answers)) {
          const { speech } = decide({ runState, policy })
          expect(speech?.notice ?? '').not.toMatch(/-\d|NaN|Infinity|undefined/)
        }
      }),
      { numRuns: 100 },
    )
  })

  it('leads to the same notice for the same request', () => {
    fc.assert(
      fc.property(anyPolicy, anyAnswers, (policy, answers) => {
        const last = [...TASK, ...steps('a', answers.length)]
        const request = requestOf(requestFacts(last))
        const once = countRequest(NEW_SESSION, request)
        const again = countRequest(once.session, request)
        expect(decide({ runState: again.result, policy })).toEqual(decide({ runState: once.result, policy }))
      }),
      { numRuns: 50 },
    )
  })
})

describe('an amount', () => {
  it.each([
    ['tokens', 1_400_000, 2_000_000, '1.4M', '2M', '600k'],
    ['tokens', 1_999_999, 2_000_000, '1.9M', '2M', '1'],
    ['tokens', 12_345, 50_000, '12.3k', '50k', '37.6k'],
    ['tokens', 999, 1_250_000, '999', '1.25M', '1.2M'],
    ['tokens', 2_500_000, 2_000_000, '2.5M', '2M', '0'],
    ['cost', 4.1, 5, '$4.10', '$5.00', '$0.90'],
    ['cost', 4.999, 5, '$4.99', '$5.00', '$0.01'],
    ['cost', 7, 5, '$7.00', '$5.00', '$0.00'],
    ['cost', 0.0123, 0.05, '$0.0123', '$0.0500', '$0.0377'],
    ['seconds', 280.9, 300, '280s', '300s', '20s'],
    ['seconds', 301, 300, '301s', '300s', '0s'],
    ['context', 105_000, 128_000, '105k', '128k', '23k'],
    ['iterations', 14, 20, '14', '20', '6'],
  ] as const)('of %s: %d of %d is shown as %s of %s with %s left', (name, used, max, saidUsed, saidMax, left) => {
    expect(METERS[name].format(used, max)).toEqual({ used: saidUsed, max: saidMax, left })
  })

  it('is never shown larger than it is, and its remainder is never shown as negative', () => {
    const names: readonly MeterName[] = [...LIMITS, 'context']
    const value = (said: string) =>
      Number.parseFloat(said.replace('$', '')) * (said.endsWith('M') ? 1e6 : said.endsWith('k') ? 1e3 : 1)
    fc.assert(
      fc.property(
        fc.constantFrom(...names),
        fc.nat({ max: 3_000_000 }),
        fc.integer({ min: 1, max: 3_000_000 }),
        (name, used, max) => {
          const said = METERS[name].format(used, max)
          expect(value(said.used)).toBeLessThanOrEqual(used + 1e-6)
          expect(value(said.left)).toBeGreaterThanOrEqual(0)
        },
      ),
      { numRuns: 300 },
    )
  })
})

describe('the policy of a request', () => {
  const settings = (announce: 'auto' | 'always' | 'never', mode: boolean | 'lower_only'): BudgetSettings => ({
    policy: { ...BUDGET, run: { ...NO_LIMITS, iterations: 20, cost: 5 } },
    announce,
    clientOverride: mode,
  })

  it.each([
    ['auto', true, {}, []],
    ['auto', true, { iterations: 9 }, ['iterations']],
    ['auto', false, { iterations: 9 }, []],
    ['always', false, {}, LIMITS],
    ['never', true, { iterations: 9 }, []],
  ] as const)('that announces %s, has override %s and declares %j states %j', (announce, mode, declared, stated) => {
    expect(policyFor(settings(announce, mode), declared).announce).toEqual(stated)
  })

  it('states all limits in one text', () => {
    const policy = policyFor(settings('always', true), {})
    const { result: runState } = countRequest(
      NEW_SESSION,
      requestOf(requestFacts([...TASK]), { budget: policy, limits: policy }),
    )
    const announcement = decide({ runState, policy }).speech?.announcement
    expect(announcement?.split('\n').map((line) => line.slice(0, 42))).toEqual([
      'Tool budget: you have 20 iterations total.',
      'Tool budget: you have $5.00 total. Pace yo',
    ])
  })
})
