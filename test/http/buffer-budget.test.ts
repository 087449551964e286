import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type Clock, createBufferBudget, type Lease, MAX_WAIT } from '../../src/http/buffer-budget.ts'

/** A clock that advances when the test advances it. */
function stoppedClock(): Clock & { pass(time: number): void } {
  let now = 0
  const timers = new Map<object, { at: number; call: () => void }>()
  return {
    now: () => now,
    after(delay, call) {
      const key = {}
      timers.set(key, { at: now + delay, call })
      return () => timers.delete(key)
    },
    pass(time) {
      now += time
      for (const [key, { at, call }] of timers) {
        if (at > now) continue
        timers.delete(key)
        call()
      }
    },
  }
}

function start(max = 100) {
  const clock = stoppedClock()
  return { clock, budget: createBufferBudget(max, clock) }
}

/** A lease that holds so many bytes. */
function holding(budget: { lease(): Lease }, bytes: number): Lease {
  const lease = budget.lease()
  if (lease.grow(bytes) !== true) throw new Error('no room')
  return lease
}

describe('a budget of bytes', () => {
  it('grants room at once while there is some, and grants released room again', () => {
    const { budget } = start()
    const lease = holding(budget, 60)
    holding(budget, 40)
    expect(budget.held).toBe(100)
    lease.release()
    lease.release()
    expect(budget.held).toBe(40)
    holding(budget, 60)
  })

  it('rejects a body larger than the whole budget without a wait', () => {
    const { budget } = start()
    expect(budget.lease().grow(101)).toBe(false)
    const lease = holding(budget, 60)
    expect(lease.grow(41)).toBe(false)
  })

  it('serves waiting leases in order, those that already hold bytes first', async () => {
    const { budget } = start()
    const first = holding(budget, 90)
    const holder = holding(budget, 5)
    const order: string[] = []
    const waits = (name: string, lease: Lease, bytes: number) =>
      Promise.resolve(lease.grow(bytes)).then((hasRoom) => order.push(`${name} ${hasRoom}`))
    const all = [waits('a', budget.lease(), 50), waits('b', budget.lease(), 1), waits('holder', holder, 20)]
    expect(budget.held).toBe(95)
    first.release()
    await Promise.all(all)
    expect(order).toEqual(['holder true', 'a true', 'b true'])
  })

  it('lets a body wait for two seconds in total', async () => {
    const { budget, clock } = start()
    const other = holding(budget, 100)
    const lease = budget.lease()
    const once = lease.grow(10)
    clock.pass(MAX_WAIT - 500)
    other.release()
    expect(await once).toBe(true)
    const another = holding(budget, 90)
    const again = lease.grow(10)
    clock.pass(499)
    expect(budget.held).toBe(100)
    clock.pass(1)
    expect(await again).toBe(false)
    another.release()
  })

  it('gives no room to a released lease and ends its wait', async () => {
    const { budget } = start()
    holding(budget, 100)
    const lease = budget.lease()
    const waiting = lease.grow(1)
    lease.release()
    expect(await waiting).toBe(false)
    expect(lease.grow(0)).toBe(false)
  })

  it('never grants more than its size and settles every wait, in any order of calls', async () => {
    const step = fc.record({
      lease: fc.nat(5),
      bytes: fc.nat(60),
      kind: fc.constantFrom('grow', 'grow', 'release', 'pass'),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const { budget, clock } = start()
        const leases = Array.from({ length: 6 }, () => budget.lease())
        const waits: unknown[] = []
        for (const { lease, bytes, kind } of steps) {
          if (kind === 'pass') clock.pass(bytes * 20)
          else if (kind === 'release') leases[lease]?.release()
          else waits.push(leases[lease]?.grow(bytes))
          expect(budget.held).toBeLessThanOrEqual(100)
        }
        clock.pass(MAX_WAIT)
        await Promise.all(waits)
        for (const lease of leases) lease.release()
        expect(budget.held).toBe(0)
      }),
    )
  })
})
