import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { pressureOf, type Thresholds, tierOf } from '../../../src/core/budget/budget-notices.ts'
import type { Meter } from '../../../src/core/budget/meters.ts'
import { isExhausted } from '../../../src/core/budget/meters.ts'

const ADAPTIVE: Thresholds = { style: 'tiers', caution: 0.7, warning: 0.9, adaptive: true }
const FIXED: Thresholds = { ...ADAPTIVE, adaptive: false }
const RANKS = ['none', 'caution', 'warning']

const iterations = (used: number, max: number): Meter => ({ name: 'iterations', used, max })
const toolCalls = (used: number, max: number): Meter => ({ name: 'tool_calls', used, max })

const anyThresholds = fc
  .tuple(fc.double({ min: 0, max: 1, noNaN: true }), fc.double({ min: 0, max: 1, noNaN: true }), fc.boolean())
  .map(([a, b, adaptive]) => ({
    style: 'tiers' as const,
    caution: Math.min(a, b),
    warning: Math.max(a, b),
    adaptive,
  }))

describe('the tier of a budget', () => {
  it.each([
    { max: 60, caution: 42, warning: 54 },
    { max: 20, caution: 14, warning: 18 },
    { max: 10, caution: 7, warning: 8 },
    { max: 100, caution: 70, warning: 90 },
    { max: 5, caution: 2, warning: 3 },
    { max: 1000, caution: 970, warning: 990 },
    { max: 2, caution: 1, warning: 1 },
    { max: 1, caution: 1, warning: 1 },
  ])('of $max is caution from $caution and warning from $warning', ({ max, caution, warning }) => {
    for (let used = 1; used <= max; used++) {
      const expected = used >= warning ? 'warning' : used >= caution ? 'caution' : 'none'
      expect(`${used}: ${tierOf(iterations(used, max), ADAPTIVE)}`).toBe(`${used}: ${expected}`)
    }
  })

  it.each([
    { max: 5, caution: 4, warning: 5 },
    { max: 1000, caution: 700, warning: 900 },
    { max: 60, caution: 42, warning: 54 },
  ])(
    'of $max is caution from $caution and warning from $warning when adaptive is false',
    ({ max, caution, warning }) => {
      const at = (used: number) => tierOf(iterations(used, max), FIXED)
      expect([at(caution - 1), at(caution), at(warning - 1), at(warning)]).toEqual([
        'none',
        'caution',
        'caution',
        'warning',
      ])
    },
  )

  it('is none when nothing was used or there is no limit', () => {
    expect(tierOf(toolCalls(0, 1), ADAPTIVE)).toBe('none')
    expect(tierOf(iterations(1_000_000, 0), ADAPTIVE)).toBe('none')
  })

  it('never falls as more is used', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 2_000 }), fc.nat(), anyThresholds, (max, from, thresholds) => {
        const used = from % (max + 2)
        const rank = (at: number) => RANKS.indexOf(tierOf(iterations(at, max), thresholds))
        expect(rank(used + 1)).toBeGreaterThanOrEqual(rank(used))
      }),
      { numRuns: 300 },
    )
  })

  it('starts caution when 3 to 30 are left, and warning when 2 to 10 are left, for any shares', () => {
    fc.assert(
      fc.property(fc.integer({ min: 4, max: 2_000 }), anyThresholds, (max, shares) => {
        const tierWith = (left: number) => tierOf(iterations(max - left, max), { ...shares, adaptive: true })
        expect(tierWith(3)).not.toBe('none')
        expect(tierWith(2)).toBe('warning')
        if (max > 31) expect(tierWith(31)).toBe('none')
        if (max > 11) expect(tierWith(11)).not.toBe('warning')
      }),
      { numRuns: 200 },
    )
  })
})

describe('the tier of several meters', () => {
  it('is the highest of their tiers, and names its meter', () => {
    const calm = iterations(5, 60)
    const hard = toolCalls(18, 20)
    expect(pressureOf([calm, hard], ADAPTIVE)).toEqual({ tier: 'warning', meter: hard })
    expect(pressureOf([hard, calm], ADAPTIVE)).toEqual({ tier: 'warning', meter: hard })
    expect(pressureOf([], ADAPTIVE)).toBeUndefined()
  })

  it('names the meter with the larger used share, and the first of two equal ones', () => {
    const more = toolCalls(16, 20)
    expect(pressureOf([iterations(42, 60), more], ADAPTIVE)?.meter).toBe(more)
    const [first, second] = [iterations(14, 20), toolCalls(14, 20)]
    expect(pressureOf([first, second], ADAPTIVE)?.meter).toBe(first)
  })
})

const exhausted = (meters: readonly Meter[]) => meters.find(isExhausted)

describe('exhaustion', () => {
  it('of iterations comes with the iteration after the last one of the budget', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 10_000 }), fc.nat({ max: 20_000 }), (max, used) => {
        const meter = iterations(used, max)
        expect(exhausted([meter])).toBe(used > max ? meter : undefined)
      }),
      { numRuns: 200 },
    )
    expect(exhausted([iterations(60, 60)])).toBeUndefined()
    expect(exhausted([iterations(61, 60)])).toEqual(iterations(61, 60))
  })

  it('of tool calls comes when the last one is used, because the next answer could make another', () => {
    expect(exhausted([toolCalls(19, 20)])).toBeUndefined()
    expect(exhausted([iterations(3, 60), toolCalls(20, 20)])).toEqual(toolCalls(20, 20))
    expect(exhausted([toolCalls(23, 20)])).toEqual(toolCalls(23, 20))
  })
})
