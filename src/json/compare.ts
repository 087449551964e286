/**
 * Decodes what is to be compared and searched, and never shown: of a string so long that it is a picture, a document or a file,
 * its beginning, its end, and what tells it from every other.
 */
import { parseForeign } from '../core/foreign-json.ts'
import { hashOfBytes } from '../core/hash.ts'
import { STEPS_PER_VALUE, type Work } from '../core/work.ts'
import { type Span, skipString, skipValue } from './scan.ts'
import { throughWindows } from './window.ts'

/** Bytes of a string that is decoded as a whole. */
const LONG = 131_072
/** Bytes that are kept of each end of a longer one. */
const KEPT = 4_096

const QUOTE = 0x22
const BACKSLASH = 0x5c
const LETTER_U = 0x75
/** Bytes that an escape takes at most. */
const ESCAPE = 6

function isContinuation(byte: number | undefined): boolean {
  return byte !== undefined && (byte & 0xc0) === 0x80
}

/** Where the beginning of a string ends that is kept: between two characters. `at` is its opening quote. */
function endOfHead(json: Buffer, at: number): number {
  let end = at + 1
  while (end < at + KEPT || isContinuation(json[end])) {
    if (json[end] !== BACKSLASH) end++
    else end += json[end + 1] === LETTER_U ? ESCAPE : 2
  }
  return end
}

/** Where the end of a string begins that is kept: not within a character, nor within an escape. */
function startOfTail(json: Buffer, end: number): number {
  let start = end - KEPT
  let escaped = json.lastIndexOf(BACKSLASH, start - 1)
  for (; start < end - 1; start++) {
    if (start - escaped >= ESCAPE && !isContinuation(json[start])) break
    if (json[start] === BACKSLASH) escaped = start
  }
  return start
}

/** The JSON text of a long string between two offsets, shortened. */
function shortString(json: Buffer, { start, end }: Span, work: Work): string {
  work.hash(end - start)
  const [head, tail] = [endOfHead(json, start), startOfTail(json, end)]
  const name = hashOfBytes(json.subarray(start, end))
  return `${json.toString('utf8', start, head)} ${name} ${json.toString('utf8', tail, end)}`
}

/** The JSON text of a value, with its long strings shortened. @throws {TooMuchToRead} */
function shortened(json: Buffer, span: Span, work: Work): string {
  const { start, end } = span
  if (end - start <= LONG) return json.toString('utf8', start, end)
  if (json[start] === QUOTE) return shortString(json, span, work)
  return throughWindows(json, () => withShortStrings(json, span, work))
}

function withShortStrings(json: Buffer, { start, end }: Span, work: Work): string {
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
 * Decodes one value of a body, its long strings shortened.
 * @throws {SyntaxError} when it is not valid JSON, or holds more or deeper values than are built.
 * @throws {TooMuchToRead} when that is more than may be done in one go.
 */
export function decodeToCompare(json: Buffer, span: Span, work: Work): unknown {
  const text = shortened(json, span, work)
  return parseForeign(text, text.length, work)
}

/** The same for a value that is a string. */
export function decodeStringToCompare(json: Buffer, span: Span, work: Work): string {
  const text = shortened(json, span, work)
  work.decode(text.length)
  return text.includes('\\') ? String(JSON.parse(text)) : text.slice(1, -1)
}

/** The same for the value that starts `at`. @throws {JsonScanError} when it is not JSON. */
export function decodeAtToCompare(json: Buffer, at: number, work: Work): unknown {
  const end = throughWindows(json, () => skipValue(json, at))
  return decodeToCompare(json, { start: at, end }, work)
}
