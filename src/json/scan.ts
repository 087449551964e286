/**
 * Finds the byte offsets of the values in a JSON text, without building the values: every byte that Governor does not
 * change must stay (`JSON.parse` → `JSON.stringify` turns 9007199254740993 into …992 and 1.0 into 1). It is no
 * validator: whether a span is valid JSON is known only once `JSON.parse` decodes it.
 */

import { STEPS_PER_VALUE, TooMuchToRead, type Work } from '../core/bounds/work.ts'
import { MAX_VALUES, parseForeign } from '../core/json-object.ts'

/** The place of a value in a buffer, as byte offsets; `end` is exclusive. */
export interface Span {
  readonly start: number
  readonly end: number
}

/** A member of an object: from the opening quote of its key to the end of its value. `key` is decoded. */
export interface Member extends Span {
  readonly key: string
  readonly value: Span
}

/** Reports a text that is not JSON: a structural character is missing at the byte `offset`. */
export class JsonScanError extends Error {
  override readonly name = 'JsonScanError'
  constructor(expected: string, offset: number) {
    super(`expected ${expected} at byte ${offset}`)
  }
}

export const QUOTE = 0x22
export const BACKSLASH = 0x5c
const COMMA = 0x2c
export const COLON = 0x3a
export const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
export const OPEN_BRACKET = 0x5b
export const CLOSE_BRACKET = 0x5d

export function isSpace(byte: number | undefined): boolean {
  return byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09
}

/** Returns the offset of the first byte at or after `from` that is not white space. */
export function skipSpace(json: Buffer, from: number): number {
  let at = from
  while (at < json.length && isSpace(json[at])) at++
  return at
}

/** Strings up to so many bytes are read byte by byte, as starting a search takes longer. Most keys and ids are. */
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
  for (; end < json.length; end++) {
    const byte = json[end]
    if (byte === COMMA || byte === CLOSE_BRACE || byte === CLOSE_BRACKET || byte === COLON || isSpace(byte)) break
  }
  if (end === at) throw new JsonScanError('a value', at)
  return end
}

