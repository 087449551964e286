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

it('the cost of today is that of the day that the clock shows, whichever way it is set, and no cost is lost', async () => {
  const clock = { now: new Date(2026, 10, 27, 12).getTime() }
  const store = createMemoryStore({ max: 10, ttl: 60_000, maxBytes: 10_000 })
  const cost = createDayCost(store, () => clock.now, 'one')
  onTestFinished(() => cost.close())
  const spendAt = async (day: number, amount: number) => {
    clock.now = new Date(2026, 10, day, 12).getTime()
    cost.add({ cost: amount })
    return (await cost.today()).counts.cost
  }
  expect(await spendAt(27, 1)).toBe(1)
  expect(await spendAt(28, 2)).toBe(2)
  expect(await spendAt(27, 4)).toBe(5)
  expect(await spendAt(28, 8)).toBe(10)
  expect(await spendAt(29, 16)).toBe(16)
})
