/**
 * Server-sent events: splits bytes into frames that keep their exact bytes. It does not know what the data means.
 * Source: WHATWG HTML, section 9.2 (lines end in LF, CR LF or CR; an empty line ends an event).
 */

/** One event with its exact bytes, including the blank line; those of all frames, in order, are the whole input. */
export interface Frame {
  readonly raw: Buffer
  /** Of an unfinished one, what ends the lines of its stream. */
  readonly lineEnd?: string | undefined
}

const LF = 0x0a
const CR = 0x0d
/** The byte order mark. */
const MARK = [0xef, 0xbb, 0xbf]

/** A frame longer than this many bytes is returned in pieces, so that memory stays bounded. */
const MAX_FRAME = 16 * 1024 * 1024

/**
 * Returns the offset after the first blank line that begins at or after `from`, or -1. A CR at the end of the buffer
 * may be half of a CR LF, so it does not count yet. From 0 on, all blank lines that are there are one frame: a provider
 * may send a megabyte of them.
 */
function afterBlankLine(bytes: Buffer, from: number): number {
  let lineIsEmpty = false
  let isBlank = from === 0
  let end = -1
  let at = from
  while (at < bytes.length) {
    const byte = bytes[at]
    if (byte !== LF && byte !== CR) {
      if (end !== -1) return end
      lineIsEmpty = false
      isBlank = false
      at++
      continue
    }
    if (byte === CR && at + 1 === bytes.length) return end
    at += byte === CR && bytes[at + 1] === LF ? 2 : 1
    if (lineIsEmpty) end = at
    if (end !== -1 && !isBlank) return end
    lineIsEmpty = !lineIsEmpty
  }
  return end
}

/** Bytes in a buffer with room for more, so that a frame of many chunks is not copied with each of them. */
interface Pending {
  readonly storage: Buffer
  /** The number of used bytes, from the start of the storage. */
  readonly length: number
}

const NOTHING: Pending = { storage: Buffer.alloc(0), length: 0 }

function append({ storage, length }: Pending, chunk: Buffer): Pending {
  if (length === 0) return { storage: chunk, length: chunk.length }
  const needed = length + chunk.length
  let target = storage
  if (needed > storage.length) {
    target = Buffer.allocUnsafe(Math.max(needed, 2 * length))
    storage.copy(target, 0, 0, length)
  }
  chunk.copy(target, length)
  return { storage: target, length: needed }
}

/** Returns a reader that splits a stream into frames. It keeps at most 16 MB of one, in at most twice that memory. */
export function createFrameReader() {
  let pending = NOTHING
  let lineEnd: string | undefined
  return {
    /** Takes a chunk, which may begin and end anywhere, and returns the frames that it completed. */
    push(chunk: Buffer): Frame[] {
      // The longest blank line, CR LF CR LF, may have begun in bytes that were searched before.
      let from = Math.max(0, pending.length - 4)
      pending = append(pending, chunk)
      let bytes = pending.storage.subarray(0, pending.length)
      const frames: Frame[] = []
      for (;;) {
        const end = afterBlankLine(bytes, from)
        if (end === -1) break
        frames.push({ raw: bytes.subarray(0, end) })
        bytes = bytes.subarray(end)
        from = 0
      }
      lineEnd ??= frames[0] && lineEndOf(frames[0])
      // Without a frame the storage keeps its room. The bytes after a frame are few, so they may be copied again.
      if (frames.length > 0) pending = append(NOTHING, bytes)
      if (bytes.length > MAX_FRAME) {
        frames.push({ raw: bytes })
        pending = NOTHING
      }
      return frames
    },
    /** Returns what is left when the stream ends: one unfinished frame, or nothing. */
    end(): Frame[] {
      const { storage, length } = pending
      pending = NOTHING
      return length > 0 ? [{ raw: storage.subarray(0, length), lineEnd }] : []
    },
  }
}

const LINE_END = /\r\n|\n|\r/

/** Returns the lines of an event, without the byte order mark with which the first event of a stream may begin. */
function linesOf(frame: Frame): string[] {
  const text = withoutMark(frame).raw.toString('utf8')
  // Splitting by a string takes a fraction of the time of a regular expression.
  return text.includes('\r') ? text.split(LINE_END) : text.split('\n')
}

/** Returns the first event of a stream without its byte order mark, so that it can follow another event. */
export function withoutMark(frame: Frame): Frame {
  const { raw } = frame
  const hasMark = MARK.every((byte, at) => raw[at] === byte)
  return hasMark ? { raw: raw.subarray(3) } : frame
}

/** True if the event ends with a blank line, which only the last event of an incomplete stream lacks. */
export function isWhole({ raw }: Frame): boolean {
  const end = raw.length - 1
  const last = raw[end]
  const before = raw[last === LF && raw[end - 1] === CR ? end - 2 : end - 1]
  return (last === LF || last === CR) && (before === LF || before === CR)
}

/** True if this is the beginning of an event that is too long to be read. */
export function isTooLong({ raw }: Frame): boolean {
  return raw.length > MAX_FRAME
}

/** Returns the event's bytes, with a blank line added if they lack one, so that another event can follow. */
export function terminated(frame: Frame): Buffer {
  return isWhole(frame) ? frame.raw : Buffer.concat([frame.raw, Buffer.from(lineEndOf(frame).repeat(2))])
}

/** Returns the event's data, with its lines joined by LF; `undefined` if it has none (a comment, a keep-alive). */
export function dataOf(frame: Frame): string | undefined {
  let joined: string | undefined
  for (const line of linesOf(frame)) {
    if (line !== 'data' && !line.startsWith('data:')) continue
    const data = line.slice(line.charAt(5) === ' ' ? 6 : 5)
    joined = joined === undefined ? data : `${joined}\n${data}`
  }
  return joined
}

function dataFields(data: string): string[] {
  return data.split('\n').map((line) => `data: ${line}`)
}

/** Returns what ends the first line of an event: clients may know no other line end than that of their provider. */
export function lineEndOf({ raw, lineEnd = '\n' }: Frame): string {
  // A search by bytes takes a hundredth of the time of one by a function, and a line may have megabytes.
  const at = raw.indexOf(LF)
  const first = at === -1 ? raw : raw.subarray(0, at)
  const before = first.indexOf(CR)
  if (before !== -1) return before + 1 === at ? '\r\n' : '\r'
  return at === -1 ? lineEnd : '\n'
}

/** Returns the event with other data, and the same other fields and line ends. */
export function withData(frame: Frame, data: string): Buffer {
  const others = linesOf(frame).filter((line) => line !== '' && line !== 'data' && !line.startsWith('data:'))
  return Buffer.from([...others, ...dataFields(data), '', ''].join(lineEndOf(frame)))
}

/** Writes an event with data and a name, if it has one (one line). */
export function dataFrame(data: string, name?: string, lineEnd = '\n'): Buffer {
  return Buffer.from([...(name === undefined ? [] : [`event: ${name}`]), ...dataFields(data), '', ''].join(lineEnd))
}
