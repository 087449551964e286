/**
 * Finds the values of a JSON text by their byte positions, without building the tree.
 *
 * Governor must change single places of a body and leave every other byte as the client wrote it
 * (`JSON.parse` → `JSON.stringify` turns 9007199254740993 into …992 and 1.0 into 1), so it works on spans.
 * The scanner skips what it is not asked about and is therefore no validator: a span is only as valid as
 * the `JSON.parse` that decodes it.
 */

import { MAX_VALUES, parseForeign } from '../core/foreign-json.ts'
import { STEPS_PER_VALUE, TooMuchToRead, type Work } from '../core/work.ts'
import { endOfContainer, endOfString, hasWindow } from './window.ts'

/** A value's place in a buffer: byte offsets, `end` exclusive. */
export interface Span {
  readonly start: number
  readonly end: number
}

/** One member of an object: where its key starts (the opening quote), its decoded key, its value's span. */
export interface Member extends Span {
  readonly key: string
  readonly value: Span
}

/** The text is not JSON where a structural character was expected; `offset` is the byte position. */
export class JsonScanError extends Error {
  override readonly name = 'JsonScanError'
  readonly offset: number
  constructor(expected: string, offset: number) {
    super(`expected ${expected} at byte ${offset}`)
    this.offset = offset
  }
}

const QUOTE = 0x22
const BACKSLASH = 0x5c
const COMMA = 0x2c
const COLON = 0x3a
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

export function isSpace(byte: number | undefined): boolean {
  return byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09
}

/** The offset of the first byte at or after `from` that is no white space. */
export function skipSpace(json: Buffer, from: number): number {
  let at = from
  while (at < json.length && isSpace(json[at])) at++
  return at
}

/** Most strings are keys, names and ids, which end before a search for their end would have begun. */
const SHORT = 24

/** `at` is the opening quote; returns the offset after the closing one. @throws {JsonScanError} */
export function skipString(json: Buffer, at: number): number {
  const near = Math.min(at + SHORT, json.length)
  let quote = at
  for (let next = at + 1; next < near; next++) {
    const byte = json[next]
    if (byte === QUOTE) return next + 1
    if (byte === BACKSLASH) break
    quote = next
  }
  if (hasWindow(json)) {
    const end = endOfString(json, quote + 1)
    if (end === -1) throw new JsonScanError('a closing quote', at)
    return end
  }
  for (;;) {
    quote = json.indexOf(QUOTE, quote + 1)
    if (quote === -1) throw new JsonScanError('a closing quote', at)
    if (json[quote - 1] !== BACKSLASH) return quote + 1
    let backslashes = 1
    while (json[quote - 1 - backslashes] === BACKSLASH) backslashes++
    if (backslashes % 2 === 0) return quote + 1
  }
}

/** `at` is the first byte of a value; returns the offset after its last one. @throws {JsonScanError} */
export function skipValue(json: Buffer, at: number): number {
  const first = json[at]
  if (first === QUOTE) return skipString(json, at)
  if (first === OPEN_BRACE || first === OPEN_BRACKET) return skipContainer(json, at)
  let end = at
  while (end < json.length && !isDelimiter(json[end])) end++
  if (end === at) throw new JsonScanError('a value', at)
  return end
}

function isDelimiter(byte: number | undefined): boolean {
  return byte === COMMA || byte === CLOSE_BRACE || byte === CLOSE_BRACKET || byte === COLON || isSpace(byte)
}

function skipContainer(json: Buffer, at: number): number {
  if (hasWindow(json)) {
    const end = endOfContainer(json, at)
    if (typeof end === 'number') return end
    throw end.quote === undefined
      ? new JsonScanError('a closing bracket', at)
      : new JsonScanError('a closing quote', end.quote)
  }
  let depth = 0
  let offset = at
  while (offset < json.length) {
    const byte = json[offset]
    if (byte === QUOTE) {
      offset = skipString(json, offset)
      continue
    }
    if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++
    else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) {
      depth--
      if (depth === 0) return offset + 1
    }
    offset++
  }
  throw new JsonScanError('a closing bracket', at)
}

/**
 * The span of the one value a JSON text holds, white space and a UTF-8 byte order mark aside.
 * @throws {JsonScanError} when there is none or anything but white space follows it.
 */
export function root(json: Buffer): Span {
  const start = rootStart(json)
  const end = skipValue(json, start)
  const rest = skipSpace(json, end)
  if (rest !== json.length) throw new JsonScanError('the end of the text', rest)
  return { start, end }
}

/** Where the one value of a JSON text starts: white space and a UTF-8 byte order mark come before it. */
export function rootStart(json: Buffer): number {
  const mark = json[0] === 0xef && json[1] === 0xbb && json[2] === 0xbf ? 3 : 0
  return skipSpace(json, mark)
}

/**
 * `at` is the opening brace of an object; returns where its first key starts, or where its closing brace is. To go
 * through an object: `firstKey`, then, for as long as there is a quote, `skipString`, `valueAfter`, and `nextKey` from
 * where the value ends. @throws {JsonScanError}
 */
export function firstKey(json: Buffer, at: number): number {
  if (json[at] !== OPEN_BRACE) throw new JsonScanError('an object', at)
  const key = skipSpace(json, at + 1)
  if (json[key] !== QUOTE && json[key] !== CLOSE_BRACE) throw new JsonScanError('a key', key)
  return key
}

