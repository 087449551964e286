import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { indexList } from '../../src/json/list.ts'
import {
  decode,
  decodeKey,
  decodeStringIn,
  firstKey,
  isString,
  member,
  members,
  nextKey,
  root,
  type Span,
  skipString,
  skipValue,
  valueAfter,
} from '../../src/json/scan.ts'
import { jsonText, objectText } from './json-text.ts'

const readItem = (json: Buffer, at: number): Span => ({ start: at, end: skipValue(json, at) })

/** Walks over an object and returns the offset after it. */
function walkObject(
  json: Buffer,
  at: number,
  visit: (keyStart: number, keyEnd: number, value: number) => void,
): number {
  let key = firstKey(json, at)
  while (json[key] === 0x22) {
    const keyEnd = skipString(json, key)
    const value = valueAfter(json, keyEnd)
    visit(key, keyEnd, value)
    key = nextKey(json, skipValue(json, value))
  }
  return key + 1
}

const space = fc.constantFrom('', ' ', '\n\t')

/** Objects with a list or another value under `a`, once or twice. */
const withList = fc
  .tuple(
    space,
    fc.array(
      fc.tuple(
        fc.constantFrom('"a"', '"\\u0061"', '"b"', '"__proto__"', '"ab"', '""'),
        fc.oneof(
          fc.array(objectText, { maxLength: 4 }).map((items) => `[${items.join(',')}]`),
          jsonText,
        ),
      ),
      { maxLength: 4 },
    ),
  )
  .map(
    ([gap, fields]) =>
      `${gap}{${gap}${fields.map(([key, value]) => `${key}${gap}:${gap}${value}`).join(`${gap},`)}${gap}}${gap}`,
  )

describe('the index of a list', () => {
  it('the index finds in any JSON text the fields and the items that JSON.parse finds', () => {
    fc.assert(
      fc.property(fc.oneof(withList, jsonText), (text) => {
        const json = Buffer.from(text)
        const index = indexList(json, 'a', readItem)
        const value: unknown = JSON.parse(text)
        const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
        const list = isObject && Object.hasOwn(value, 'a') ? Reflect.get(value, 'a') : undefined
        const isNone = isObject && (list ?? null) === null
        if (!Array.isArray(list) && !isNone) {
          expect(index).toBeUndefined()
          return
        }
        expect(index?.items.map((item) => decode(json, item))).toEqual(list ?? [])
        if (list !== undefined) expect(index && decode(json, index.list)).toEqual(list)
        expect(index?.object).toEqual(root(json))
        expect(index?.fields).toEqual(members(json, root(json)))
      }),
      { numRuns: 500 },
    )
  })

  it('the index skips a hundred thousand nested brackets without running out of stack', () => {
    const deep = '['.repeat(100_000) + ']'.repeat(100_000)
    expect(indexList(Buffer.from(`{"x":${deep},"a":[{"y":${deep}}]}`), 'a', readItem)?.items).toHaveLength(1)
  })
})

describe('a walk over an object', () => {
  it('a walk visits the members of any object in order, as JSON.parse reads them', () => {
    fc.assert(
      fc.property(objectText, (text) => {
        const json = Buffer.from(text.trim())
        const visited: [string, number][] = []
        const end = walkObject(json, 0, (start, keyEnd, value) => {
          visited.push([String(JSON.parse(json.toString('utf8', start, keyEnd))), value])
        })
        expect(end).toBe(json.length)
        expect(visited).toEqual(members(json, root(json)).map(({ key, value }) => [key, value.start]))
      }),
      { numRuns: 200 },
    )
  })

  it('a walk recognizes a key however it is escaped', () => {
    fc.assert(
      fc.property(objectText, fc.constantFrom('a', 'b', '', 'ab', 'ä', '"'), (text, name) => {
        const json = Buffer.from(text.trim())
        walkObject(json, 0, (start, end) => {
          const key: unknown = JSON.parse(json.toString('utf8', start, end))
          // The names that the reader compares are ASCII.
          if (/^[\x20-\x7e]*$/.test(name)) expect(isString(json, start, end, name)).toBe(key === name)
          expect(decodeKey(json, start, end)).toBe(key)
          expect(decodeStringIn(json, { start, end: skipString(json, start) })).toBe(key)
        })
      }),
      { numRuns: 300 },
    )
    expect(member(members(Buffer.from('{"\\u0061":1}'), { start: 0, end: 12 }), 'a')).toBeDefined()
  })

  it.each([
    ['[', 'an object', 0],
    ['{', 'a key', 1],
    ['{"a"', 'a colon', 4],
    ['{"a":', 'a value', 5],
    ['{"a":1', 'a comma', 6],
    ['{"a":1 "b"', 'a comma', 7],
    ['{"a":1,}', 'a key', 7],
  ])('the object %j lacks %s at byte %i', (text, expected, offset) => {
    expect(() => walkObject(Buffer.from(text), 0, () => undefined)).toThrow(`expected ${expected} at byte ${offset}`)
  })
})
