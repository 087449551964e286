import fc from 'fast-check'
import { expect, it } from 'vitest'
import { METERS } from '../../src/core/budget/meters.ts'
import { REASONS } from '../../src/core/terminal.ts'
import { dollarText } from '../../src/core/text/dollars.ts'
import { clock, money, pausedText, percents, stateOf } from '../../src/ops/sessions/labels.ts'
import { STATES } from '../../src/ops/sessions/states.ts'

it('people read in a few words why a run was stopped', () => {
  const texts = Object.keys(REASONS).map((terminal_reason) => stateOf({ state: 'stopped', terminal_reason }).text)
  expect(texts).toEqual([
    'stopped: iterations',
    'stopped: tool calls',
    'stopped: tokens',
    'stopped: cost',
    'stopped: time',
    'stopped: runs',
    'stopped: loop',
    'stopped: agents',
    'stopped: concurrent agents',
    'stopped: depth',
    'stopped: operator',
    'stopped: paused',
  ])
})

it('a pause says the date of a time that is not today', () => {
  const since = new Date().toISOString()
  const until = new Date(Date.now() + 40 * 86_400_000).toISOString()
  const all = { session: null, key: null, upstream: null, hold: false, reason: null, by: 'loopback' as const }
  expect(pausedText({ ...all, since, until })).toBe(
    `PAUSED: all agents, since ${clock(since)}, until ${new Date(until).toLocaleDateString('sv')} ${clock(until)}`,
  )
})

it('any amount of money below $10,000 has at most seven characters with three decimals, so that it fits a column', () => {
  const cost = fc.double({ min: 0, max: 9_999, noNaN: true })
  fc.assert(
    fc.property(cost, fc.boolean(), fc.boolean(), (cost_usd, price_known, cost_estimated) => {
      expect(money({ cost_usd, price_known, cost_estimated }, 3).length).toBeLessThanOrEqual(7)
    }),
  )
})

it('people read thousands of dollars in groups of three digits, and no other digits', () => {
  const known = { price_known: true, cost_estimated: false }
  const shown = [0.0012, 999, 1_000, 1_234_567.8].map((cost_usd) => money({ ...known, cost_usd }))
  expect(shown).toEqual(['$0.0012', '$999', '$1,000', '$1,234,568'])
  expect(METERS.cost.format(1_234.5, 12_000)).toEqual({ used: '$1,234.50', max: '$12,000.00', left: '$10,765.50' })
  expect(dollarText(1_234.56789, 4)).toBe('$1,234.5679')
})

it('any shares of one whole are shown in whole percents that add up as they do, each less than one percent off', () => {
  const parts = fc.array(fc.integer({ min: 0, max: 1_000_000 }), { minLength: 1, maxLength: 30 })
  fc.assert(
    fc.property(parts, fc.integer({ min: 0, max: 1_000_000 }), (amounts, left) => {
      const all = amounts.reduce((sum, one) => sum + one, left) || 1
      const shares = amounts.map((one) => one / all)
      const shown = percents(shares)
      expect(shown.reduce((sum, one) => sum + one, 0)).toBe(Math.round(((all - left) / all) * 100))
      for (const [at, one] of shown.entries()) expect(Math.abs(one - (shares[at] ?? 0) * 100)).toBeLessThan(1)
    }),
  )
  expect(percents([0.195, 0.805])).toEqual([20, 80])
})

it('people read that a session is paused, whatever it does, unless it has ended', () => {
  const texts = Object.keys(STATES).map((state) => stateOf({ state: state as keyof typeof STATES, paused: true }).text)
  expect(texts).toEqual(Object.values(STATES).map(([word, , group]) => (group === 'Ended' ? word : 'paused')))
})