/** A member's value ends before `end`; returns where the next key starts, or where the closing brace is. @throws {JsonScanError} */
export function nextKey(json: Buffer, end: number): number {
  const at = skipSpace(json, end)
  if (json[at] === CLOSE_BRACE) return at
  if (json[at] !== COMMA) throw new JsonScanError('a comma', at)
  const key = skipSpace(json, at + 1)
  if (json[key] !== QUOTE) throw new JsonScanError('a key', key)
  return key
}

/** Where the value starts of the member whose key ends before `keyEnd`. @throws {JsonScanError} */
export function valueAfter(json: Buffer, keyEnd: number): number {
  const colon = skipSpace(json, keyEnd)
  if (json[colon] !== COLON) throw new JsonScanError('a colon', colon)
  return skipSpace(json, colon + 1)
}

/** `at` is the opening bracket of an array; returns where its first element starts, or where its closing bracket is. */
export function firstElement(json: Buffer, at: number): number {
  if (json[at] !== OPEN_BRACKET) throw new JsonScanError('an array', at)
  return skipSpace(json, at + 1)
}

/** An element ends before `end`; returns where the next one starts, or where the closing bracket is. @throws {JsonScanError} */
export function nextElement(json: Buffer, end: number): number {
  const at = skipSpace(json, end)
  if (json[at] === CLOSE_BRACKET) return at
  if (json[at] !== COMMA) throw new JsonScanError('a comma', at)
  const element = skipSpace(json, at + 1)
  if (json[element] === CLOSE_BRACKET) throw new JsonScanError('a value', element)
  return element
}

/**
 * The members of the object at `container`, in order, duplicates included.
 * @throws {JsonScanError} when the value there is not an object.
 * @throws {TooMuchToRead}
 */
export function members(json: Buffer, container: Span, work?: Work): Member[] {
  const found: Member[] = []
  let at = firstKey(json, container.start)
  while (json[at] === QUOTE) {
    const keyEnd = skipString(json, at)
    const start = valueAfter(json, keyEnd)
    const end = skipValue(json, start)
    if (found.length === MAX_VALUES) throw new TooMuchToRead()
    work?.spend(STEPS_PER_VALUE)
    found.push({ key: decodeKey(json, at, keyEnd), start: at, end, value: { start, end } })
    at = nextKey(json, end)
  }
  return found
}

/** Is the key between these offsets, quotes included, `name`? Decodes it only where it is written with escapes. */
export function isKey(json: Buffer, start: number, end: number, name: string): boolean {
  // Up to the first byte that differs; an escape can be that byte only.
  for (let at = start + 1; at < end - 1; at++) {
    if (json[at] === name.charCodeAt(at - start - 1)) continue
    return json[at] === BACKSLASH && decodeKey(json, start, end) === name
  }
  return end - start - 2 === name.length
}

/** Is what stands between these offsets, quotes included, `text`, without any escape? */
export function isPlainly(json: Buffer, start: number, end: number, text: string): boolean {
  if (end - start - 2 !== text.length) return false
  for (let at = 0; at < text.length; at++) {
    if (json[start + 1 + at] !== text.charCodeAt(at)) return false
  }
  return true
}

/** The key between two offsets, quotes included. @throws {JsonScanError} */
export function decodeKey(json: Buffer, start: number, end: number): string {
  const plain = json.toString('latin1', start + 1, end - 1)
  if (/^[ !#-[\]-~]*$/.test(plain)) return plain
  try {
    return String(JSON.parse(json.toString('utf8', start, end)))
  } catch {
    throw new JsonScanError('a key', start)
  }
}

/**
 * The spans of the elements of the array at `container`.
 * @throws {JsonScanError} when the value there is not an array.
 * @throws {TooMuchToRead}
 */
export function elements(json: Buffer, container: Span): Span[] {
  const found: Span[] = []
  let at = firstElement(json, container.start)
  while (json[at] !== CLOSE_BRACKET) {
    const end = skipValue(json, at)
    if (found.length === MAX_VALUES) throw new TooMuchToRead()
    found.push({ start: at, end })
    at = nextElement(json, end)
  }
  return found
}

/** The last member named `key`: where a key stands twice, JSON readers take the last. */
export function member(found: readonly Member[], key: string): Member | undefined {
  for (let at = found.length - 1; at >= 0; at--) if (found[at]?.key === key) return found[at]
  return undefined
}

/** Returns the value (JSON text) of a member of a JSON object; `undefined` if it has none. @throws {JsonScanError} */
export function memberText(json: Buffer, key: string): string | undefined {
  const value = member(members(json, root(json)), key)?.value
  return value && json.toString('utf8', value.start, value.end)
}

/** What a span starts as; `scalar` is a number, true, false or null. */
export function kindAt(json: Buffer, span: Span): 'object' | 'array' | 'string' | 'scalar' {
  switch (json[span.start]) {
    case OPEN_BRACE:
      return 'object'
    case OPEN_BRACKET:
      return 'array'
    case QUOTE:
      return 'string'
    default:
      return 'scalar'
  }
}

/** Decodes one span, however long. @throws {SyntaxError} when it is not valid JSON, or holds more or deeper values than are built. */
export function decode(json: Buffer, span: Span): unknown {
  return parseForeign(json.toString('utf8', span.start, span.end), span.end - span.start)
}

/** Decodes the string that starts `at`. @throws {SyntaxError} when it is not valid JSON. */
export function decodeString(json: Buffer, at: number): string {
  return decodeStringIn(json, { start: at, end: skipString(json, at) })
}

/** The same where its end is known. */
export function decodeStringIn(json: Buffer, { start, end }: Span): string {
  const quoted = json.toString('utf8', start, end)
  return quoted.includes('\\') ? String(JSON.parse(quoted)) : quoted.slice(1, -1)
}
