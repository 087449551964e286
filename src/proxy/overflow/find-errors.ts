/** Finds errors in responses: by their status, in bodies of status 200, and in events of a stream. */
import { MAX_LENGTH, parseObject, propertyOf } from '../../core/json-object.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { contentEncoding, headerOf } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import { type ChunkFilter, peek, type UpstreamResponse } from '../../http/upstream-response.ts'

/** A member that only errors have, whatever the status. In a string its quotes would be escaped. */
const ERROR_FIELD = /"(?:error|errors|exception|base_resp)"\s{0,8}:\s{0,8}[^\sn]/
/** The beginning of server-sent events, which some servers send as plain text. */
const EVENT_FIELD = /^(?:data|event|id|retry)?:/
/** Errors have such a member near the beginning. */
const FIRST_BYTES = 4_096

/**
 * Returns the whole body of an error; `undefined` if it is no error, too long or too slow. `readsAnswers`: it may also
 * be one of status 200, as its first bytes show.
 */
export function errorBodyOf(
  response: UpstreamResponse,
  readsAnswers: boolean,
): Promise<Buffer | undefined> | undefined {
  const { status, headers } = response.head
  if (status >= 400) return peek(response)
  if (status !== 200 || !readsAnswers) return undefined
  const type = headerOf(headers, 'content-type')?.toLowerCase() ?? ''
  // A model's answer is never plain text; an error that a proxy made may be.
  const isText = type.startsWith('text/plain')
  if ((!isText && !type.includes('json')) || contentEncoding(headers) !== 'identity') return undefined
  return peek(response, (first) =>
    isText
      ? EVENT_FIELD.test(first.toString('latin1', 0, 16))
      : // One expression on a text takes a third of the time of a search for each word in bytes.
        !ERROR_FIELD.test(first.toString('latin1', 0, FIRST_BYTES)),
  )
}

/** What an error may call itself; anything else might be a message. */
const CODE = /^[a-z][\w.-]{1,63}$/i

/** Returns what an error calls itself, `invalid_api_key`: its code, else its type; `undefined` if it states neither. */
export function errorCodeIn({ headers }: Head, body: Buffer): string | undefined {
  const plain = decodedAtOnce(body, contentEncoding(headers), MAX_LENGTH)
  const whole = plain && plain.length <= MAX_LENGTH ? parseObject(plain.toString()) : undefined
  const error = propertyOf(whole, 'error') ?? whole
  const names = [propertyOf(error, 'code'), propertyOf(error, 'type')]
  return names.find((one): one is string => typeof one === 'string' && CODE.test(one))
}

const WORD_LENGTH = '"exception"'.length
/**
 * The words as members that are not null: `"error": null` is no error. At the end of a chunk the value may still be
 * null. Two expressions in this form search faster than one for both, and faster than a search in bytes.
 */
const ERROR = /"e(?:rror"(?![\t\n\r ]*:[\t\n\r ]*n))/
const EXCEPTION = /"e(?:xception"(?![\t\n\r ]*:[\t\n\r ]*n))/
const WORD = new RegExp(`${ERROR.source}|${EXCEPTION.source}`, 'g')

const hasWord = (text: string): boolean => ERROR.test(text) || EXCEPTION.test(text)
const LF = 0x0a
const CR = 0x0d
const NOTHING = Buffer.alloc(0)

/** Bytes of a frame that are kept; error frames are small, and longer frames pass unchanged. */
const MAX_FRAME = 65_536

/** How a line ends, and then an empty one. The CR of a CR LF is no line end of its own. */
const BLANKS = ['\n\n', '\n\r\n', '\r\r']
const BLANK = /\n\r?\n|\r\r/

/** Returns the offset after the last blank line, or 0. */
function lastBoundary(bytes: Buffer): number {
  let last = 0
  for (const blank of BLANKS) {
    const at = bytes.lastIndexOf(blank)
    if (at !== -1) last = Math.max(last, at + blank.length)
  }
  return last
}

/**
 * Returns a filter that gives each error frame of a stream to `change`, which returns what replaces it from its byte
 * `sent` on. Chunks pass as they come; after a word of error events the rest of its frame waits until it is complete,
 * as no client can read a frame before that.
 */
export function watchErrorFrames(change: (frame: Buffer, sent: number) => Buffer): ChunkFilter {
  /** The beginning of the current frame; of one that is too long only its last bytes, which may begin a blank line. */
  let open: Buffer = NOTHING
  /** Bytes of `open` that have gone to the client; the others wait for the end of their frame. */
  let sent = 0
  let isTooLong = false
  return {
    // Between two frames nothing is kept.
    passes(chunk) {
      const end = chunk.length - 1
      if (open.length > 0 || chunk[end] !== LF) return false
      const isBlank = chunk[end - 1] === LF || (chunk[end - 1] === CR && chunk[end - 2] === LF)
      return isBlank && !hasWord(chunk.toString('latin1'))
    },
    push(chunk) {
      const bytes = open.length === 0 ? chunk : Buffer.concat([open, chunk])
      const text = bytes.toString('latin1')
      const passed: Buffer[] = []
      const mayHaveWord = hasWord(text)
      for (let from = 0, left = sent; ; ) {
        // The bytes that have gone were searched already and can only end in a part of a word.
        WORD.lastIndex = Math.max(from, left - WORD_LENGTH)
        const word = mayHaveWord && !isTooLong ? WORD.exec(text)?.index : undefined
        const boundary = lastBoundary(bytes.subarray(from, word))
        const start = from + boundary
        const length = word === undefined ? -1 : text.slice(word).search(BLANK)
        if (boundary > 0) isTooLong = false
        if (word === undefined || length === -1) {
          open = bytes.subarray(start)
          isTooLong ||= open.length > MAX_FRAME
          const gone = word === undefined || isTooLong ? bytes.length : Math.max(start, left)
          if (left < gone) passed.push(bytes.subarray(left, gone))
          if (isTooLong) open = open.subarray(-3)
          sent = open.length - (bytes.length - gone)
          return passed
        }
        if (left < start) passed.push(bytes.subarray(left, start))
        const blank = word + length
        from = blank + (text.startsWith('\n\r', blank) ? 3 : 2)
        passed.push(change(bytes.subarray(start, from), Math.max(0, left - start)))
        left = from
      }
    },
    end() {
      const held = open
      open = NOTHING
      return sent < held.length ? [change(held, sent)] : []
    },
  }
}
