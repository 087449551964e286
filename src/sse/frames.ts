/**
 * Server-sent events: bytes → frames that remember their exact bytes. Knows nothing of what they carry.
 * Source: WHATWG HTML, section 9.2 (lines end in LF, CR LF or CR; an empty line ends an event).
 */

/** One event as it came, blank line included; joined in order, the `raw` of all frames are the input. */
export interface Frame {
  readonly raw: Buffer
}

export interface FrameReader {
  /** Takes a chunk cut anywhere; returns the frames that it completed. */
  push(chunk: Buffer): Frame[]
  /** What is left when the stream ends: an unfinished frame, or nothing. */
  end(): Frame[]
}

const LF = 0x0a
const CR = 0x0d
const BYTE_ORDER_MARK = 0xfeff

/** A frame longer than this many bytes is handed on in pieces, unread: memory stays bounded. */
const MAX_FRAME = 16 * 1024 * 1024

/**
 * The offset after the first blank line that begins at or after `from`, or -1. A CR that ends the buffer may be
 * half of a CR LF, so it decides nothing yet.
 */
function afterBlankLine(bytes: Buffer, from: number): number {
  let lineIsEmpty = false
  let at = from
  while (at < bytes.length) {
    const byte = bytes[at]
    if (byte !== LF && byte !== CR) {
      lineIsEmpty = false
      at++
      continue
    }
    if (byte === CR && at + 1 === bytes.length) return -1
    at += byte === CR && bytes[at + 1] === LF ? 2 : 1
    if (lineIsEmpty) return at
    lineIsEmpty = true
  }
  return -1
}

/** Bytes in a buffer that has room for more, so that a frame which comes in many chunks is not copied with each of them. */
interface Pending {
  readonly storage: Buffer
  /** How many bytes of the storage are in use, from its start. */
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

/** Returns a reader that keeps at most 16 MB of a frame, in at most twice that memory. */
export function createFrameReader(): FrameReader {
  let pending = NOTHING
  return {
    push(chunk) {
      // The longest blank line, CR LF CR LF, may have begun in what was already looked at.
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
      // Without a frame the storage keeps its room; what follows a frame is small.
      if (frames.length > 0) pending = append(NOTHING, bytes)
      if (bytes.length > MAX_FRAME) {
        frames.push({ raw: bytes })
        pending = NOTHING
      }
      return frames
    },
    end() {
      const { storage, length } = pending
      pending = NOTHING
      return length > 0 ? [{ raw: storage.subarray(0, length) }] : []
    },
  }
}

const LINE_END = /\r\n|\n|\r/

/** The lines of an event, without the byte order mark that the first event of a stream may begin with. */
function linesOf({ raw }: Frame): string[] {
  const text = raw.toString('utf8')
  const own = text.charCodeAt(0) === BYTE_ORDER_MARK ? text.slice(1) : text
  // A text is split by a text in a fraction of the time that an expression takes.
  return own.includes('\r') ? own.split(LINE_END) : own.split('\n')
}

/** The event's bytes with the blank line after it, which the last one of a stream may lack: something can follow. */
export function terminated({ raw }: Frame): Buffer {
  return afterBlankLine(raw, 0) === -1 ? Buffer.concat([raw, Buffer.from('\n\n')]) : raw
}

/** Does the event end with a blank line, as all do but the last of a stream that broke off? */
export function isWhole({ raw }: Frame): boolean {
  const end = raw.length - 1
  const last = raw[end]
  const before = raw[last === LF && raw[end - 1] === CR ? end - 2 : end - 1]
  return (last === LF || last === CR) && (before === LF || before === CR)
}

/** The value of a line that is a data field; `undefined` where it is none. */
function dataIn(line: string): string | undefined {
  if (line === 'data') return ''
  if (!line.startsWith('data:')) return undefined
  return line.charAt(5) === ' ' ? line.slice(6) : line.slice(5)
}

/** The event's data, its lines joined by LF; `undefined` where it has none (a comment, a keep-alive). */
export function dataOf(frame: Frame): string | undefined {
  let found: string | undefined
  for (const line of linesOf(frame)) {
    const data = dataIn(line)
    if (data !== undefined) found = found === undefined ? data : `${found}\n${data}`
  }
  return found
}

/** The same event with other data (one line); its other fields stay. */
export function withData(frame: Frame, data: string): Buffer {
  const others = linesOf(frame).filter((line) => line !== '' && line !== 'data' && !line.startsWith('data:'))
  return Buffer.from([...others, `data: ${data}`, '', ''].join('\n'))
}

/** A new event that has only data (one line). */
export function dataFrame(data: string): Buffer {
  return Buffer.from(`data: ${data}\n\n`)
}

/** A new event with a name and data (one line each). */
export function dataEvent(name: string, data: string): Buffer {
  return Buffer.from(`event: ${name}\ndata: ${data}\n\n`)
}
