import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { checkConfig } from '../../../src/config/load.ts'
import {
  type Account,
  type Ask,
  amountsIn,
  LEASE_MS,
  mergedAccount,
  metersIn,
  partAfter,
  sharesOf,
  standingOf,
  sumsOf,
} from '../../../src/core/budget/ledger.ts'
import type { Counts } from '../../../src/core/counters.ts'

const NOW = 1_760_000_000_000
const LIMITS = { ...amountsIn({}), cost: 100 }
const ask = (cost: number, isGuess = false): Ask => ({ counts: { iterations: 1, cost }, isGuess })

/** Requests of several processes that ask, are let through or not, and end with what they really cost. */
const step = fc.record({
  process: fc.integer({ min: 0, max: 2 }),
  does: fc.constantFrom('ask', 'ask', 'end'),
  estimate: fc.integer({ min: 1, max: 30 }),
  /** What it really costs, as a share of the estimate. */
  real: fc.double({ min: 0, max: 3, noNaN: true }),
  which: fc.nat(),
})

describe('what requests hold', () => {
  it('keeps a limit to one call, and to what calls cost beyond their estimates, in any schedule', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
        let account: Account = {}
        const flying: { process: `p:${string}`; hold: Counts; cost: number }[] = []
        let excess = 0
        let largest = 0
        const end = (at: number) => {
          const [one] = flying.splice(at, 1)
          if (!one) return
          const used = { iterations: 1, cost: one.cost }
          account = { ...account, [one.process]: partAfter(account[one.process], { used, release: one.hold }, NOW) }
        }
        for (const { process: number, does, estimate, real, which } of steps) {
          if (does === 'end') {
            end(which % Math.max(1, flying.length))
            continue
          }
          const process = `p:${number}` as const
          const { hold } = standingOf(account, ask(estimate), LIMITS, NOW)
          if (!hold) continue
          const cost = estimate * real
          excess += Math.max(0, cost - estimate)
          largest = Math.max(largest, cost)
          account = { ...account, [process]: partAfter(account[process], { hold }, NOW) }
          flying.push({ process, hold, cost })
        }
        while (flying.length > 0) end(0)
        const { used, held } = sumsOf(account, NOW)
        expect(amountsIn(used).cost).toBeLessThanOrEqual(100 + largest + excess + 1e-6)
        expect(amountsIn(held).cost).toBeLessThanOrEqual(1e-6)
      }),
    )
  })

  it('lets ten of fifty through where there is room for ten, also where nobody knows what a call costs', () => {
    for (const asked of [ask(10), ask(0.01, true)]) {
      let account: Account = {}
      let passed = 0
      for (let at = 0; at < 50; at++) {
        const { hold } = standingOf(account, asked, LIMITS, NOW)
        if (!hold) continue
        passed++
        account = { ...account, 'p:one': partAfter(account['p:one'], { hold }, NOW) }
      }
      expect(passed).toBe(10)
    }
  })

  it('ends after its process has died before a request has waited for it in vain', () => {
    const { ask_timeout: wait } = checkConfig({}, 'test').stop
    expect(LEASE_MS).toBeLessThan(wait - 1_000)
    const account: Account = { 'p:gone': partAfter(undefined, { hold: { cost: 90 } }, NOW) }
    expect(standingOf(account, ask(20), LIMITS, NOW + LEASE_MS - 1).isCrowded).toBe(true)
    expect(standingOf(account, ask(20), LIMITS, NOW + LEASE_MS).hold).toEqual({ iterations: 1, cost: 20 })
  })

  it('lets a request through that is larger than what is left, if no other is in flight', () => {
    const account: Account = { 'p:one': partAfter(undefined, { used: { cost: 99 } }, NOW) }
    expect(standingOf(account, ask(20), LIMITS, NOW).hold).toBeDefined()
  })

  it('lets none through once the limit is reached', () => {
    const account: Account = { 'p:one': partAfter(undefined, { used: { cost: 100 } }, NOW) }
    expect(standingOf(account, ask(0.01), LIMITS, NOW)).toMatchObject({ isCrowded: false })
    expect(standingOf(account, ask(0.01), LIMITS, NOW).hold).toBeUndefined()
  })
})

describe('the meters of a request in an account', () => {
  const period = { scope: 'day', name: '2026-11-27', start: 0, end: 9, resets: 'at midnight' } as const
  const steps = { ...amountsIn({}), cost: 2 }
  const standing = { used: { cost: 30, runs: 4 }, held: { cost: 20 }, limits: { ...LIMITS, runs: 5 } }
  const metersOf = (asked: Counts, isCrowded?: true) =>
    metersIn({ ...standing, ...(isCrowded && { isCrowded }) } as never, period as never, asked, steps)

  it('are those with a limit, with what others hold left out of what is left', () => {
    const time = { resetsAt: 9, resets: 'at midnight', left: 50, step: 2 }
    expect(metersOf({ cost: 1 })).toEqual([{ name: 'cost', used: 30, max: 100, scope: 'day', time }])
  })

  it('count runs only where the request begins one', () => {
    expect(metersOf({ cost: 1, runs: 1 }).map(({ name }) => name)).toEqual(expect.arrayContaining(['cost', 'runs']))
    expect(metersOf({ cost: 1 }).map(({ name }) => name)).toEqual(['cost'])
  })

  it('are crowded where others hold something of them', () => {
    const crowded = metersOf({ cost: 1, runs: 1 }, true)
    expect(crowded.map(({ name, time }) => [name, time.isCrowded ?? false])).toEqual(
      expect.arrayContaining([
        ['cost', true],
        ['runs', false],
      ]),
    )
    expect(crowded).toHaveLength(2)
  })
})

describe('the shares of the limits of an account', () => {
  it('are rounded as sums are; a limit of 0 has none', () => {
    const limits = { ...amountsIn({}), cost: 0.2, runs: 10 }
    // 0.15 / 0.2 is 0.7499999999999999.
    expect(sharesOf({ cost: 0.15, runs: 6, input: 900 }, limits)).toEqual([
      { name: 'cost', used: 0.15, max: 0.2, share: 0.75 },
      { name: 'runs', used: 6, max: 10, share: 0.6 },
    ])
    expect(sharesOf({ cost: 70 }, amountsIn({}))).toEqual([])
  })
})

describe('copies of an account', () => {
  const parts = fc.dictionary(
    fc.constantFrom('p:a', 'p:b', 'p:c'),
    fc.record({ used: fc.record({ cost: fc.nat(100) }), held: fc.constant({}), until: fc.constant(0) }),
  )

  it("become one with each part once, and one's own as it is here", () => {
    fc.assert(
      fc.property(parts, parts, (here, there) => {
        const own = 'p:a'
        const merged = mergedAccount(here as Account, there as Account, own) as Record<string, unknown>
        const { [own]: mine } = here as Record<string, unknown>
        expect(merged).toEqual({ ...there, ...(mine ? { [own]: mine } : {}) })
        expect(mergedAccount(merged as Account, there as Account, own)).toEqual(merged)
      }),
    )
  })

  it('have the limit that was set last', () => {
    const [older, newer] = [
      { max: { cost: 1 }, setAt: 1 },
      { max: {}, setAt: 2 },
    ]
    expect(mergedAccount({ limits: older }, { limits: newer }, 'p:a').limits).toEqual(newer)
    expect(mergedAccount({ limits: newer }, { limits: older }, 'p:a').limits).toEqual(newer)
  })
})
