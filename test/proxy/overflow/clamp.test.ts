import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Overflow } from '../../../src/overflow/meaning.ts'
import { clampOutput } from '../../../src/proxy/overflow/recover.ts'

const overWindow = (promptTokens: number, limit: number): Overflow => ({
  recovery: 'clamp_output_only',
  limit,
  promptTokens,
  maxOutput: limit - promptTokens,
})

describe('a lowered output cap', () => {
  it('equals the limit that the provider stated, or the computed room minus a margin', () => {
    expect(clampOutput({ recovery: 'clamp_output_only', maxOutput: 4_096 }, { cap: 9_000 })).toEqual({
      cap: 4_096,
    })
    expect(clampOutput(overWindow(7_000, 8_000), { cap: 9_000 })).toEqual({ cap: 990 })
  })

  it('is smaller than the requested cap and fits the window, for any numbers', () => {
    const size = fc.integer({ min: 1, max: 500_000 })
    fc.assert(
      fc.property(size, size, size, fc.option(size, { nil: undefined }), (prompt, room, cap, thinking) => {
        const asked = thinking === undefined ? { cap } : { cap, thinking }
        const clamped = clampOutput(overWindow(prompt, prompt + room), asked)
        if (!clamped) return
        expect(clamped.cap).toBeLessThan(cap)
        expect(prompt + clamped.cap).toBeLessThan(prompt + room)
        if (clamped.thinking !== undefined) expect(clamped.thinking).toBeLessThan(clamped.cap)
      }),
    )
  })

  it('keeps a thinking budget that still fits, lowers one that does not, and is undefined when none would fit', () => {
    const bound = (maxOutput: number) => ({ recovery: 'clamp_output_only', maxOutput }) as const
    expect(clampOutput(bound(8_192), { cap: 20_000, thinking: 4_000 })).toEqual({
      cap: 8_192,
      thinking: 4_000,
    })
    expect(clampOutput(bound(8_192), { cap: 20_000, thinking: 16_000 })).toEqual({
      cap: 8_192,
      thinking: 6_553,
    })
    expect(clampOutput(bound(1_000), { cap: 20_000, thinking: 16_000 })).toBeUndefined()
  })

  it('is undefined when the provider stated no limit or nothing would be gained', () => {
    expect(clampOutput({ recovery: 'clamp_output_only' }, { cap: 9_000 })).toBeUndefined()
    expect(clampOutput({ recovery: 'clamp_output_only', maxOutput: 9_000 }, { cap: 9_000 })).toBeUndefined()
    expect(clampOutput({ recovery: 'clamp_output_only', maxOutput: 3 }, { cap: 9_000 })).toBeUndefined()
    expect(clampOutput({ recovery: 'shrink_context', limit: 9_000 }, { cap: 10_000 })).toBeUndefined()
  })
})
