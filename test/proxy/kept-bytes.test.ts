import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { KeptBytes, Segments } from '../../src/proxy/kept-bytes.ts'

const text = fc.string({ maxLength: 40 }).map((value) => Buffer.from(value))

describe('bytes that are kept', () => {
  it('are those of whatever was put there last, whoever else keeps some in the same memory', () => {
    const change = fc.record({ run: fc.nat({ max: 3 }), keep: fc.nat(), bytes: text, skip: fc.nat() })
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 9 }), fc.array(change, { maxLength: 40 }), (size, changes) => {
        const memory = new Segments(size)
        const runs = Array.from({ length: 4 }, () => new KeptBytes(memory))
        const expected = runs.map(() => Buffer.alloc(0))
        for (const { run, keep, bytes, skip } of changes) {
          const before = expected[run] ?? Buffer.alloc(0)
          const from = keep % (before.length + 1)
          const start = skip % (bytes.length + 1)
          runs[run]?.replace(from, bytes, start, bytes.length)
          expected[run] = Buffer.concat([before.subarray(0, from), bytes.subarray(start)])
          for (const [at, kept] of runs.entries()) {
            const own = expected[at] ?? Buffer.alloc(0)
            expect(kept.length).toBe(own.length)
            expect(kept.equals(0, own.length, own, 0)).toBe(true)
            expect(kept.equals(Math.floor(own.length / 2), own.length, own, Math.floor(own.length / 2))).toBe(
              true,
            )
          }
        }
      }),
      { numRuns: 200 },
    )
  })

  it('equal no others, nor any that end too early', () => {
    fc.assert(
      fc.property(text, fc.nat(), (bytes, dice) => {
        fc.pre(bytes.length > 0)
        const kept = new KeptBytes(new Segments(8))
        kept.replace(0, bytes, 0, bytes.length)
        const other = Buffer.from(bytes)
        const at = dice % bytes.length
        other[at] = (other[at] ?? 0) ^ 1
        expect(kept.equals(0, bytes.length, other, 0)).toBe(false)
        expect(kept.equals(0, at, other, 0)).toBe(true)
        expect(kept.equals(at + 1, bytes.length, other, at + 1)).toBe(true)
        expect(kept.equals(0, bytes.length + 1, Buffer.concat([bytes, bytes]), 0)).toBe(false)
        expect(kept.equals(0, bytes.length, bytes.subarray(1), 0)).toBe(false)
      }),
    )
  })

  it('leave their memory to others when they are freed', () => {
    const memory = new Segments(8)
    const bytes = Buffer.alloc(80, 'x')
    const first = new KeptBytes(memory)
    first.replace(0, bytes, 0, 80)
    first.free()
    expect(first.length).toBe(0)
    expect(first.equals(0, 1, bytes, 0)).toBe(false)
    const again = Array.from({ length: 10 }, () => memory.take())
    expect(new Set(again).size).toBe(10)
    expect(Math.max(...again)).toBeLessThan(64)
  })
})
