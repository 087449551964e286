/**
 * Decodes values that are only compared and searched. A string that is so long that it must be an attachment or a file is
 * shortened to its beginning, a hash of all of it, and its end.
 */
import { parseForeign } from '../core/foreign-json.ts'
import { hashOfBytes } from '../core/hash.ts'
import { STEPS_PER_VALUE, type Work } from '../core/work.ts'
import { type Span, skipString, skipValue } from './scan.ts'
import { throughWindows } from './window.ts'

/** The length in bytes up to which a string is decoded whole. */
const LONG = 131_072
/** How many bytes are kept at each end of a longer string. */
const KEPT = 4_096

const QUOTE = 0x22
const BACKSLASH = 0x5c
const LETTER_U = 0x75
/** The length in bytes of the longest escape. */
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
  return `${json.toString('utf8', start, head)} ${hash} ${json.toString('utf8', tail, end)}`
}

/** Returns the JSON text of a value, with its long strings shortened. @throws {TooMuchToRead} */
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
 * Decodes one value of a body, with its long strings shortened.
 * @throws {SyntaxError} if it is not valid JSON, or contains more or deeper values than Governor builds.
 * @throws {TooMuchToRead} if that takes more steps than `work` has left.
 */
export function decodeToCompare(json: Buffer, span: Span, work: Work): unknown {
  const text = shortened(json, span, work)
  return parseForeign(text, text.length, work)
}

/** Decodes a string, shortened if it is long. @throws {SyntaxError} @throws {TooMuchToRead} */
export function decodeStringToCompare(json: Buffer, span: Span, work: Work): string {
  const text = shortened(json, span, work)
  work.decode(text.length)
  return text.includes('\\') ? String(JSON.parse(text)) : text.slice(1, -1)
}

/** Decodes the value that starts `at`, with its long strings shortened. @throws {JsonScanError} @throws {SyntaxError} @throws {TooMuchToRead} */
export function decodeAtToCompare(json: Buffer, at: number, work: Work): unknown {
  const end = throughWindows(json, () => skipValue(json, at))
  return decodeToCompare(json, { start: at, end }, work)
}
