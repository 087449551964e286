import fc from 'fast-check'
import { expect, it } from 'vitest'
import { REASONS } from '../../src/core/terminal.ts'
import { money, stateOf } from '../../src/ops/sessions/labels.ts'
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

it('any amount of money below $100,000 has at most seven characters with three decimals, so that it fits a column', () => {
  const cost = fc.double({ min: 0, max: 99_999, noNaN: true })
  fc.assert(
    fc.property(cost, fc.boolean(), fc.boolean(), (cost_usd, price_known, cost_estimated) => {
      expect(money({ cost_usd, price_known, cost_estimated }, 3).length).toBeLessThanOrEqual(7)
    }),
  )
})

it('people read that a session is paused, whatever it does, unless it has ended', () => {
  const texts = Object.keys(STATES).map((state) => stateOf({ state: state as keyof typeof STATES, paused: true }).text)
  expect(texts).toEqual(Object.values(STATES).map(([word, , group]) => (group === 'Ended' ? word : 'paused')))
})
