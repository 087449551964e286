import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import { type Span, skipValue } from '../../src/json/scan.ts'
import { checksum, hasWindow, SUM_BLOCK, throughWindows } from '../../src/json/window.ts'

/** Longer than the first windows, so that anything may stand where one ends and the next begins. */
const long = fc.integer({ min: 1, max: 9_000 })

/** Pieces of a string as JSON, some of them long. */
const piece = fc.oneof(
  fc.constantFrom('', 'x', '\\"', '\\\\', '\\n', '{', ']', '\\\\\\"', 'ü', ',\\":'),
  fc
    .tuple(fc.constantFrom('x', '\\"', '\\\\', '\\\\\\"', '{[', '\\n'), long)
    .map(([text, count]) => text.repeat(count)),
)
const string = fc.array(piece, { maxLength: 6 }).map((pieces) => `"${pieces.join('')}"`)
const json = fc.letrec<{ value: string }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    string,
    fc.constantFrom('1', 'true', 'null', '[]', '{ }'),
    fc.array(tie('value'), { maxLength: 4 }).map((items) => `[${items.join(', ')}]`),
    fc
      .array(fc.tuple(string, tie('value')), { maxLength: 4 })
      .map((items) => `{${items.map(([k, v]) => `${k}: ${v}`).join(',')}}`),
  ),
})).value

/** Where every value of a list ends, or what is wrong with it. */
function endsIn(body: Buffer, starts: readonly number[]): unknown[] {
  return starts.map((start) => {
    try {
      return skipValue(body, start)
    } catch (error) {
      return String(error)
    }
  })
}

function laidOut(values: readonly string[]): { readonly body: Buffer; readonly spans: readonly Span[] } {
  const spans: Span[] = []
  let text = ''
  for (const value of values) {
    const start = Buffer.byteLength(text)
    text += `${value} `
    spans.push({ start, end: start + Buffer.byteLength(value) })
  }
  return { body: Buffer.from(text), spans }
}

describe('a body that is read through windows', () => {
  it('has its values end where they end', () => {
    fc.assert(
      fc.property(fc.array(json, { minLength: 1, maxLength: 6 }), (values) => {
        const { body, spans } = laidOut(values)
        const starts = spans.map(({ start }) => start)
        const ends = throughWindows(body, () => endsIn(body, starts))
        expect(ends).toEqual(spans.map(({ end }) => end))
      }),
      { numRuns: 300 },
    )
  })

  it('is read as without them wherever it breaks off, and in any order', () => {
    fc.assert(
      fc.property(fc.array(json, { minLength: 1, maxLength: 4 }), fc.nat(), (values, at) => {
        const { body, spans } = laidOut(values)
        const cut = body.subarray(0, at % (body.length + 1))
        const starts = spans.map(({ start }) => start).filter((start) => start < cut.length)
        for (const order of [starts, starts.toReversed()]) {
          expect(throughWindows(cut, () => endsIn(cut, order))).toEqual(endsIn(cut, order))
        }
      }),
      { numRuns: 300 },
    )
  })

  it('has none once it was read, also where that failed', () => {
    const body = Buffer.from('"a')
    throughWindows(body, () => expect(hasWindow(body)).toBe(true))
    expect(hasWindow(body)).toBe(false)
    expect(() => throughWindows(body, () => skipValue(body, 0))).toThrow('closing quote')
    expect(hasWindow(body)).toBe(false)
  })

  it('may have a checksum made of it in the middle', () => {
    const text = `"${'a'.repeat(100)}\\"${'b'.repeat(9_000)}"`
    const body = Buffer.from(text + text)
    throughWindows(body, () => {
      expect(skipValue(body, 0)).toBe(text.length)
      checksum(Buffer.alloc(200_000, '"'), 0, 200_000, 0)
      expect(skipValue(body, text.length)).toBe(body.length)
    })
  })
})

describe('a checksum', () => {
  const BYTES = Buffer.from(Array.from({ length: 300_000 }, (_, at) => (at * 31 + (at >> 7)) % 251))

  it('is the same however the bytes are divided into blocks', () => {
    const whole = checksum(BYTES, 5, BYTES.length, 0)
    fc.assert(
      fc.property(fc.array(fc.nat({ max: 292 }), { maxLength: 5 }), (cuts) => {
        let at = 5
        let sum = 0
        for (const cut of cuts.toSorted((a, b) => a - b)) {
          const next = 5 + cut * SUM_BLOCK
          sum = checksum(BYTES, at, next, sum)
          at = next
        }
        expect(checksum(BYTES, at, BYTES.length, sum)).toBe(whole)
      }),
    )
  })

  it('is another one when any bit is', () => {
    const bytes = Buffer.from(BYTES.subarray(0, 5_000))
    const whole = checksum(bytes, 0, bytes.length, 0)
    fc.assert(
      fc.property(fc.nat({ max: bytes.length - 1 }), fc.nat({ max: 7 }), (at, bit) => {
        const changed = Buffer.from(bytes)
        changed.writeUInt8((bytes[at] ?? 0) ^ (1 << bit), at)
        expect(checksum(changed, 0, changed.length, 0)).not.toBe(whole)
      }),
      { numRuns: 1_000 },
    )
  })

  it('is told apart where two digits change places or both count on', () => {
    const bytes = Buffer.alloc(4_096, '0')
    const seen = new Set<number>()
    for (let a = 0; a < 64; a++) {
      for (let b = 0; b < 64; b++) {
        const changed = Buffer.from(bytes)
        changed.write('1', a * 33)
        changed.write('2', b * 61)
        seen.add(checksum(changed, 0, changed.length, 0))
      }
    }
    expect(seen.size).toBe(64 * 64)
  })
})

describe('a processor that lacks the instructions', () => {
  it('has bodies read, and summed up, all the same', async () => {
    vi.stubGlobal('WebAssembly', undefined)
    vi.resetModules()
    const window = await import('../../src/json/window.ts')
    const scan = await import('../../src/json/scan.ts')
    vi.unstubAllGlobals()
    const body = Buffer.from(`["${'\\"'.repeat(9_000)}", {}]`)
    window.throughWindows(body, () => expect(scan.skipValue(body, 0)).toBe(body.length))
    const half = window.checksum(body, 0, 2 * window.SUM_BLOCK, 0)
    const whole = window.checksum(body, 0, body.length, 0)
    expect(window.checksum(body, 2 * window.SUM_BLOCK, body.length, half)).toBe(whole)
  })
})
