/**
 * Finds error events in a stream. Chunks pass as they come and are searched for the two words that error events
 * contain, `error` and `exception`. If a frame contains one, the rest of the frame waits until it is complete and is
 * given to `change`. No client can read a frame before that, and the bytes before it have gone.
 */

import type { ChunkFilter } from '../../http/upstream-response.ts'

/** Returns what replaces an error frame from its byte `sent` on. */
export type FrameChange = (frame: Buffer, sent: number) => Buffer

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

/** Returns the offset after the first blank line at or after `from`, or -1. Reads no further than that. */
function nextBoundary(bytes: Buffer, from: number): number {
  for (let at = bytes.indexOf(LF, from); at !== -1; at = bytes.indexOf(LF, at + 1)) {
    if (bytes[at + 1] === LF) return at + 2
    if (bytes[at + 1] === CR && bytes[at + 2] === LF) return at + 3
  }
  return -1
}

/** Returns the offset of the first error word at or after `from`, or -1. */
function errorWord(text: string, from: number): number {
  WORD.lastIndex = from
  return WORD.exec(text)?.index ?? -1
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

/**
 * Adds to `passed` the frames up to the one with the error word at `word`, and that one if it is complete. Returns the
 * offset after that frame; -1 if all bytes were taken.
 */
function takeFrame(state: FramesState, bytes: Buffer, word: number, gone: number, passed: Buffer[]): number {
  if (word === -1 || state.isTooLong) {
    state.open = NOTHING
    keepOpen(state, bytes)
    if (gone < bytes.length) passed.push(bytes.subarray(gone))
    return -1
  }
  const start = lastBoundary(bytes.subarray(0, word))
  if (gone < start) passed.push(bytes.subarray(gone, start))
  const end = nextBoundary(bytes, word)
  const frame = bytes.subarray(start, end === -1 ? bytes.length : end)
  const frameGone = Math.max(0, gone - start)
  if (end !== -1) {
    state.open = NOTHING
    passed.push(state.change(frame, frameGone))
    return end
  }
  if (frame.length <= MAX_FRAME) {
    state.open = frame
    state.isHeld = true
    state.sent = frameGone
  } else {
    state.isTooLong = true
    state.open = frame.subarray(frame.length - 3)
    passed.push(frame.subarray(frameGone))
  }
  return -1
}

/** Takes bytes from the start of the current frame; the first `gone` have gone. Returns the chunks for the client. */
function takeFrames(state: FramesState, bytes: Buffer, gone: number): readonly Buffer[] {
  const passed: Buffer[] = []
  const text = bytes.toString('latin1')
  // The bytes that have gone were searched already and can only end in a part of a word.
  let word = errorWord(text, Math.max(0, gone - WORD_LENGTH))
  let start = 0
  let end = takeFrame(state, bytes, word, gone, passed)
  while (end !== -1) {
    start += end
    word = errorWord(text, start)
    end = takeFrame(state, bytes.subarray(start), word === -1 ? -1 : word - start, 0, passed)
  }
  return passed
}

/** Returns a filter that gives each error frame of a stream to `change`; all other bytes pass unchanged. */
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
      const mayHaveWord =
        isHeld || hasWord(chunk.toString('latin1')) || (open.length > 0 && hasWord(border()))
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
