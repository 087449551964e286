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

export function watchErrorFrames(change: FrameChange): ChunkFilter {
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
   * Puts what goes to the client of the frames up to the first that has the word, at `word`, that one included, to `passed`.
   * Returns where what follows it begins; -1 where all was taken.
   */
  const takeFrame = (bytes: Buffer, word: number, gone: number, passed: Buffer[]): number => {
    if (word === -1 || isTooLong) {
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
    const text = bytes.toString('latin1')
    // What was gone through before can only end in a part of the word.
    let word = errorWord(text, Math.max(0, gone - WORD_LENGTH))
    let start = 0
    let end = takeFrame(bytes, word, gone, passed)
    while (end !== -1) {
      start += end
      word = errorWord(text, start)
      end = takeFrame(bytes.subarray(start), word === -1 ? -1 : word - start, 0, passed)
    }
    return passed
  }

  return {
    // What is between two frames has nothing open.
    passes: (chunk) => open.length === 0 && !isHeld && endsFrame(chunk) && !hasWord(chunk.toString('latin1')),
    push(chunk) {
      const isPlain = !isHeld && !hasWord(chunk.toString('latin1')) && !isCutWord(open, chunk)
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
