import { expect, it } from 'vitest'
import { LIMITS } from '../../../src/core/budget/meters.ts'
import { type Run, type Session, usedBy, usedIn } from '../../../src/core/session/session.ts'
import { addCall, type Usage } from '../../../src/core/usage.ts'

it('a run and a session that an older version stored use 0 of each meter that it did not count', () => {
  // Neither counted cost, and their operators reset them when no other meter than iterations was known.
  const usage = { input: 700, output: 50 } as Usage
  const operator = { base: { iterations: 2 } }
  const run = { startedAt: 1_000, iteration: 5, usage, operator } as unknown as Run
  const totals = { startedAt: 1_000, iterations: 9 }
  const session = { totals, usage, operator } as unknown as Session
  expect(usedBy(run, 4_000)).toEqual({ iterations: 3, tool_calls: 0, tokens: 750, cost: 0, seconds: 3 })
  expect(usedIn(session, 4_000)).toEqual({ iterations: 7, tool_calls: 0, tokens: 750, cost: 0, seconds: 3 })
  expect(Object.keys(usedBy(run, 4_000))).toEqual(LIMITS)
  const call = { input: 10, output: 5, cost: 0.25, estimated: false }
  expect(addCall(usage, call)).toMatchObject({ input: 710, output: 55, cachedInput: 0, cost: 0.25 })
})
