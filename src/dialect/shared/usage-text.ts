/** Finds usage, ids and texts in a piece of a response, which may begin and end anywhere. */
import { isObject, type Json } from '../../core/json-object.ts'
import { decode, skipSpace, skipValue } from '../../json/scan.ts'

const BACKSLASH = 0x5c
const COLON = 0x3a
const OPEN_BRACE = 0x7b
const QUOTE = 0x22

/** At most this many places of one key are tried: the model may have written it any number of times. */
const MAX_PLACES = 64

function decodedAt(bytes: Buffer, start: number): unknown {
  try {
    return decode(bytes, { start, end: skipValue(bytes, start) })
  } catch {
    // The piece ends within the value.
    return undefined
  }
}

/**
 * Returns the value of a member whose key starts `at`, if that value starts with the byte `first`; `undefined` if it
 * does not.
 */
function valueAt(bytes: Buffer, at: number, keyLength: number, first: number): unknown {
  // A quote within a string has a backslash before it.
  if (bytes[at - 1] === BACKSLASH) return undefined
  const colon = skipSpace(bytes, at + keyLength)
  const start = bytes[colon] === COLON ? skipSpace(bytes, colon + 1) : -1
  return bytes[start] === first ? decodedAt(bytes, start) : undefined
}

function lastValue(bytes: Buffer, key: string, first: number): unknown {
  const quoted = `"${key}"`
  let at = bytes.lastIndexOf(quoted)
  for (let place = 0; at !== -1 && place < MAX_PLACES; place++) {
    const value = valueAt(bytes, at, quoted.length, first)
    if (value !== undefined || at === 0) return value
    at = bytes.lastIndexOf(quoted, at - 1)
  }
  return undefined
}

/** Returns the last complete object under `key`, at any depth; `undefined` if there is none. */
export function lastObject(bytes: Buffer, key: string): Json | undefined {
  const value = lastValue(bytes, key, OPEN_BRACE)
  return isObject(value) ? value : undefined
}

/** Returns the last string under `key`, at any depth; `undefined` if there is none. */
export function lastText(bytes: Buffer, key: string): string | undefined {
  const value = lastValue(bytes, key, QUOTE)
  return typeof value === 'string' ? value : undefined
}

/** Returns the first string under `key`, at any depth; `undefined` if there is none. */
export function firstText(bytes: Buffer, key: string): string | undefined {
  const quoted = `"${key}"`
  let at = bytes.indexOf(quoted)
  for (let place = 0; at !== -1 && place < MAX_PLACES; place++) {
    const value = valueAt(bytes, at, quoted.length, QUOTE)
    if (typeof value === 'string') return value
    at = bytes.indexOf(quoted, at + quoted.length)
  }
  return undefined
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
