/** A limit of a day for tests of sums of limits: 100 dollars for all together. */
import { createCalendar } from '../../src/core/budget/scopes.ts'
import { type Place, placeOf } from '../../src/usage/ledger.ts'

const RULE = {
  scope: 'day',
  per: 'all',
  limits: { cost: 100, tokens: 0, iterations: 0, runs: 0 },
  isObserved: false,
} as const
/** Returns the sum of the day at `time`, in milliseconds since the epoch. */
export const dayAt = (time: number, zone = 'UTC'): Place =>
  placeOf(RULE, createCalendar(zone).periodOf('day', time), null)
