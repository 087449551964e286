/**
 * Decodes values that are only compared and searched. A string that is so long that it must be an attachment or a file
 * is shortened to its beginning, a hash of all of it, and its end.
 */

import { STEPS_PER_VALUE, TooMuchToRead, type Work } from '../core/bounds/work.ts'
import { hashOfBytes, withoutMiddle } from '../core/hash.ts'
import { countValues, MAX_VALUES } from '../core/json-object.ts'
import {
  BACKSLASH,
  CLOSE_BRACKET,
  decode,
  decodeStringIn,
  firstElement,
  kindAt,
  type Member,
  members,
  nextElement,
  QUOTE,
  type Span,
  skipString,
  skipValue,
} from './scan.ts'

/** The length in bytes up to which a string is decoded whole. */
const LONG = 131_072
/** How many bytes are kept at each end of a longer string. */
const KEPT = 4_096

const LETTER_U = 0x75
const ESCAPE = 6

function isContinuation(byte: number | undefined): boolean {
  return byte !== undefined && (byte & 0xc0) === 0x80
}

/** Returns where the kept beginning of a string ends, between two characters. `at` is the opening quote. */
function endOfHead(json: Buffer, at: number): number {
  let end = at + 1
  while (end < at + KEPT || isContinuation(json[end])) {
    if (json[end] !== BACKSLASH) end++
    else end += json[end + 1] === LETTER_U ? ESCAPE : 2
  }
  return end
}

/** Returns where the kept end of a string begins: not within a character, nor within an escape. */
function startOfTail(json: Buffer, end: number): number {
  let start = end - KEPT
  let escaped = json.lastIndexOf(BACKSLASH, start - 1)
  for (; start < end - 1; start++) {
    if (start - escaped >= ESCAPE && !isContinuation(json[start])) break
    if (json[start] === BACKSLASH) escaped = start
  }
  return start
}

/** Returns the JSON text of a long string, shortened. @throws {TooMuchToRead} */
function shortString(json: Buffer, { start, end }: Span, work: Work): string {
  work.hash(end - start)
  const [head, tail] = [endOfHead(json, start), startOfTail(json, end)]
  const hash = hashOfBytes(json.subarray(start, end))
  return withoutMiddle(json.toString('utf8', start, head), hash, json.toString('utf8', tail, end))
}

/** Returns the JSON text of a value, with its long strings shortened. @throws {TooMuchToRead} */
function shortened(json: Buffer, span: Span, work: Work): string {
  const { start, end } = span
  if (end - start <= LONG) return json.toString('utf8', start, end)
  if (json[start] === QUOTE) return shortString(json, span, work)
  let text = ''
  let from = start
  let at = json.indexOf(QUOTE, start)
  while (at !== -1 && at < end) {
    work.spend(STEPS_PER_VALUE)
    const after = skipString(json, at)
    if (after - at > LONG) {
      text += json.toString('utf8', from, at) + shortString(json, { start: at, end: after }, work)
      from = after
    }
    at = json.indexOf(QUOTE, after)
  }
  return text + json.toString('utf8', from, end)
}

/**
 * Decodes one value of a body, with its long strings shortened; a hash of it if it contains more or deeper values than
 * Governor builds. Without `work`, the value as it is.
 * @throws {SyntaxError}
 * @throws {TooMuchToRead} if that takes more steps than `work` has left.
 */
export function decodeToCompare(json: Buffer, span: Span, work: Work | undefined): unknown {
  if (!work) return decode(json, span)
  const text = shortened(json, span, work)
  const values = countValues(text, text.length)
  if (values === undefined || !work.build(values)) return hashOfBytes(json.subarray(span.start, span.end))
  work.decode(text.length)
  return JSON.parse(text)
}

/** Values of more bytes are decoded in pieces. */
export const PIECE = 16_384
/** How deep the pieces of a value may lie in it: a content is a list of parts with members. */
const PIECES_DEPTH = 3

/**
 * Decodes one value like `decodeToCompare`, and yields wherever other requests should have their turn. What it contains
 * beyond a bound is left out.
 */
export function* decodeInTurns(
  json: Buffer,
  span: Span,
  work: Work,
  depth: number = PIECES_DEPTH,
): Generator<void, unknown> {
  if (work.isDue) yield
  const kind = kindAt(json, span)
  const hasPieces = (kind === 'array' || kind === 'object') && span.end - span.start > PIECE
  if (depth === 0 || !hasPieces) return decodeToCompare(json, span, work)
  if (kind === 'object') {
    const entries: [string, unknown][] = []
    let fields: readonly Member[] = []
    try {
      fields = members(json, span, work)
    } catch (error) {
      if (!(error instanceof TooMuchToRead)) throw error
    }
    for (const { key, value } of fields) entries.push([key, yield* decodeInTurns(json, value, work, depth - 1)])
    return Object.fromEntries(entries)
  }
  const values: unknown[] = []
  let at = firstElement(json, span.start)
  while (json[at] !== CLOSE_BRACKET && values.length < MAX_VALUES) {
    const end = skipValue(json, at)
    work.spend(1)
    values.push(yield* decodeInTurns(json, { start: at, end }, work, depth - 1))
    at = nextElement(json, end)
  }
  return values
}

/** Decodes a string, shortened if it is long and there is `work`. @throws {SyntaxError} @throws {TooMuchToRead} */
export function decodeStringToCompare(json: Buffer, span: Span, work: Work | undefined): string {
  if (!work) return decodeStringIn(json, span)
  const text = shortened(json, span, work)
  work.decode(text.length)
  return text.includes('\\') ? String(JSON.parse(text)) : text.slice(1, -1)
}
