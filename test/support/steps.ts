/** Counts the work of reading requests, in steps: see core/bounds/work.ts. */
import { onTestFinished } from 'vitest'
import { Work } from '../../src/core/bounds/work.ts'

/**
 * Counts the steps between two pauses from now on, for the current test. Returns what states the most since it was
 * called last. No spy: one keeps every call, of which a large request makes a million.
 */
export function countSteps(): () => number {
  const { spend, paused } = Work.prototype
  const since = new WeakMap<Work, number>()
  let most = 0
  Work.prototype.spend = function (steps) {
    const done = (since.get(this) ?? 0) + steps
    since.set(this, done)
    most = Math.max(most, done)
    spend.call(this, steps)
  }
  Work.prototype.paused = function () {
    since.set(this, 0)
    paused.call(this)
  }
  onTestFinished(() => void Object.assign(Work.prototype, { spend, paused }))
  return () => {
    const seen = most
    most = 0
    return seen
  }
}
