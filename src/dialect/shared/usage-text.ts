/** Finds usage, ids and texts in a piece of a response, which may begin and end anywhere. */
import { isObject, type Json } from '../../core/json-object.ts'
import { decode, skipSpace, skipValue } from '../../json/scan.ts'

const BACKSLASH = 0x5c
const COLON = 0x3a
const OPEN_BRACE = 0x7b
const QUOTE = 0x22

/** At most this many places of one key are tried: the model may have written it any number of times. */
const MAX_PLACES = 64

/** Returns the first or last value under `key`, at any depth, that is whole and begins with the byte `first`. */
function valueUnder(bytes: Buffer, key: string, first: number, isLast: boolean): unknown {
  const quoted = `"${key}"`
  let at = isLast ? bytes.lastIndexOf(quoted) : bytes.indexOf(quoted)
  for (let place = 0; at !== -1 && place < MAX_PLACES; place++) {
    // A quote within a string has a backslash before it.
    const colon = bytes[at - 1] === BACKSLASH ? -1 : skipSpace(bytes, at + quoted.length)
    const start = bytes[colon] === COLON ? skipSpace(bytes, colon + 1) : -1
    try {
      if (bytes[start] === first) return decode(bytes, { start, end: skipValue(bytes, start) })
    } catch {
      // The piece ends within the value.
    }
    if (!isLast) at = bytes.indexOf(quoted, at + quoted.length)
    else at = at === 0 ? -1 : bytes.lastIndexOf(quoted, at - 1)
  }
  return undefined
}

/** Returns the last complete object under `key`, at any depth; `undefined` if there is none. */
export function lastObject(bytes: Buffer, key: string): Json | undefined {
  const value = valueUnder(bytes, key, OPEN_BRACE, true)
  return isObject(value) ? value : undefined
}

/** Returns the last string under `key`, at any depth; `undefined` if there is none. */
export function lastText(bytes: Buffer, key: string): string | undefined {
  return valueUnder(bytes, key, QUOTE, true) as string | undefined
}

/** Returns the first string under `key`, at any depth; `undefined` if there is none. */
export function firstText(bytes: Buffer, key: string): string | undefined {
  return valueUnder(bytes, key, QUOTE, false) as string | undefined
}

/** No response uses more tokens than this: a larger number is not a count. */
const MAX_TOKENS = 1e10

/** Returns a number of tokens; `undefined` if the value is not a count. */
export function tokens(value: unknown): number | undefined {
  const isCount = typeof value === 'number' && Number.isFinite(value) && value >= 0 && value <= MAX_TOKENS
  return isCount ? Math.round(value) : undefined
}

/** Fields whose text the model wrote, in all dialects. */
const WRITTEN =
  /"(?:content|text|delta|arguments|partial_json|thinking|reasoning|reasoning_content|refusal|input)"\s{0,4}:\s{0,4}"((?:[^"\\]|\\.)*)"/g

/** Returns how many characters the model wrote in a piece of a response. */
export function writtenCharacters(bytes: Buffer): number {
  let characters = 0
  for (const [, written = ''] of bytes.toString('latin1').matchAll(WRITTEN)) characters += written.length
  return characters
}
