/**
 * Skips a `100 Continue` that was not asked for, as a client must (RFC 9110, section 15.2). undici closes the
 * connection instead, after the upstream has begun to work.
 */
import type { buildConnector } from 'undici'

/** A connection whose bytes are checked before undici reads them. */
interface Reading {
  /** Bytes written at the last read. If more are written now, a request was sent and a response begins. */
  written: number
  /** The next bytes are the head of a response. */
  isHead: boolean
  /** The beginning of an incomplete informational head. */
  held: Buffer
}

const NOTHING = Buffer.alloc(0)
const SAMPLE = 'HTTP/1.1 100'
const HEAD_END = '\r\n\r\n'
/** An informational head is small; undici reports a longer one as an error. */
const MAX_HELD = 16_384

/**
 * Returns true if a text is, or may become, the status line of a 1xx response other than 101, which is final.
 */
function mayBeInformational(start: string): boolean {
  return /^HTTP\/1\.\d 1\d\d$/.test(start + SAMPLE.slice(start.length)) && !start.endsWith(' 101')
}

/** Removes heads with status 100 from the start of a response; returns the bytes that undici may read now. */
function withoutContinue(reading: Reading, bytes: Buffer): Buffer {
  const kept: Buffer[] = []
  reading.held = NOTHING
  let at = 0
  while (at < bytes.length) {
    const start = bytes.toString('latin1', at, at + SAMPLE.length)
    const isInformational = mayBeInformational(start)
    const end = isInformational ? bytes.indexOf(HEAD_END, at) : -1
    if (!isInformational || (end === -1 && bytes.length - at > MAX_HELD)) {
      reading.isHead = false
      kept.push(bytes.subarray(at))
      break
    }
    if (end === -1) {
      reading.held = bytes.subarray(at)
      break
    }
    if (!start.endsWith(' 100')) kept.push(bytes.subarray(at, end + HEAD_END.length))
    at = end + HEAD_END.length
  }
  const [only] = kept
  return only && kept.length === 1 ? only : Buffer.concat(kept)
}

/** Returns a connector whose connections skip every `100 Continue`. */
export function skippingContinue(connect: buildConnector.connector): buildConnector.connector {
  return (options, callback) =>
    connect(options, (...[error, socket]) => {
      if (error) return callback(error, null)
      const reading = { written: socket.bytesWritten, isHead: false, held: NOTHING }
      // This listener is called before undici's, which is added once undici has the connection.
      socket.on('readable', () => {
        if (socket.bytesWritten !== reading.written) {
          reading.written = socket.bytesWritten
          reading.isHead = true
        }
        const chunk: Buffer | null = reading.isHead ? socket.read() : null
        if (!chunk) return
        const bytes = reading.held.length > 0 ? Buffer.concat([reading.held, chunk]) : chunk
        const rest = withoutContinue(reading, bytes)
        if (rest.length > 0) socket.unshift(rest)
      })
      callback(null, socket)
    })
}
