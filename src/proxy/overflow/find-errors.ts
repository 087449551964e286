/** Finds errors in responses: by their status, in bodies of status 200, and in events of a stream. */
import { contentEncoding, headerOf, isEventStream } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import { type ChunkFilter, peek, type UpstreamResponse } from '../../http/upstream-response.ts'

/** An error is small and comes soon after its head; a larger or slower one passes unchanged. */
const ERROR_LIMITS = { bytes: 65_536, ms: 1_000 }

/** A member that only errors have, whatever the status. In a string its quotes would be escaped. */
const ERROR_FIELD = /"(?:error|errors|exception|base_resp)"\s{0,8}:\s{0,8}[^\sn]/
/** The beginning of server-sent events, which some servers send as plain text. */
const EVENT_FIELD = /^(?:data|event|id|retry)?:/
/** Errors have such a member near the beginning. */
const FIRST_BYTES = 4_096

/**
 * Waits for the whole body of an error and returns it; `undefined` if it is no error, too long or too slow. With
 * `readsAnswers` it also checks a body of status 200, whose first bytes show whether it is an error.
 */
export async function errorBodyOf(response: UpstreamResponse, readsAnswers: boolean): Promise<Buffer | undefined> {
  const { status, headers } = response.head
  if (status >= 400) return peek(response, ERROR_LIMITS)
  if (status !== 200 || !readsAnswers) return undefined
  const type = headerOf(headers, 'content-type')?.toLowerCase() ?? ''
  // A model's answer is never plain text; an error that a proxy made may be.
  const isText = type.startsWith('text/plain')
  if ((!isText && !type.includes('json')) || contentEncoding(headers) !== 'identity') return undefined
  return peek(response, ERROR_LIMITS, (first) =>
    isText
      ? EVENT_FIELD.test(first.toString('latin1', 0, 16))
      : // One expression on a text takes a third of the time of a search for each word in bytes.
        !ERROR_FIELD.test(first.toString('latin1', 0, FIRST_BYTES)),
  )
}

/** Returns what replaces an error frame from its byte `sent` on. */
export type FrameChange = (frame: Buffer, sent: number) => Buffer

/** Returns a filter for the error events of a response; `undefined` if it is no stream that can be read. */
export function errorFrameFilter({ headers }: Head, change: FrameChange): ChunkFilter | undefined {
  return isEventStream(headers) && contentEncoding(headers) === 'identity' ? watchErrorFrames(change) : undefined
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

/** Returns true if a chunk ends with a blank line. */
function endsFrame(chunk: Buffer): boolean {
  const end = chunk.length - 1
  if (chunk[end] !== LF) return false
  return chunk[end - 1] === LF || (chunk[end - 1] === CR && chunk[end - 2] === LF)
}

/** Returns the offset after the last blank line, or 0. */
function lastBoundary(bytes: Buffer): number {
  const plain = bytes.lastIndexOf('\n\n')
  const windows = bytes.lastIndexOf('\n\r\n')
  return Math.max(plain === -1 ? 0 : plain + 2, windows === -1 ? 0 : windows + 3)
}

/** The state of a stream. The current frame has gone to the client, except for the part that is held. */
interface FramesState {
  readonly change: FrameChange
  /** The beginning of the current frame. */
  open: Buffer
  /** The current frame has an error word and waits for its end; its first `sent` bytes have gone. */
  isHeld: boolean
  sent: number
  isTooLong: boolean
}

/** Keeps the beginning of the current frame after `chunk` has gone. */
function keepOpen(state: FramesState, chunk: Buffer): void {
  const at = lastBoundary(chunk)
  if (at > 0) state.isTooLong = false
  const rest = at > 0 || state.open.length === 0 ? chunk.subarray(at) : Buffer.concat([state.open, chunk])
  state.isTooLong ||= rest.length > MAX_FRAME
  state.open = state.isTooLong ? rest.subarray(rest.length - 3) : rest
}

/** Takes bytes from the start of the current frame, of which `gone` have gone. Returns the client's chunks. */
function takeFrames(state: FramesState, bytes: Buffer, gone: number): readonly Buffer[] {
  const passed: Buffer[] = []
  const text = bytes.toString('latin1')
  for (let from = 0, left = gone; ; ) {
    // The bytes that have gone were searched already and can only end in a part of a word.
    WORD.lastIndex = Math.max(from, left - WORD_LENGTH)
    const word = WORD.exec(text)?.index
    if (word === undefined || state.isTooLong) {
      state.open = NOTHING
      keepOpen(state, bytes.subarray(from))
      if (left < bytes.length) passed.push(bytes.subarray(left))
      return passed
    }
    const start = from + lastBoundary(bytes.subarray(from, word))
    if (left < start) passed.push(bytes.subarray(left, start))
    const sent = Math.max(0, left - start)
    const length = text.slice(word).search(/\n\r?\n/)
    if (length === -1) {
      const frame = bytes.subarray(start)
      state.isHeld = frame.length <= MAX_FRAME
      state.isTooLong = !state.isHeld
      state.open = state.isHeld ? frame : frame.subarray(frame.length - 3)
      state.sent = sent
      if (state.isTooLong) passed.push(frame.subarray(sent))
      return passed
    }
    const blank = word + length
    from = blank + (text[blank + 1] === '\r' ? 3 : 2)
    state.open = NOTHING
    passed.push(state.change(bytes.subarray(start, from), sent))
    left = from
  }
}

/**
 * Returns a filter that gives each error frame of a stream to `change`. Chunks pass as they come and are searched for the
 * two words that error events contain. If a frame contains one, the rest of the frame waits until it is complete: no
 * client can read a frame before that, and the bytes before it have gone.
 */
export function watchErrorFrames(change: FrameChange): ChunkFilter {
  const state: FramesState = { change, open: NOTHING, isHeld: false, sent: 0, isTooLong: false }
  return {
    // Between two frames nothing is kept.
    passes: (chunk) =>
      state.open.length === 0 && !state.isHeld && endsFrame(chunk) && !hasWord(chunk.toString('latin1')),
    push(chunk) {
      const { open, isHeld, sent } = state
      // An error word may lie across the border of two chunks.
      const reach = WORD_LENGTH - 1
      const border = () =>
        open.toString('latin1', Math.max(0, open.length - reach)) + chunk.toString('latin1', 0, reach)
      const mayHaveWord = isHeld || hasWord(chunk.toString('latin1')) || (open.length > 0 && hasWord(border()))
      if (!mayHaveWord) {
        keepOpen(state, chunk)
        return [chunk]
      }
      if (open.length === 0) return takeFrames(state, chunk, 0)
      state.isHeld = false
      // The beginning is copied with each further chunk of the frame; most frames come in one.
      return takeFrames(state, Buffer.concat([open, chunk]), isHeld ? sent : open.length)
    },
    end() {
      if (!state.isHeld) return []
      state.isHeld = false
      return [change(state.open, state.sent)]
    },
  }
}
