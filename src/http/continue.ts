/**
 * Reads over a `100 Continue` that nobody asked for, as a client has to (RFC 9110, section 15.2): undici takes one for a
 * broken answer and closes the connection, after the upstream has begun to work.
 */
import type { Socket } from 'node:net'
import type { buildConnector } from 'undici'

/** A connection that is read before undici reads it. */
interface Reading {
  readonly socket: Socket
  /** Bytes written when it was read last: where there are more, a request has been sent and a response begins. */
  written: number
  /** What comes next is the head of a response. */
  isHead: boolean
  /** The beginning of an informational head that is not all there yet. */
  held: Buffer
}

const NOTHING = Buffer.alloc(0)
const SAMPLE = 'HTTP/1.1 100'
const HEAD_END = '\r\n\r\n'
/** An informational head is small; of a longer one undici says what is wrong. */
const MAX_HELD = 16_384

/** Is this, or what it may become, the status line of an informational response after which another one comes? */
function mayBeInformational(start: string): boolean {
  return /^HTTP\/1\.\d 1\d\d$/.test(start + SAMPLE.slice(start.length)) && !start.endsWith(' 101')
}

/** Takes heads of 100 out of the beginning of a response; returns what is left for undici to read now. */
function withoutContinue(reading: Reading, bytes: Buffer): Buffer {
  const kept: Buffer[] = []
  reading.held = NOTHING
  let at = 0
  while (at < bytes.length) {
    const start = bytes.toString('latin1', at, at + SAMPLE.length)
    const end = bytes.indexOf(HEAD_END, at)
    if (!mayBeInformational(start) || (end === -1 && bytes.length - at > MAX_HELD)) {
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

function readFirst(reading: Reading): void {
  const { socket } = reading
  if (socket.bytesWritten !== reading.written) {
    reading.written = socket.bytesWritten
    reading.isHead = true
  }
  if (!reading.isHead) return
  const chunk: Buffer | null = socket.read()
  if (!chunk) return
  const left = withoutContinue(
    reading,
    reading.held.length > 0 ? Buffer.concat([reading.held, chunk]) : chunk,
  )
  if (left.length > 0) socket.unshift(left)
}

/** Returns a connector whose connections never bring a `100 Continue`. */
export function readingOverContinue(connect: buildConnector.connector): buildConnector.connector {
  return (options, callback) =>
    connect(options, (...[error, socket]) => {
      if (error) return callback(error, null)
      const reading = { socket, written: socket.bytesWritten, isHead: false, held: NOTHING }
      // Listeners are called in their order: undici adds its own when it has the connection.
      socket.on('readable', () => readFirst(reading))
      callback(null, socket)
    })
}
