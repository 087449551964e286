/** Finds what a response says of itself in a piece of its bytes, which may begin and end anywhere. */
import { decode, skipSpace, skipValue } from '../../json/scan.ts'
import { isObject, type Json } from './json-object.ts'

const BACKSLASH = 0x5c
const COLON = 0x3a
const OPEN_BRACE = 0x7b
const QUOTE = 0x22

/** More places of one key than this are not looked at: a model may have written it any number of times. */
const MAX_PLACES = 64

function decodedAt(bytes: Buffer, start: number): unknown {
  try {
    return decode(bytes, { start, end: skipValue(bytes, start) })
  } catch {
    // Cut off where the piece ends.
    return undefined
  }
}

/** Where the value of the member starts whose key has its opening quote `at`; -1 where it is none. */
function valueStart(bytes: Buffer, at: number, keyLength: number): number {
  // In a string the quote has a backslash before it.
  if (bytes[at - 1] === BACKSLASH) return -1
  const colon = skipSpace(bytes, at + keyLength)
  return bytes[colon] === COLON ? skipSpace(bytes, colon + 1) : -1
}

/** The last complete object that is the value of a member `key`, at whatever depth. */
export function lastObject(bytes: Buffer, key: string): Json | undefined {
  const quoted = `"${key}"`
  let at = bytes.lastIndexOf(quoted)
  for (let place = 0; at !== -1 && place < MAX_PLACES; place++) {
    const start = valueStart(bytes, at, quoted.length)
    const value = start !== -1 && bytes[start] === OPEN_BRACE ? decodedAt(bytes, start) : undefined
    if (isObject(value)) return value
    if (at === 0) break
    at = bytes.lastIndexOf(quoted, at - 1)
  }
  return undefined
}

/** The first text that is the value of a member `key`, at whatever depth. */
export function firstText(bytes: Buffer, key: string): string | undefined {
  const quoted = `"${key}"`
  let at = bytes.indexOf(quoted)
  for (let place = 0; at !== -1 && place < MAX_PLACES; place++) {
    const start = valueStart(bytes, at, quoted.length)
    const value = start !== -1 && bytes[start] === QUOTE ? decodedAt(bytes, start) : undefined
    if (typeof value === 'string') return value
    at = bytes.indexOf(quoted, at + quoted.length)
  }
  return undefined
}

/** The last text that is the value of a member `key`, at whatever depth. */
export function lastText(bytes: Buffer, key: string): string | undefined {
  const quoted = `"${key}"`
  let at = bytes.lastIndexOf(quoted)
  for (let place = 0; at !== -1 && place < MAX_PLACES; place++) {
    const start = valueStart(bytes, at, quoted.length)
    const value = start !== -1 && bytes[start] === QUOTE ? decodedAt(bytes, start) : undefined
    if (typeof value === 'string') return value
    if (at === 0) break
    at = bytes.lastIndexOf(quoted, at - 1)
  }
  return undefined
}

/** No call takes more: what is larger is no count. */
const MAX_TOKENS = 1e10

/** A count of tokens; `undefined` where the value is none. */
export function tokens(value: unknown): number | undefined {
  const isCount = typeof value === 'number' && Number.isFinite(value) && value >= 0 && value <= MAX_TOKENS
  return isCount ? Math.round(value) : undefined
}

/** A member of a value that may be no object at all. */
export function inside(value: unknown, key: string): unknown {
  return isObject(value) && Object.hasOwn(value, key) ? value[key] : undefined
}

/** Fields whose text the model wrote, in any of the dialects. */
const WRITTEN =
  /"(?:content|text|delta|arguments|partial_json|thinking|reasoning|reasoning_content|refusal|input)"\s{0,4}:\s{0,4}"((?:[^"\\]|\\.)*)"/g

/** Returns how many characters the model wrote in a piece of a response. */
export function writtenCharacters(bytes: Buffer): number {
  let characters = 0
  for (const [, written = ''] of bytes.toString('latin1').matchAll(WRITTEN)) characters += written.length
  return characters
}
