/**
 * Finds error events in a stream that goes by. Chunks pass as they come; all that is looked for is the one word that an
 * error event holds. Where a frame has it, the rest of that frame, which no client can read before it is whole, waits for
 * its end and is given to `change`; what came before it has gone.
 */

import { skipSpace } from '../json/scan.ts'

/** What becomes of an error frame: its bytes from `sent` on. */
export type FrameChange = (frame: Buffer, sent: number) => Buffer

export interface ErrorFrames {
  /** Does a chunk go to the client as it is, as nearly all do? It need not be pushed then. */
  passes(chunk: Buffer): boolean
  /** Takes a chunk; returns what goes to the client now. */
  push(chunk: Buffer): readonly Buffer[]
  /** What is left at the end of the stream. */
  end(): readonly Buffer[]
}

const WORD = Buffer.from('"error"')
/**
 * The word where it stands for an error, as `errorWord` has it. It searches faster than bytes can be searched; written in
 * one piece it would not.
 */
const ERROR_WORD = /"e(?:rror"(?![\t\n\r ]*:[\t\n\r ]*n))/
const COLON = 0x3a
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

/** Where the word stands for an error: `"error": null` says that there is none. A stream that is cut there may yet. */
function errorWord(bytes: Buffer, from: number): number {
  for (let at = bytes.indexOf(WORD, from); at !== -1; at = bytes.indexOf(WORD, at + 1)) {
    const colon = skipSpace(bytes, at + WORD.length)
    if (bytes[colon] !== COLON) return at
    if (bytes[skipSpace(bytes, colon + 1)] !== 0x6e) return at
  }
  return -1
}

/** Where the word may have been cut in two. */
function seam(before: Buffer, after: Buffer): Buffer {
  if (before.length === 0) return before
  const reach = WORD.length - 1
  return Buffer.concat([before.subarray(-reach), after.subarray(0, reach)])
}

export function watchErrorFrames(change: FrameChange): ErrorFrames {
  /** The beginning of the frame that is under way; all of it has gone but for what is `held`. */
  let open: Buffer = NOTHING
  let isHeld = false
  let sent = 0
  let isTooLong = false

  /** Remembers the beginning of the frame that the stream is in, after `chunk` has gone. */
  const remember = (chunk: Buffer): void => {
    const at = lastBoundary(chunk)
    if (at > 0) isTooLong = false
    const rest = at > 0 || open.length === 0 ? chunk.subarray(at) : Buffer.concat([open, chunk])
    isTooLong ||= rest.length > MAX_FRAME
    open = isTooLong ? rest.subarray(rest.length - 3) : rest
  }

  /**
   * Puts what goes to the client of the frames up to the first that has the word, that one included, to `passed`.
   * Returns where what follows it begins; -1 where all was taken.
   */
  const takeFrame = (bytes: Buffer, gone: number, passed: Buffer[]): number => {
    // What was gone through before can only end in a part of the word.
    const word = isTooLong ? -1 : errorWord(bytes, Math.max(0, gone - WORD.length))
    if (word === -1) {
      open = NOTHING
      remember(bytes)
      if (gone < bytes.length) passed.push(bytes.subarray(gone))
      return -1
    }
    const start = lastBoundary(bytes.subarray(0, word))
    if (gone < start) passed.push(bytes.subarray(gone, start))
    const end = nextBoundary(bytes, word)
    const frame = bytes.subarray(start, end === -1 ? bytes.length : end)
    const frameGone = Math.max(0, gone - start)
    if (end !== -1) {
      open = NOTHING
      passed.push(change(frame, frameGone))
      return end
    }
    if (frame.length <= MAX_FRAME) {
      open = frame
      isHeld = true
      sent = frameGone
    } else {
      isTooLong = true
      open = frame.subarray(frame.length - 3)
      passed.push(frame.subarray(frameGone))
    }
    return -1
  }

  /** `bytes`: the frame under way from its beginning; the first `gone` bytes went before. */
  const take = (bytes: Buffer, gone: number): readonly Buffer[] => {
    const passed: Buffer[] = []
    let rest = bytes
    let end = takeFrame(rest, gone, passed)
    while (end !== -1) {
      rest = rest.subarray(end)
      end = takeFrame(rest, 0, passed)
    }
    return passed
  }

  return {
    // What is between two frames has nothing open.
    passes: (chunk) =>
      open.length === 0 && !isHeld && endsFrame(chunk) && !ERROR_WORD.test(chunk.toString('latin1')),
    push(chunk) {
      const isPlain =
        !isHeld && !ERROR_WORD.test(chunk.toString('latin1')) && !seam(open, chunk).includes(WORD)
      if (isPlain) {
        remember(chunk)
        return [chunk]
      }
      if (open.length === 0) return take(chunk, 0)
      const gone = isHeld ? sent : open.length
      isHeld = false
      // The frame's beginning is copied with each chunk that it comes in: most come in one.
      return take(Buffer.concat([open, chunk]), gone)
    },
    end() {
      if (!isHeld) return []
      isHeld = false
      return [change(open, sent)]
    },
  }
}
