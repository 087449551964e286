import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { add, COUNTERS, type Counts, costGapOf, countsOf, join, minus, NO_COUNTS } from '../../src/core/counters.ts'
import { namesOf } from '../../src/core/names.ts'

const NAMES = namesOf(COUNTERS)
/** One that a newer version counts. */
const NEWER = 'images'

/** Counts as they are stored: nothing of what is 0, costs in billionths of a dollar. */
const counts: fc.Arbitrary<Counts> = fc.dictionary(
  fc.constantFrom(...NAMES.filter((name) => name !== 'cost'), NEWER),
  fc.integer({ min: 1, max: 1e9 }),
)
const money = fc.nat({ max: 1e12 }).map((billionths): Counts => (billionths > 0 ? { cost: billionths / 1e9 } : {}))
const any = fc.tuple(counts, money).map(([whole, cost]): Counts => ({ ...whole, ...cost }))

const amountsOf = (one: Counts, other: Counts, amount: (a: number, b: number, name: string) => number) => {
  const [a, b] = [one, other] as Record<string, number>[]
  return Object.fromEntries([...NAMES, NEWER].map((name) => [name, amount(a?.[name] ?? 0, b?.[name] ?? 0, name)]))
}
const whole = (one: Counts) => amountsOf(one, NO_COUNTS, (a) => a)

describe('any counts', () => {
  it('have one sum, in whatever order they are added, and of which each can be taken away again', () => {
    fc.assert(
      fc.property(any, any, any, (a, b, c) => {
        expect(add(a, b)).toEqual(add(b, a))
        expect(add(add(a, b), c)).toEqual(add(a, add(b, c)))
        expect(add(a, NO_COUNTS)).toEqual(a)
        expect(minus(add(a, b), b)).toEqual(a)
      }),
    )
  })

  it('are never less than nothing, and contain no counter that is 0', () => {
    fc.assert(
      fc.property(any, any, (a, b) => {
        for (const amount of Object.values(minus(a, b))) expect(amount).toBeGreaterThan(0)
        expect(minus(a, a)).toEqual(NO_COUNTS)
      }),
    )
  })

  it('stay as they are where others are added to them or taken away', () => {
    fc.assert(
      fc.property(any, any, (a, b) => {
        const before = structuredClone([a, b])
        add(a, b)
        minus(a, b)
        join(undefined, a, b, 'run')
        expect([a, b]).toEqual(before)
      }),
    )
  })
})

describe('the counts of two replicas', () => {
  it('are added in a sum: what each has counted since they parted counts once', () => {
    fc.assert(
      fc.property(any, any, any, (base, here, there) => {
        expect(join(base, add(base, here), add(base, there), 'sum')).toEqual(add(base, add(here, there)))
        expect(join(undefined, here, there, 'sum')).toEqual(add(here, there))
      }),
    )
  })

  it('of one run are the larger count of what the transcript shows, and the sum of all else', () => {
    const isShown = (name: string) => ['runs', 'iterations', 'tool_calls'].includes(name)
    fc.assert(
      fc.property(any, any, any, (base, here, there) => {
        const joined = join(base, add(base, here), add(base, there), 'run')
        const grown = amountsOf(here, there, (a, b, name) => (isShown(name) ? Math.max(a, b) : a + b))
        expect(whole(joined)).toEqual(whole(add(base, grown)))
      }),
    )
  })

  it('lose an iteration that one of them has given back, and nothing else that it has forgotten', () => {
    const [base, given] = [
      { iterations: 6, tool_calls: 5, cost: 2 },
      { iterations: 5, tool_calls: 5 },
    ]
    for (const of of ['run', 'sum'] as const) {
      expect(join(base, given, base, of)).toEqual({ iterations: 5, tool_calls: 5, cost: 2 })
      expect(join(base, given, { ...base, iterations: 8 }, of)).toMatchObject({ iterations: 7 })
    }
  })

  it('are the larger ones where nobody knows what they have in common', () => {
    fc.assert(
      fc.property(any, any, any, fc.constantFrom('run' as const, 'sum' as const), (base, here, there, of) => {
        expect(whole(join(base, here, there, of, true))).toEqual(amountsOf(here, there, (a, b) => Math.max(a, b)))
      }),
    )
  })
})

describe('the counts of an answer', () => {
  const usage = { input: 100, cachedInput: 40, output: 10, cost: 0.25, estimated: false }

  it('are what it used, and whether its price is known', () => {
    expect(countsOf(usage)).toEqual({ input: 100, cached_input: 40, output: 10, cost: 0.25 })
    const parts = countsOf({ ...usage, cacheWrite: 7, reasoning: 3, cost: undefined, costGap: 'partial' })
    expect(parts).toMatchObject({ cache_write: 7, reasoning: 3, unpriced_answers: 1 })
    expect(parts).not.toHaveProperty('cost')
    expect(countsOf({ ...usage, costGap: 'estimate' })).toMatchObject({ estimated_prices: 1 })
  })

  it('make the cost of a sum inexact as long as it contains one without an exact price', () => {
    const [exact, estimated, partial] = [undefined, 'estimate' as const, 'partial' as const].map((costGap) =>
      countsOf({ ...usage, costGap }),
    ) as [Counts, Counts, Counts]
    expect(costGapOf(exact)).toBeUndefined()
    expect(costGapOf(add(exact, estimated))).toBe('estimate')
    expect(costGapOf(add(estimated, partial))).toBe('partial')
    expect(costGapOf(minus(add(exact, partial), partial))).toBeUndefined()
  })
})
