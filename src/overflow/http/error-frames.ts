/**
 * Finds error events in a stream that goes by. Chunks pass as they come; all that is looked for is one of the two words that
 * error events hold, `error` and `exception`. Where a frame has one, the rest of that frame, which no client can read before it
 * is whole, waits for its end and is given to `change`; what came before it has gone.
 */

import type { ChunkFilter } from '../../http/upstream-response.ts'

/** What becomes of an error frame: its bytes from `sent` on. */
export type FrameChange = (frame: Buffer, sent: number) => Buffer

const WORD_LENGTH = '"exception"'.length
/**
 * The words where they stand for an error: `"error": null` says that there is none, and a stream that is cut there may yet.
 * Two expressions written so search faster than one for both, or than bytes can be searched.
 */
const ERROR = /"e(?:rror"(?![\t\n\r ]*:[\t\n\r ]*n))/
const EXCEPTION = /"e(?:xception"(?![\t\n\r ]*:[\t\n\r ]*n))/
const WORD = new RegExp(`${ERROR.source}|${EXCEPTION.source}`, 'g')

const hasWord = (text: string): boolean => ERROR.test(text) || EXCEPTION.test(text)
const LF = 0x0a
const CR = 0x0d
const NOTHING = Buffer.alloc(0)

/** An error frame is small; of a longer one, and of its beginning, no more is kept. */
const MAX_FRAME = 65_536

/** Does a chunk end with a blank line? */
function endsFrame(chunk: Buffer): boolean {
  const end = chunk.length - 1
  if (chunk[end] !== LF) return false
  return chunk[end - 1] === LF || (chunk[end - 1] === CR && chunk[end - 2] === LF)
}

/** The offset after the last blank line, or 0. */
function lastBoundary(bytes: Buffer): number {
  const plain = bytes.lastIndexOf('\n\n')
  const windows = bytes.lastIndexOf('\n\r\n')
  return Math.max(plain === -1 ? 0 : plain + 2, windows === -1 ? 0 : windows + 3)
}

/** The offset after the first blank line at or after `from`, or -1. Reads no further than that. */
function nextBoundary(bytes: Buffer, from: number): number {
  for (let at = bytes.indexOf(LF, from); at !== -1; at = bytes.indexOf(LF, at + 1)) {
    if (bytes[at + 1] === LF) return at + 2
    if (bytes[at + 1] === CR && bytes[at + 2] === LF) return at + 3
  }
  return -1
}

/** The offset of the word at or after `from`, or -1. */
function errorWord(text: string, from: number): number {
  WORD.lastIndex = from
  return WORD.exec(text)?.index ?? -1
}

/** Does the word stand where it has been cut in two? */
function isCutWord(before: Buffer, after: Buffer): boolean {
  if (before.length === 0) return false
  const reach = WORD_LENGTH - 1
  return hasWord(
    before.toString('latin1', Math.max(0, before.length - reach)) + after.toString('latin1', 0, reach),
  )
}

/** What is known of a stream; its frame under way has gone to the client, but for what is held. */
interface FramesState {
  readonly change: FrameChange
  /** The beginning of the frame under way. */
  open: Buffer
  /** The frame under way has the word, and waits for its end; its first `sent` bytes have gone. */
  isHeld: boolean
  sent: number
  isTooLong: boolean
}

/** Remembers the beginning of the frame that the stream is in, after `chunk` has gone. */
function remember(state: FramesState, chunk: Buffer): void {
  const at = lastBoundary(chunk)
  if (at > 0) state.isTooLong = false
  const rest = at > 0 || state.open.length === 0 ? chunk.subarray(at) : Buffer.concat([state.open, chunk])
  state.isTooLong ||= rest.length > MAX_FRAME
  state.open = state.isTooLong ? rest.subarray(rest.length - 3) : rest
}

/**
 * Puts what goes to the client now into `passed`: the frames up to the first that has the word, at `word`, and that one.
 * Returns where the frame after it begins; -1 if all was taken.
 */
function takeFrame(state: FramesState, bytes: Buffer, word: number, gone: number, passed: Buffer[]): number {
  if (word === -1 || state.isTooLong) {
    state.open = NOTHING
    remember(state, bytes)
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

/** `bytes`: the frame under way from its beginning; the first `gone` bytes went before. Returns what goes to the client now. */
function takeFrames(state: FramesState, bytes: Buffer, gone: number): readonly Buffer[] {
  const passed: Buffer[] = []
  const text = bytes.toString('latin1')
  // What was gone through before can only end in a part of the word.
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

/** Returns a filter that gives each error frame of a stream to `change`; all else passes as it came. */
export function watchErrorFrames(change: FrameChange): ChunkFilter {
  const state: FramesState = { change, open: NOTHING, isHeld: false, sent: 0, isTooLong: false }
  return {
    // What is between two frames has nothing open.
    passes: (chunk) =>
      state.open.length === 0 && !state.isHeld && endsFrame(chunk) && !hasWord(chunk.toString('latin1')),
    push(chunk) {
      const { open, isHeld, sent } = state
      if (!isHeld && !hasWord(chunk.toString('latin1')) && !isCutWord(open, chunk)) {
        remember(state, chunk)
        return [chunk]
      }
      if (open.length === 0) return takeFrames(state, chunk, 0)
      state.isHeld = false
      // The frame's beginning is copied with each chunk that it comes in: most come in one.
      return takeFrames(state, Buffer.concat([open, chunk]), isHeld ? sent : open.length)
    },
    end() {
      if (!state.isHeld) return []
      state.isHeld = false
      return [change(state.open, state.sent)]
    },
  }
}
