import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { decode, elements, JsonScanError, kindAt, member, members, root, type Span } from '../../src/json/scan.ts'
import { jsonText } from './json-text.ts'

/** Builds the value from spans; JSON.parse decodes only strings and scalars. */
function rebuilt(json: Buffer, span: Span): unknown {
  switch (kindAt(json, span)) {
    case 'object':
      return Object.fromEntries(members(json, span).map(({ key, value }) => [key, rebuilt(json, value)]))
    case 'array':
      return elements(json, span).map((element) => rebuilt(json, element))
    case 'string':
    case 'scalar':
      return decode(json, span)
  }
}

const bytes = (text: string) => Buffer.from(text)

describe('the scanner', () => {
  it('the scanner finds in any JSON text what JSON.parse finds, with white space, escapes and repeated keys', () => {
    fc.assert(
      fc.property(jsonText, (text) => {
        const json = bytes(text)
        expect(rebuilt(json, root(json))).toEqual(JSON.parse(text))
      }),
      { numRuns: 300 },
    )
  })

  it('the scanner finds the members of an object in order, and the last of duplicate keys', () => {
    const json = bytes(' {"a" : 1, "b":[ ],"\\u0061": {"a":2} }\n')
    const found = members(json, root(json))
    expect(found.map(({ key }) => key)).toEqual(['a', 'b', 'a'])
    expect(found.map((one) => json.toString('utf8', one.start, one.end))).toEqual([
      '"a" : 1',
      '"b":[ ]',
      '"\\u0061": {"a":2}',
    ])
    const last = member(found, 'a')
    expect(last && decode(json, last.value)).toEqual({ a: 2 })
    expect(member(found, 'c')).toBeUndefined()
  })

  it('the scanner skips a byte order mark and counts it in offsets', () => {
    const json = bytes('\ufeff {"a":"ä"}')
    const [only] = members(json, root(json))
    expect(root(json)).toEqual({ start: 4, end: json.length })
    expect(only?.value && json.toString('utf8', only.value.start, only.value.end)).toBe('"ä"')
  })

  it('the scanner reads __proto__ as a key like any other', () => {
    const json = bytes('{"__proto__":{"x":1},"constructor":2}')
    expect(members(json, root(json)).map(({ key }) => key)).toEqual(['__proto__', 'constructor'])
  })

  it.each(['"\\\\"', '"\\""', '"\\\\\\""', '"a\\\\\\\\"'])('the scanner finds the end of the string %s', (text) => {
    const json = bytes(`[${text},1]`)
    const [first] = elements(json, root(json))
    expect(first).toEqual({ start: 1, end: 1 + text.length })
  })

  it('the scanner reads a hundred thousand nested arrays without running out of stack', () => {
    const json = bytes('['.repeat(100_000) + ']'.repeat(100_000))
    expect(root(json)).toEqual({ start: 0, end: 200_000 })
    expect(elements(json, root(json))).toEqual([{ start: 1, end: 199_999 }])
  })
})

describe('a text that is not JSON', () => {
  const broken = fc
    .tuple(jsonText, fc.nat(), fc.nat({ max: 3 }), fc.constantFrom('', ',', '"', '}', ']', '[', '{', '\\', ':', 'x'))
    .map(([text, at, cut, put]) => {
      const place = at % (text.length + 1)
      return text.slice(0, place) + put + text.slice(place + cut)
    })

  it('a text that is not JSON gives a scan error, or a span that JSON.parse refuses; valid JSON never does', () => {
    fc.assert(
      fc.property(broken, (text) => {
        const json = bytes(text)
        const parse = (): unknown => {
          try {
            return { value: JSON.parse(text) }
          } catch {
            return undefined
          }
        }
        const scan = (): unknown => {
          try {
            return { value: decode(json, root(json)) }
          } catch (error) {
            expect(error instanceof JsonScanError || error instanceof SyntaxError).toBe(true)
            return undefined
          }
        }
        // UTF-8 has no bytes for the lone surrogates that JSON.parse accepts.
        fc.pre(json.toString('utf8') === text)
        expect(scan()).toEqual(parse())
      }),
      { numRuns: 300 },
    )
  })

  it('a text that is not JSON never makes the scanner hang or throw anything but its own errors', () => {
    fc.assert(
      fc.property(broken, (text) => {
        const json = bytes(text)
        try {
          rebuilt(json, root(json))
        } catch (error) {
          expect(error instanceof JsonScanError || error instanceof SyntaxError).toBe(true)
        }
      }),
      { numRuns: 300 },
    )
  })

  it.each([
    ['', 'a value', 0],
    ['  ', 'a value', 2],
    ['{"a":1', 'a closing bracket', 0],
    ['"abc', 'a closing quote', 0],
    ['"abc\\"', 'a closing quote', 0],
    ['{} {}', 'the end of the text', 3],
    ['}', 'a value', 0],
  ])('the text %j lacks %s at byte %i', (text, expected, offset) => {
    const error = new JsonScanError(expected, offset)
    expect(() => root(bytes(text))).toThrow(error)
    expect(error.message).toBe(`expected ${expected} at byte ${offset}`)
  })

  it.each([
    ['{a:1}', 'a key', 1],
    ['{"a" 1}', 'a colon', 5],
    ['{"a":1 "b":2}', 'a comma', 7],
    ['{"a":1,}', 'a key', 7],
    ['{"a":}', 'a value', 5],
    ['{"\\x":1}', 'a key', 1],
    ['[1]', 'an object', 0],
  ])('the object %j lacks %s at byte %i', (text, expected, offset) => {
    const json = bytes(text)
    expect(() => members(json, root(json))).toThrow(new JsonScanError(expected, offset))
  })

  it.each([
    ['[1 2]', 'a comma', 3],
    ['[1,]', 'a value', 3],
    ['[,1]', 'a value', 1],
    ['{}', 'an array', 0],
  ])('the array %j lacks %s at byte %i', (text, expected, offset) => {
    const json = bytes(text)
    expect(() => elements(json, root(json))).toThrow(new JsonScanError(expected, offset))
  })
})
