import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { callHash, canonicalArguments } from '../../../src/core/loop/tool-call.ts'

const isSame = (a: string, b: string) => callHash('tool', a) === callHash('tool', b)

/** The same value with the keys of every object in another order, and white space between everything. */
function rewritten(value: unknown): string {
  if (Array.isArray(value)) return `[ ${value.map(rewritten).join(' ,\n')} ]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const members = Object.entries(value).map(([key, inner]) => `${JSON.stringify(key)} : ${rewritten(inner)}`)
  return `{\t${members.toReversed().join(' , ')} }`
}

describe('the hash of a call', () => {
  it('is the same in any key order and with any white space', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 5 }), (value) => {
        expect(isSame(JSON.stringify(value), rewritten(value))).toBe(true)
      }),
    )
  })

  it('differs if any value differs', () => {
    const value = fc.jsonValue({ maxDepth: 4 })
    fc.assert(
      fc.property(value, value, (a, b) => {
        const [first, second] = [JSON.stringify(a), JSON.stringify(b)]
        expect(isSame(first, second)).toBe(isDeepStrictEqual(JSON.parse(first), JSON.parse(second)))
      }),
    )
  })

  it.each([
    { why: 'the way a number is written', a: '{"n":1}', b: '{"n":1.0}' },
    { why: 'a digit that no double holds', a: '{"n":9007199254740992}', b: '{"n":9007199254740993}' },
    { why: 'a number in quotes', a: '{"n":1}', b: '{"n":"1"}' },
    { why: 'the order of a list', a: '{"l":["a","b"]}', b: '{"l":["b","a"]}' },
    { why: 'how lists are nested', a: '[[1],2]', b: '[[1,2]]' },
    { why: 'white space in a text', a: '{"c":"a b"}', b: '{"c":"a  b"}' },
    { why: 'an empty object and an empty list', a: '{}', b: '[]' },
    { why: 'nothing and an empty object', a: '', b: '{}' },
    { why: 'a key that other objects are made with', a: '{"__proto__":{"a":1}}', b: '{"__proto__":{"a":2}}' },
    { why: 'its very end', a: `{"c":"${'x'.repeat(200_000)}a"}`, b: `{"c":"${'x'.repeat(200_000)}b"}` },
    { why: 'text that is no JSON', a: '{"c": "a', b: '{"c":  "a' },
  ])('differs because of $why', ({ a, b }) => {
    expect(isSame(a, b)).toBe(false)
    expect(isSame(a, a)).toBe(true)
  })

  it.each([
    { why: 'escapes that need not be', a: '{"p":"a\\u002fb\\/c"}', b: '{"p":"a/b/c"}' },
    { why: 'a key that is escaped', a: '{"\\u0061":1,"b":[]}', b: '{"b":[],"a":1}' },
    { why: 'a key that stands twice, of which readers take the last', a: '{"a":[1],"a":2}', b: '{"a":2}' },
    { why: 'the same with texts', a: '{"a":"1","a":"2"}', b: '{"a":"2"}' },
    { why: 'numbers beside texts', a: '{"b":"x","a":7}', b: '{"a":7,"b":"x"}' },
  ])('stays the same despite $why', ({ a, b }) => {
    expect(isSame(a, b)).toBe(true)
  })

  it('is the same with any description and progress of a task, if the call has another argument', () => {
    const others = fc.dictionary(fc.stringMatching(/^[a-z]{1,4}$/), fc.jsonValue(), { minKeys: 1 })
    const remark = fc.record(
      { description: fc.string(), task_progress: fc.oneof(fc.string(), fc.array(fc.string())) },
      { requiredKeys: [] },
    )
    fc.assert(
      fc.property(others, remark, remark, (args, a, b) => {
        expect(isSame(JSON.stringify({ ...a, ...args }), JSON.stringify({ ...args, ...b }))).toBe(true)
      }),
    )
  })

  it('is the same with another intent in a few words, and differs by an index or a name in its place', () => {
    const read = (i: unknown) => JSON.stringify({ i, path: 'a.txt' })
    expect(isSame(read('Reading the settings'), read('Looking once more'))).toBe(true)
    expect(isSame(read(1), read(2))).toBe(false)
    expect(isSame(read('first'), read('second'))).toBe(false)
    expect(isSame('{"i":"Reading the settings"}', '{"i":"Looking once more"}')).toBe(false)
  })

  it.each([
    ['alone', '{"description":"a"}', '{"description":"b"}'],
    ['beside each other alone', '{"description":"a","task_progress":"x"}', '{"description":"a","task_progress":"y"}'],
    ['within another argument', '{"a":{"description":"a","b":1}}', '{"a":{"description":"b","b":1}}'],
    ['within a list', '[{"description":"a","b":1}]', '[{"description":"b","b":1}]'],
  ])('differs by a description that stands %s', (_, a, b) => {
    expect(isSame(a, b)).toBe(false)
  })

  it('differs for another tool, even if name and arguments join to the same text', () => {
    expect(callHash('a', '{}')).not.toBe(callHash('b', '{}'))
    expect(callHash('a', 'b{')).not.toBe(callHash('ab', '{'))
  })

  it.each([
    '',
    ' ',
    'null',
    '"text"',
    '7',
    '[1,]',
    '{"a":}',
    '{"a" 1}',
    '{,}',
    '[1 2]',
    '{"a":1}}',
    'tru',
    '01',
    '-',
    '"\n"',
  ])('exists for the arguments %j', (text) => {
    expect(callHash('tool', text)).toMatch(/^[\w-]{22}$/)
  })

  it('treats the same texts as JSON as JSON.parse does', () => {
    const unit = fc.constantFrom(
      '{',
      '}',
      '[',
      ']',
      ',',
      ':',
      '"',
      '\\',
      ' ',
      '1',
      '0',
      '-',
      '.',
      'e',
      'a',
      'null',
      '"a":',
      '\n',
    )
    fc.assert(
      fc.property(fc.string({ unit, maxLength: 12 }), (text) => {
        let isJson = true
        try {
          JSON.parse(text)
        } catch {
          isJson = false
        }
        // White space around JSON is removed, and is kept around other text.
        expect(canonicalArguments(`${text} `) === canonicalArguments(`${text}\n`)).toBe(isJson)
      }),
      { numRuns: 5_000 },
    )
  })

  const deep = (levels: number, inner: string) => `${'['.repeat(levels)}${inner}${']'.repeat(levels)}`

  it('uses the text as it is if that is nested deeper than 64 levels or longer than 64 KB', () => {
    const long = (gap: string) => `{"a":1,${gap}"b":"${'x'.repeat(65_536)}"}`
    expect(isSame(deep(63, '{"x":1,"y":2}'), deep(63, '{"y":2, "x":1}'))).toBe(true)
    expect(isSame(deep(64, '{"x":1,"y":2}'), deep(64, '{"y":2, "x":1}'))).toBe(false)
    expect(isSame(deep(100_000, '1'), deep(100_000, '1'))).toBe(true)
    expect(isSame(deep(100_000, '1'), deep(100_000, '2'))).toBe(false)
    expect(isSame(long(''), long(' '))).toBe(false)
    expect(isSame(long(''), long(''))).toBe(true)
    expect(isSame('['.repeat(300_000), '['.repeat(300_001))).toBe(false)
  })
})
