import { describe, expect, it } from 'vitest'
import { costLimit, LIMITS, NO_LIMITS } from '../../../src/core/budget/meters.ts'
import { type BudgetSettings, limitsCost, policyFor, type Rule, settingsFor } from '../../../src/core/budget/policy.ts'
import { BUDGET } from '../transcript.ts'

const settings = (changes: Partial<BudgetSettings> = {}, limits: Partial<typeof NO_LIMITS> = {}): BudgetSettings => ({
  policy: { ...BUDGET, run: { ...NO_LIMITS, ...limits }, session: NO_LIMITS, announce: [] },
  announce: 'auto',
  clientOverride: true,
  ...changes,
})

describe('the limits of a request whose client declares some', () => {
  it.each([
    ['may be raised where clients may override them', true, 20, 30, 30],
    ['may be lifted where clients may override them', true, 20, 0, 0],
    ['may be lowered where clients may only lower them', 'lower_only', 20, 19, 19],
    ['stay where the declared one is equal, and clients may only lower them', 'lower_only', 20, 20, 20],
    ['are not raised where clients may only lower them', 'lower_only', 20, 21, 20],
    ['are not lifted where clients may only lower them', 'lower_only', 20, 0, 20],
    ['are set where there is no limit, and clients may only lower them', 'lower_only', 0, 30, 30],
    ['stay where clients may not override them', false, 20, 5, 20],
  ] as const)('%s', (_, clientOverride, configured, declared, iterations) => {
    const { run } = policyFor(settings({ clientOverride }, { iterations: configured, tokens: 9 }), {
      iterations: declared,
    })
    expect(run).toEqual({ ...NO_LIMITS, iterations, tokens: 9 })
  })

  it('are the configured ones, in the same object, where it declares none and nothing is announced', () => {
    const configured = settings({}, { iterations: 20 })
    expect(policyFor(configured, {})).toBe(configured.policy)
    expect(policyFor(configured, { tokens: undefined })).toBe(configured.policy)
  })
})

describe('what the system text announces', () => {
  it.each([
    ['the declared limits', {}, ['tokens']],
    ['no limit, where it never announces', { announce: 'never' }, []],
    ['no limit, where clients may not override any', { clientOverride: false }, []],
    ['every limit, where it always announces', { announce: 'always' }, LIMITS],
    ['every limit, where clients may not override any', { announce: 'always', clientOverride: false }, LIMITS],
  ] as const)('is %s', (_, changes, announced) => {
    expect(policyFor(settings(changes), { tokens: 7 }).announce).toEqual(announced)
  })

  it.each([
    ['every limit in the style of a tracker', 'auto', LIMITS],
    ['no limit in the style of a tracker, where it never announces', 'never', []],
  ] as const)('is %s, though the client declares none', (_, announce, announced) => {
    const { policy } = settings()
    const tracker = { ...policy, thresholds: { ...policy.thresholds, style: 'tracker' as const } }
    expect(policyFor(settings({ announce, policy: tracker }), {}).announce).toEqual(announced)
  })
})

describe('the rule of a request', () => {
  const rule = (name: string, conditions: Partial<Rule<string>>): Rule<string> => ({
    headers: [],
    ...conditions,
    settings: name,
  })
  const rules = [
    rule('all', { model: 'gpt-*', upstream: 'openai', headers: [['x-team', 'a*']] }),
    rule('model', { model: 'gpt-*' }),
    rule('upstream', { upstream: 'local' }),
  ]
  const headers: Readonly<Record<string, string>> = { 'x-team': ' alpha ' }
  it.each([
    ['the first one that matches in every condition', 'gpt-5', 'openai', headers, 'all'],
    ['not one whose header is missing', 'gpt-5', 'openai', {}, 'model'],
    ['not one with another value of its header', 'gpt-5', 'openai', { 'x-team': 'beta' }, 'model'],
    ['not one of another upstream', 'gpt-5', 'other', headers, 'model'],
    ['not one of another model', 'claude', 'local', headers, 'upstream'],
    ['the general one where none matches', 'claude', 'openai', headers, 'general'],
  ] as const)('is %s', (_, model, upstream, sent: Readonly<Record<string, string>>, expected) => {
    const subject = { model, upstream, header: (name: string) => sent[name] }
    expect(settingsFor({ settings: 'general', rules }, subject)).toBe(expected)
  })
})

describe('a limit on cost', () => {
  const costly = settings({}, { cost: 5 })
  const rule = { headers: [], settings: costly }
  it.each([
    ['is known in the general budget', { settings: costly, rules: [] }, true],
    ['is known in the budget of a rule', { settings: settings(), rules: [rule] }, true],
    ['is unknown where no budget has one', { settings: settings(), rules: [{ ...rule, settings: settings() }] }, false],
  ])('%s', (_, budget, isKnown) => {
    expect(limitsCost(budget)).toBe(isKnown)
  })
})

describe('the limit on cost', () => {
  const one = (cost: number) => ({ ...NO_LIMITS, cost })
  const none = { enabled: true, run: NO_LIMITS, session: NO_LIMITS, scopes: [] }
  const scopes = [0, 4, 5].map((cost) => ({ limits: { cost } }))
  const velocity = { limits: { cost: 6 } }

  it.each([
    ['of the run', { run: one(2), session: one(3), scopes, velocity }, 2],
    ['of the session where the run has none', { session: one(3), scopes, velocity }, 3],
    ['of the first scope of time that has one where neither has', { scopes, velocity }, 4],
    ['on the rate where no scope has one', { scopes: scopes.slice(0, 1), velocity }, 6],
    ['of nothing where none is set', { scopes: scopes.slice(0, 1) }, undefined],
    ['of an access key where the budget is turned off', { enabled: false, run: one(2), scopes }, 4],
    ['of nothing where it is turned off and no key has one', { enabled: false, run: one(2) }, undefined],
  ])('is that %s', (_, more, limit) => {
    expect(costLimit({ ...none, ...more })).toBe(limit)
  })
})
