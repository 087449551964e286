/**
 * Finds the values of a JSON text by their byte positions, without building the tree.
 *
 * Governor must change single places of a body and leave every other byte as the client wrote it
 * (`JSON.parse` → `JSON.stringify` turns 9007199254740993 into …992 and 1.0 into 1), so it works on spans.
 * The scanner skips what it is not asked about and is therefore no validator: a span is only as valid as
 * the `JSON.parse` that decodes it.
 */

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
  while (isSpace(json[at])) at++
  return at
}

/** `at` is the opening quote; returns the offset after the closing one. */
function skipString(json: Buffer, at: number): number {
  let quote = at
  for (;;) {
    quote = json.indexOf(QUOTE, quote + 1)
    if (quote === -1) throw new JsonScanError('a closing quote', at)
    let backslashes = 0
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

/** Calls `visit` for every item between two brackets; `readItem` returns the offset after the item. */
function eachItem(json: Buffer, container: Span, open: number, readItem: (at: number) => number): void {
  if (json[container.start] !== open) {
    throw new JsonScanError(open === OPEN_BRACE ? 'an object' : 'an array', container.start)
  }
  const close = container.end - 1
  let at = skipSpace(json, container.start + 1)
  while (at < close) {
    at = skipSpace(json, readItem(at))
    if (at === close) return
    if (json[at] !== COMMA) throw new JsonScanError('a comma', at)
    at = skipSpace(json, at + 1)
    if (at === close) throw new JsonScanError('a value', at)
  }
}

/**
 * The members of the object at `container`, in order, duplicates included.
 * @throws {JsonScanError} when the value there is not an object.
 */
export function members(json: Buffer, container: Span): Member[] {
  const found: Member[] = []
  eachItem(json, container, OPEN_BRACE, (at) => {
    const { key, start } = keyAt(json, at)
    const end = skipValue(json, start)
    found.push({ key, start: at, end, value: { start, end } })
    return end
  })
  return found
}

/** The key of the member that starts `at`, decoded, and where its value starts. @throws {JsonScanError} */
export function keyAt(json: Buffer, at: number): { readonly key: string; readonly start: number } {
  if (json[at] !== QUOTE) throw new JsonScanError('a key', at)
  const keyEnd = skipString(json, at)
  const colon = skipSpace(json, keyEnd)
  if (json[colon] !== COLON) throw new JsonScanError('a colon', colon)
  return { key: decodeKey(json, at, keyEnd), start: skipSpace(json, colon + 1) }
}

/**
 * Walks the object whose opening brace is `at` and tells of each member where its value starts; returns the offset after
 * the closing brace. `keyStart` and `keyEnd` are those of the key's quotes. A visitor that has read a value itself
 * returns where it ends.
 * @throws {JsonScanError}
 */
export function walkObject(
  json: Buffer,
  at: number,
  visit: (keyStart: number, keyEnd: number, valueStart: number) => number | undefined,
): number {
  if (json[at] !== OPEN_BRACE) throw new JsonScanError('an object', at)
  let offset = skipSpace(json, at + 1)
  if (json[offset] === CLOSE_BRACE) return offset + 1
  for (;;) {
    if (json[offset] !== QUOTE) throw new JsonScanError('a key', offset)
    const keyEnd = skipString(json, offset)
    const colon = skipSpace(json, keyEnd)
    if (json[colon] !== COLON) throw new JsonScanError('a colon', colon)
    const start = skipSpace(json, colon + 1)
    const end = visit(offset, keyEnd, start)
    offset = skipSpace(json, end ?? skipValue(json, start))
    if (json[offset] === CLOSE_BRACE) return offset + 1
    if (json[offset] !== COMMA) throw new JsonScanError('a comma', offset)
    offset = skipSpace(json, offset + 1)
  }
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

function decodeKey(json: Buffer, start: number, end: number): string {
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
 */
export function elements(json: Buffer, container: Span): Span[] {
  const found: Span[] = []
  eachItem(json, container, OPEN_BRACKET, (at) => {
    const end = skipValue(json, at)
    found.push({ start: at, end })
    return end
  })
  return found
}

/** The last member named `key`: where a key stands twice, JSON readers take the last. */
export function member(found: readonly Member[], key: string): Member | undefined {
  return found.findLast((candidate) => candidate.key === key)
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

/** Decodes one span. @throws {SyntaxError} when it is not valid JSON. */
export function decode(json: Buffer, span: Span): unknown {
  return JSON.parse(json.toString('utf8', span.start, span.end))
}
