/** The cost of today, where something fails. */
import { expect, it, onTestFinished, vi } from 'vitest'
import { createMemoryStore } from '../../src/store/memory.ts'
import { createDayCost } from '../../src/usage/day-cost.ts'

it('a fault while the cost of today is written ends no process, and the next cost is written with it', async () => {
  vi.useFakeTimers()
  onTestFinished(() => void vi.useRealTimers())
  let isBroken = false
  const now = () => {
    if (isBroken) throw new Error('a fault')
    return 1_000
  }
  const cost = createDayCost(createMemoryStore({ max: 10, ttl: 60_000, maxBytes: 10_000 }), now, 'one')
  cost.add({ cost: 1 })
  isBroken = true
  // What a timer throws is thrown here.
  vi.advanceTimersByTime(1_000)
  isBroken = false
  cost.add({ cost: 2 })
  expect((await cost.today()).counts).toEqual({ cost: 3 })
})
