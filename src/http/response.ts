/** What Governor writes to a client: an upstream's response as it comes, or a reply of its own. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { headerOf, headText, type RawHeaders, replyHeaders, responseHeaders } from './headers.ts'
import type { Flow, Head } from './upstream.ts'

/** Headers that Governor adds, by lower-case name, all `x-governor-…`; those without a value are left out. */
export type GovernorHeaders = Readonly<Record<string, string | undefined>>

/**
 * Has the client left before its response was complete? To be asked on the response's `close`: the request's own fires
 * as soon as a POST body is read, with the client still there (https://github.com/fastify/fastify/issues/6725).
 */
export function isGone(response: ServerResponse): boolean {
  return !response.writableFinished
}

function isReasonSafe(reason: string): boolean {
  return reason === 'OK' || /^[\t\x20-\x7e\x80-\xff]*$/.test(reason)
}

/** Can this response have trailers? They need chunks, which Node takes where a body has no known length. */
function isChunked({ req }: ServerResponse, status: number, headers: RawHeaders): boolean {
  if (req.method === 'HEAD' || status === 204 || status === 304) return false
  return req.httpVersionMajor === 1 && req.httpVersionMinor > 0 && !headerOf(headers, 'content-length')
}

/** Writes a status line and headers as given, without anything Node would add. */
export function writeHead(
  response: ServerResponse,
  head: Head,
  headers: RawHeaders,
  governorHeaders: GovernorHeaders,
): void {
  response.sendDate = false
  // Node throws on a Trailer field that announces what can't come.
  const all = replyHeaders(headers, governorHeaders, isChunked(response, head.status, headers))
  response.writeHead(head.status, isReasonSafe(head.reason) ? head.reason : undefined, all)
}

/** Holds the upstream back while the client reads slowly. */
export function writeWithPressure(response: ServerResponse, flow: Flow, chunk: Buffer): void {
  // One chunk of the upstream's may be written in many pieces: the first of them that was too much waits for all.
  const isHeldBack = response.writableNeedDrain
  if (response.write(chunk) || isHeldBack) return
  flow.pause()
  response.once('drain', () => flow.resume())
}

/** An upstream's response, byte for byte, to a client. */
export function relayTo(response: ServerResponse, governorHeaders: GovernorHeaders) {
  let flow: Flow | undefined
  let hasBody = false
  return {
    inform(head: Head): void {
      // A proxy forwards informational responses, though never to HTTP/1.0 (RFC 9110, section 15.2). Past Node, which
      // writes few of them and not every field; without a socket, the response to an earlier request comes first.
      const { socket, req } = response
      if (response.headersSent || !socket || req.httpVersion !== '1.1' || !isReasonSafe(head.reason)) return
      const line = `HTTP/1.1 ${head.status} ${head.reason}`
      socket.write(headText(line, responseHeaders(head.headers)), 'latin1')
    },
    start(head: Head, started: Flow): void {
      flow = started
      writeHead(response, head, responseHeaders(head.headers), governorHeaders)
      // Node keeps the head back until the first byte of the body; a client of an event stream would wait for nothing.
      // Once that has gone, flushing would be a write of nothing.
      queueMicrotask(() => {
        if (!hasBody && !response.writableEnded && !response.destroyed) response.flushHeaders()
      })
    },
    data(chunk: Buffer): void {
      hasBody = true
      if (flow) writeWithPressure(response, flow, chunk)
    },
    end(trailers: RawHeaders): void {
      // Announced or not; Node leaves them out where the body has no chunks.
      if (trailers.length > 0) response.addTrailers(pairs(responseHeaders(trailers)))
      response.end()
    },
  }
}

function pairs(headers: RawHeaders): [string, string][] {
  const found: [string, string][] = []
  for (let at = 0; at + 1 < headers.length; at += 2) {
    found.push([headers[at] ?? '', headers[at + 1] ?? ''])
  }
  return found
}

/** A whole reply of Governor's own; `more`: further raw headers. */
export function reply(
  response: ServerResponse,
  status: number,
  contentType: string,
  body: string | Buffer,
  governorHeaders: GovernorHeaders = {},
  more: RawHeaders = [],
): void {
  const fields = ['content-type', contentType, 'content-length', String(Buffer.byteLength(body)), ...more]
  response.writeHead(status, replyHeaders(fields, governorHeaders, false))
  response.end(body)
}

/** Ends a request without an upstream's response: with an error, or, in the middle of a response, by breaking it off. */
export function replyFailure(
  request: IncomingMessage,
  response: ServerResponse,
  status: number,
  body: string,
  governorHeaders: GovernorHeaders = {},
): void {
  if (response.headersSent) {
    // A clean end would pass for a complete answer. What was written in this turn Node sends at its end only.
    setImmediate(() => response.destroy())
    return
  }
  // What is left of an upload is read and dropped: closing on a client that still sends would tear the connection
  // down under it, and the error with it (RFC 9112, section 9.6).
  request.resume()
  reply(response, status, 'application/json', body, governorHeaders)
}
