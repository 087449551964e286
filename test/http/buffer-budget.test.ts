import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { leaseFor } from '../../src/http/body.ts'

const budgetOf100 = () => ({ max: 100, held: 0 })
const OPEN = { onClose: () => () => undefined }

describe('a budget of bytes', () => {
  it('grants room at once while there is some, and grants released room again', () => {
    const budget = budgetOf100()
    const lease = leaseFor(budget, OPEN)
    expect(lease.grow(60)).toBe(true)
    expect(leaseFor(budget, OPEN).grow(40)).toBe(true)
    expect(leaseFor(budget, OPEN).grow(1)).toBe(false)
    lease.release()
    lease.release()
    expect(budget.held).toBe(40)
    expect(leaseFor(budget, OPEN).grow(60)).toBe(true)
  })

  it('releases a lease when the response is over, also if it was over before', () => {
    const budget = budgetOf100()
    const calls: (() => void)[] = []
    const onClose = (call: () => void) => {
      calls.push(call)
      return () => undefined
    }
    expect(leaseFor(budget, { onClose }).grow(10)).toBe(true)
    for (const call of calls) call()
    expect(budget.held).toBe(0)
    const closed = {
      onClose(call: () => void) {
        call()
        return () => undefined
      },
    }
    expect(leaseFor(budget, closed).grow(10)).toBe(false)
  })

  it('never grants more than its size, or than a part of it, in any order of calls', () => {
    const step = fc.record({
      lease: fc.nat(5),
      bytes: fc.nat(60),
      part: fc.constantFrom(0.75, 1),
      isRelease: fc.boolean(),
    })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const budget = budgetOf100()
        const leases = Array.from({ length: 6 }, () => ({
          lease: leaseFor(budget, OPEN),
          held: 0,
          isReleased: false,
        }))
        for (const { lease: at, bytes, part, isRelease } of steps) {
          const one = leases[at]
          if (!one) continue
          const before = budget.held
          if (isRelease) {
            one.lease.release()
            one.held = 0
            one.isReleased = true
          } else {
            const isGranted = one.lease.grow(bytes, part)
            expect(isGranted).toBe(!one.isReleased && before + bytes <= 100 * part)
            if (isGranted) one.held += bytes
          }
          expect(budget.held).toBe(leases.reduce((sum, { held }) => sum + held, 0))
        }
      }),
    )
  })
})
