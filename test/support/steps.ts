/** Counts the work of reading requests, in steps: see core/work.ts. */
import { vi } from 'vitest'
import { Work } from '../../src/core/work.ts'

/** Counts the steps between two pauses from now on; returns the most so far. */
export function countSteps(): () => number {
  const { spend, paused } = Work.prototype
  const since = new WeakMap<Work, number>()
  let most = 0
  vi.spyOn(Work.prototype, 'spend').mockImplementation(function (this: Work, steps) {
    const done = (since.get(this) ?? 0) + steps
    since.set(this, done)
    most = Math.max(most, done)
    spend.call(this, steps)
  })
  vi.spyOn(Work.prototype, 'paused').mockImplementation(function (this: Work) {
    since.set(this, 0)
    paused.call(this)
  })
  return () => most
}
