/**
 * Reads JSON of clients and providers whose fields are not checked yet, within bounds. A bracket is one byte for its
 * writer and an object of a hundred bytes for its reader, so text that nests or branches further than the values of any
 * API is not parsed.
 */
import { STEPS_PER_VALUE, TooMuchToRead, type Work } from './bounds/work.ts'

/** The most characters of an id, of a call's arguments, or of an error. */
export const MAX_LENGTH = 65_536

/** The deepest nesting of objects and lists. */
const MAX_DEPTH = 64

/** The most values in one text, however long it is: a long text is mostly one string. */
export const MAX_VALUES = 65_536

const QUOTE = 0x22
const COMMA = 0x2c
const OPEN_BRACKET = 0x5b
const BACKSLASH = 0x5c
const CLOSE_BRACKET = 0x5d
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d

/** Returns the offset after the string that begins at `at`, or of the text's end if the string is not closed. */
export function afterString(text: string, at: number): number {
  let quote = at
  for (;;) {
    quote = text.indexOf('"', quote + 1)
    if (quote === -1) return text.length
    let backslashes = 0
    while (text.charCodeAt(quote - 1 - backslashes) === BACKSLASH) backslashes++
    if (backslashes % 2 === 0) return quote + 1
  }
}

/**
 * Returns an upper bound for the values in a JSON text, counted by brackets and commas; `undefined` if they are too
 * many or too deep, or if the text has more than `maxLength` characters. The count ends as soon as a bound is exceeded.
 */
export function countValues(text: string, maxLength: number = MAX_LENGTH): number | undefined {
  if (text.length > maxLength) return undefined
  let depth = 0
  let values = 1
  let at = 0
  while (at < text.length) {
    const code = text.charCodeAt(at)
    if (code === QUOTE) {
      at = afterString(text, at)
      continue
    }
    if (code === COMMA) values++
    else if (code === OPEN_BRACKET || code === OPEN_BRACE) {
      values++
      depth++
      if (depth > MAX_DEPTH) return undefined
    } else if (code === CLOSE_BRACKET || code === CLOSE_BRACE) depth--
    if (values > MAX_VALUES) return undefined
    at++
  }
  return values
}

/**
 * Parses a JSON text of at most `maxLength` characters; `work` counts it. Throws `SyntaxError` if it is not JSON.
 * Throws `TooMuchToRead` if the text is longer, if its values are too many or too deep, or if `work` is used up.
 */
export function parseForeign(text: string, maxLength: number = MAX_LENGTH, work?: Work): unknown {
  const values = countValues(text, maxLength)
  if (values === undefined) throw new TooMuchToRead()
  work?.decode(text.length)
  work?.spend(values * STEPS_PER_VALUE)
  return JSON.parse(text)
}

/** Decoded JSON that came from outside: every field may be missing or of another type. */
export type Json = Record<string, unknown>

/** True for a JSON object; false for arrays and null. */
export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Strings, and numbers that Python writes and JSON does not have. A text that is not closed is taken up to the end. */
const STRING_OR_NAN = /"[^"\\]*(?:\\.[^"\\]*)*"?|-?\b(?:NaN|Infinity)\b/gs

/**
 * Parses a JSON object, also after a byte order mark, or with the `NaN` of Python; `undefined` for any other text, or
 * more or deeper values than are built. `work` counts it.
 */
export function parseObject(text: string, work?: Work): Json | undefined {
  const unmarked = text.startsWith('\ufeff') ? text.slice(1) : text
  try {
    const value: unknown = parseForeign(unmarked, unmarked.length, work)
    return isObject(value) ? value : undefined
  } catch (error) {
    if (!(error instanceof SyntaxError) || !/NaN|Infinity/.test(unmarked)) return undefined
    const strict = unmarked.replace(STRING_OR_NAN, (found) => (found.startsWith('"') ? found : 'null'))
    return strict === unmarked ? undefined : parseObject(strict, work)
  }
}

/** Returns the value if it is a string, else the empty string. */
export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/** Returns the own property `key` of a value; `undefined` if the value is not an object or lacks it. */
export function propertyOf(value: unknown, key: string): unknown {
  return isObject(value) && Object.hasOwn(value, key) ? value[key] : undefined
}

/** Returns the object under `key` of a value; an empty one if there is none. */
export function objectIn(value: unknown, key: string): Json {
  const inner = propertyOf(value, key)
  return isObject(inner) ? inner : {}
}

/** Returns the objects in a list; an empty list if the value is not a list. */
export function objectsOf(value: unknown): Json[] {
  return Array.isArray(value) ? value.filter(isObject) : []
}
