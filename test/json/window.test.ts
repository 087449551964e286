import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import { type Span, skipValue } from '../../src/json/scan.ts'
import { hasWindow, throughWindows } from '../../src/json/window.ts'

/** Longer than the first windows, so that any byte may be at the border of two windows. */
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

/** Returns where every value of a list ends, or the error. */
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
  it('values of a body end at the same offsets with windows as without', () => {
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

  it('an incomplete body is read the same with windows as without, in any order', () => {
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

  it('a body has no window once its reading has ended, even with an error', () => {
    const body = Buffer.from('"a')
    throughWindows(body, () => expect(hasWindow(body)).toBe(true))
    expect(hasWindow(body)).toBe(false)
    expect(() => throughWindows(body, () => skipValue(body, 0))).toThrow('closing quote')
    expect(hasWindow(body)).toBe(false)
  })
})

describe('a processor without the instructions', () => {
  it('bodies are read the same on a processor without the instructions', async () => {
    vi.stubGlobal('WebAssembly', undefined)
    vi.resetModules()
    const window = await import('../../src/json/window.ts')
    const scan = await import('../../src/json/scan.ts')
    vi.unstubAllGlobals()
    vi.resetModules()
    const body = Buffer.from(`["${'\\"'.repeat(9_000)}", {}]`)
    window.throughWindows(body, () => expect(scan.skipValue(body, 0)).toBe(body.length))
  })
})
