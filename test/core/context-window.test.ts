import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  baseContext,
  effectiveContext,
  type KnownWindow,
  NO_WINDOW,
  type Reduction,
  reductionsAfterAcceptance,
  reductionsAfterOverflow,
  STANDARD_TIER,
  windowAfterAcceptance,
  windowAfterListing,
  windowAfterOverflow,
} from '../../src/core/context-window.ts'
import type { Overflow } from '../../src/overflow/meaning.ts'

const tokens = fc.integer({ min: 16, max: 2_000_000 })
const overflow: fc.Arbitrary<Overflow> = fc.oneof(
  tokens.map((limit): Overflow => ({ recovery: 'shrink_context', limit })),
  tokens.map((overflowBy): Overflow => ({ recovery: 'compress_only', overflowBy })),
  tokens.map((promptTokens): Overflow => ({ recovery: 'compress_only', promptTokens })),
  tokens.map((maxOutput): Overflow => ({ recovery: 'clamp_output_only', maxOutput })),
  fc.constant<Overflow>({ recovery: 'tier_downgrade' }),
  fc.constant<Overflow>({ recovery: 'unknown_overflow' }),
)
const known: fc.Arbitrary<KnownWindow> = fc.record({ declared: tokens, learned: tokens }, { requiredKeys: [] })
const of = { upstream: 'openai', model: 'm' }
const other = { upstream: 'openai', model: 'other' }

describe('the base context', () => {
  it('comes from the configuration, else from the provider, else from the catalogue, else it is unknown', () => {
    expect(baseContext(1_000, { learned: 500 }, 2_000)).toEqual({ tokens: 1_000, source: 'config' })
    expect(baseContext(undefined, { learned: 500, declared: 800 }, 2_000)).toEqual({
      tokens: 500,
      source: 'provider',
    })
    expect(baseContext(undefined, {}, 2_000)).toEqual({ tokens: 2_000, source: 'catalogue' })
    expect(baseContext(undefined, NO_WINDOW, undefined)).toEqual({ tokens: undefined, source: 'unknown' })
  })

  it('stays the same after an overflow that states no limit', () => {
    fc.assert(
      fc.property(known, overflow, (before, what) => {
        if (what.recovery === 'shrink_context') return
        expect(windowAfterOverflow(before, what)).toEqual(before)
      }),
    )
  })

  it('never rises, whatever limits providers state', () => {
    fc.assert(
      fc.property(known, fc.array(overflow), (before, refusals) => {
        let now = before
        for (const refusal of refusals) {
          const next = windowAfterOverflow(now, refusal)
          const [was, is] = [
            baseContext(undefined, now, undefined).tokens,
            baseContext(undefined, next, undefined).tokens,
          ]
          if (was !== undefined) expect(is).toBeLessThanOrEqual(was)
          now = next
        }
      }),
    )
  })

  it('loses its learned limit when a larger prompt succeeds, but not when a smaller one does', () => {
    fc.assert(
      fc.property(tokens, tokens, (limit, prompt) => {
        const learned = windowAfterOverflow(NO_WINDOW, { recovery: 'shrink_context', limit })
        expect(windowAfterAcceptance(learned, prompt).learned).toBe(prompt > limit ? undefined : limit)
      }),
    )
  })

  it('loses each stated limit that a larger accepted prompt shows to be wrong, and keeps the other', () => {
    const both = { declared: 100, learned: 300 }
    expect([99, 100].map((prompt) => windowAfterAcceptance(both, prompt))).toEqual([both, both])
    expect(windowAfterAcceptance(both, 101)).toEqual({ learned: 300 })
    expect(windowAfterAcceptance({ declared: 300, learned: 100 }, 101)).toEqual({ declared: 300 })
    expect(windowAfterAcceptance(both, 301)).toEqual({})
    expect(windowAfterAcceptance(NO_WINDOW, 301)).toBe(NO_WINDOW)
  })

  it('ignores an absurd window from any source', () => {
    for (const limit of [0, 1, -5, 1.5, Number.NaN, 1e12]) {
      expect(windowAfterOverflow(NO_WINDOW, { recovery: 'shrink_context', limit })).toBe(NO_WINDOW)
      expect(windowAfterListing(NO_WINDOW, limit)).toBe(NO_WINDOW)
    }
  })
})

describe('the effective context', () => {
  const base = { tokens: 1_000_000, source: 'catalogue' } as const
  const refused = (what: Overflow, now = 0, before: readonly Reduction[] = []) =>
    reductionsAfterOverflow(before, { ...of, overflow: what, now, ttl: 100 })

  it('is the base, or a smaller number with a reason and an expiry', () => {
    expect(effectiveContext(base, [], of, 0)).toEqual({ tokens: 1_000_000 })
    const reduced = refused({ recovery: 'shrink_context', limit: 128_000 })
    expect(effectiveContext(base, reduced, of, 50)).toEqual({
      tokens: 128_000,
      reason: 'stated_limit',
      until: 100,
    })
    expect(effectiveContext(base, reduced, of, 100)).toEqual({ tokens: 1_000_000 })
    expect(effectiveContext(base, reduced, other, 50)).toEqual({ tokens: 1_000_000 })
  })

  it('of a plan without long context is the standard tier, and the base stays the same', () => {
    expect(effectiveContext(base, refused({ recovery: 'tier_downgrade' }), of, 0)).toMatchObject({
      tokens: STANDARD_TIER,
      reason: 'tier',
    })
    expect(windowAfterOverflow(NO_WINDOW, { recovery: 'tier_downgrade' })).toBe(NO_WINDOW)
  })

  it('is never larger than the base, whatever is refused', () => {
    fc.assert(
      fc.property(tokens, fc.array(overflow), (window, refusals) => {
        const reductions = refusals.reduce<readonly Reduction[]>((held, what) => refused(what, 0, held), [])
        const { tokens: effective } = effectiveContext({ tokens: window, source: 'config' }, reductions, of, 0)
        expect(effective).toBeLessThanOrEqual(window)
      }),
    )
  })

  it('is restored by a larger accepted prompt in the session; the number of reductions is bounded', () => {
    const reduced = refused({ recovery: 'shrink_context', limit: 1_000 })
    expect(reductionsAfterAcceptance(reduced, of, 1_001)).toEqual([])
    expect(reductionsAfterAcceptance(reduced, of, 1_000)).toBe(reduced)
    expect(reductionsAfterAcceptance(reduced, other, 9_000)).toBe(reduced)
    let many: readonly Reduction[] = []
    for (let at = 0; at < 50; at++) {
      many = reductionsAfterOverflow(many, {
        upstream: 'u',
        model: `m${at}`,
        overflow: { recovery: 'tier_downgrade' },
        now: 0,
        ttl: 9,
      })
    }
    expect(many.length).toBe(16)
  })
})
