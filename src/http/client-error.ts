/** Answers what can't be read as an HTTP request: clients and operators should see why, and not only a closed connection. */
import { STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import { headText } from './headers.ts'

/** Why the bytes of a client are refused. */
export interface ClientError {
  readonly status: 400 | 408 | 431
  readonly code: string
  readonly message: string
}

/** Bytes of the target and all fields of a request together. Larger than Node's default, because agents put whole JSON documents into headers. */
export const MAX_HEAD = 65_536

const MALFORMED: ClientError = {
  status: 400,
  code: 'malformed_request',
  message: 'Governor could not read this as an HTTP/1.1 request.',
}

const ERRORS: Readonly<Record<string, ClientError>> = {
  ERR_HTTP_REQUEST_TIMEOUT: {
    status: 408,
    code: 'request_timeout',
    message: 'The request did not come. See timeouts.client_idle.',
  },
  HPE_HEADER_OVERFLOW: {
    status: 431,
    code: 'headers_too_large',
    message: `The target and the header fields of a request may have ${MAX_HEAD} bytes in all.`,
  },
}

/** Returns the answer to an error of Node's HTTP parser. */
export function clientErrorOf({ code = '' }: NodeJS.ErrnoException): ClientError {
  return (Object.hasOwn(ERRORS, code) && ERRORS[code]) || MALFORMED
}

/** Milliseconds for which a refused client may take its answer. */
const LINGER = 1_000

/**
 * Writes the last bytes to a connection and closes it later: if it closed while the client still sends, the client might never
 * read them (RFC 9112, section 9.6). Nor may a client that never closes keep it open.
 */
export function endWith(socket: Duplex, bytes: string): void {
  socket.end(bytes)
  const timer = setTimeout(() => socket.destroy(), LINGER)
  socket.once('close', () => clearTimeout(timer))
}

/** Answers bytes that are no request; at once if an earlier request on the connection `isOpen`, which nobody may answer any more. */
export function refuseBytes(
  socket: Duplex,
  status: ClientError['status'],
  body: string,
  isOpen: boolean,
): void {
  // The parser reports an error again for each further chunk.
  if (!socket.writable) return
  const length = String(Buffer.byteLength(body))
  const fields = ['Content-Type', 'application/json', 'Content-Length', length, 'Connection', 'close']
  endWith(socket, headText(`HTTP/1.1 ${status} ${STATUS_CODES[status]}`, fields) + body)
  if (isOpen) socket.destroy()
}