function skipContainer(json: Buffer, at: number): number {
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
 * Returns the span of a JSON text's value, without white space and a byte order mark around it. @throws {JsonScanError}
 */
export function root(json: Buffer): Span {
  const start = rootStart(json)
  const end = skipValue(json, start)
  const rest = skipSpace(json, end)
  if (rest !== json.length) throw new JsonScanError('the end of the text', rest)
  return { start, end }
}

/** Returns where the value of a JSON text starts, after white space and a UTF-8 byte order mark. */
export function rootStart(json: Buffer): number {
  const mark = json[0] === 0xef && json[1] === 0xbb && json[2] === 0xbf ? 3 : 0
  return skipSpace(json, mark)
}

/**
 * `at` is the opening brace of an object; returns where its first key starts, or its closing brace.
 * @throws {JsonScanError}
 */
export function firstKey(json: Buffer, at: number): number {
  if (json[at] !== OPEN_BRACE) throw new JsonScanError('an object', at)
  const key = skipSpace(json, at + 1)
  if (json[key] !== QUOTE && json[key] !== CLOSE_BRACE) throw new JsonScanError('a key', key)
  return key
}

/** `end`: of a member's value; returns where the next key starts, or the closing brace. @throws {JsonScanError} */
export function nextKey(json: Buffer, end: number): number {
  const at = skipSpace(json, end)
  if (json[at] === CLOSE_BRACE) return at
  if (json[at] !== COMMA) throw new JsonScanError('a comma', at)
  const key = skipSpace(json, at + 1)
  if (json[key] !== QUOTE) throw new JsonScanError('a key', key)
  return key
}

/** `keyEnd` is the end of a key; returns where its value starts. @throws {JsonScanError} */
export function valueAfter(json: Buffer, keyEnd: number): number {
  const colon = skipSpace(json, keyEnd)
  if (json[colon] !== COLON) throw new JsonScanError('a colon', colon)
  return skipSpace(json, colon + 1)
}

/** Walks over the members of an object, which takes a step of `work` for each, without building them. */
export class MemberWalk {
  readonly #json: Buffer
  readonly #work: Work | undefined
  #keyEnd = 0
  /** Where the current member starts, with its key. */
  at: number
  /** Where the value of the current member starts. */
  value = 0
  /** Where it ends, if its reader knows that already; else 0. After the last member, the end of the object. */
  end = 0

  /** `brace` opens the object; `at`: where the first key to read starts. @throws {JsonScanError} */
  constructor(json: Buffer, brace: number, work?: Work, at = firstKey(json, brace)) {
    this.#json = json
    this.#work = work
    this.at = at
  }

  /**
   * Goes on to the next member; returns false if the object has no more.
   * @throws {JsonScanError}
   * @throws {TooMuchToRead}
   */
  next(): boolean {
    const json = this.#json
    const { value } = this
    if (value > 0) this.at = nextKey(json, this.end || skipValue(json, value))
    this.end = this.at + 1
    if (json[this.at] !== QUOTE) return false
    this.#work?.spend(1)
    this.#keyEnd = skipString(json, this.at)
    this.value = valueAfter(json, this.#keyEnd)
    this.end = 0
    return true
  }

  /** True if the current member has this key. */
  is(key: string): boolean {
    return isString(this.#json, this.at, this.#keyEnd, key)
  }

  /** Decodes the key of the current member. @throws {JsonScanError} */
  key(): string {
    return decodeKey(this.#json, this.at, this.#keyEnd)
  }

  /** Returns the end of the current value. @throws {JsonScanError} */
  skip(): number {
    this.end ||= skipValue(this.#json, this.value)
    return this.end
  }
}

/**
 * `at`: the opening bracket; returns where the first element starts, or the closing bracket. @throws {JsonScanError}
 */
export function firstElement(json: Buffer, at: number): number {
  if (json[at] !== OPEN_BRACKET) throw new JsonScanError('an array', at)
  return skipSpace(json, at + 1)
}

/** `end`: of an element; returns where the next one starts, or the closing bracket. @throws {JsonScanError} */
export function nextElement(json: Buffer, end: number): number {
  const at = skipSpace(json, end)
  if (json[at] === CLOSE_BRACKET) return at
  if (json[at] !== COMMA) throw new JsonScanError('a comma', at)
  const element = skipSpace(json, at + 1)
  if (json[element] === CLOSE_BRACKET) throw new JsonScanError('a value', element)
  return element
}

/**
 * Returns the members of the object at `container`, in order, including duplicate keys.
 * @throws {JsonScanError} @throws {TooMuchToRead} if it has more members than Governor builds.
 */
export function members(json: Buffer, container: Span, work?: Work): Member[] {
  const fields: Member[] = []
  let at = firstKey(json, container.start)
  while (json[at] === QUOTE) {
    const keyEnd = skipString(json, at)
    const start = valueAfter(json, keyEnd)
    const end = skipValue(json, start)
    if (fields.length === MAX_VALUES) throw new TooMuchToRead()
    work?.spend(STEPS_PER_VALUE)
    fields.push({ key: decodeKey(json, at, keyEnd), start: at, end, value: { start, end } })
    at = nextKey(json, end)
  }
  return fields
}

/**
 * True if the string between these offsets, quotes included, is `text`. It decodes the string only if that has escapes.
 */
export function isString(json: Buffer, start: number, end: number, text: string): boolean {
  // Up to the first byte that differs; if the string has an escape, it is that byte.
  for (let at = start + 1; at < end - 1; at++) {
    if (json[at] === text.charCodeAt(at - start - 1)) continue
    return json[at] === BACKSLASH && decodeKey(json, start, end) === text
  }
  return end - start - 2 === text.length
}

/** Decodes the key between two offsets, quotes included. @throws {JsonScanError} */
export function decodeKey(json: Buffer, start: number, end: number): string {
  const plain = json.toString('latin1', start + 1, end - 1)
  if (/^[ !#-[\]-~]*$/.test(plain)) return plain
  try {
    return String(JSON.parse(json.toString('utf8', start, end)))
  } catch {
    throw new JsonScanError('a key', start)
  }
}

/** Reads with `read` what starts at each element of the array at `at`; `end` is the array's. @throws {JsonScanError} */
export function elementsBy<Element extends Span>(json: Buffer, at: number, read: (start: number) => Element) {
  const found: Element[] = []
  let start = firstElement(json, at)
  while (json[start] !== CLOSE_BRACKET) {
    const element = read(start)
    found.push(element)
    start = nextElement(json, element.end)
  }
  return { elements: found, end: start + 1 }
}

/**
 * Returns the spans of the elements of the array at `container`.
 * @throws {JsonScanError} @throws {TooMuchToRead} if it has more elements than Governor builds.
 */
export function elements(json: Buffer, container: Span): Span[] {
  let count = 0
  const spanAt = (start: number): Span => {
    const end = skipValue(json, start)
    if (count++ === MAX_VALUES) throw new TooMuchToRead()
    return { start, end }
  }
  return elementsBy(json, container.start, spanAt).elements
}

/** Returns the last member named `key`, as `JSON.parse` does; `undefined` if there is none. */
export function member(fields: readonly Member[], key: string): Member | undefined {
  for (let at = fields.length - 1; at >= 0; at--) if (fields[at]?.key === key) return fields[at]
  return undefined
}

/** Returns the value (JSON text) of a member of a JSON object; `undefined` if it has none. @throws {JsonScanError} */
export function memberText(json: Buffer, key: string): string | undefined {
  const value = member(members(json, root(json)), key)?.value
  return value && json.toString('utf8', value.start, value.end)
}

/** Returns the kind of a value by its first byte; `scalar` is a number, true, false or null. */
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

/**
 * Decodes the value at `span`.
 * @throws {SyntaxError} if it is not valid JSON, or contains more or deeper values than Governor builds.
 */
export function decode(json: Buffer, span: Span): unknown {
  return parseForeign(json.toString('utf8', span.start, span.end), span.end - span.start)
}

/** Decodes the string at `span`. @throws {SyntaxError} if it is not valid JSON. */
export function decodeStringIn(json: Buffer, { start, end }: Span): string {
  const quoted = json.toString('utf8', start, end)
  return quoted.includes('\\') ? String(JSON.parse(quoted)) : quoted.slice(1, -1)
}
