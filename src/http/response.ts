/** What Governor writes to a client: the head of a response, a reply of its own, or why there is no response. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { headerOf, type RawHeaders, replyHeaders } from './headers.ts'
import type { Head } from './upstream.ts'

/** Headers that Governor adds, by lower-case name, all `x-governor-…`; those without a value are left out. */
export type GovernorHeaders = Readonly<Record<string, string | undefined>>

/**
 * Has the client left before its response was complete? To be asked on the response's `close`: the request's own fires
 * as soon as a POST body is read, with the client still there (https://github.com/fastify/fastify/issues/6725).
 */
export function isGone(response: ServerResponse): boolean {
  return !response.writableFinished
}

/** True if Node would write this reason phrase. */
export function isReasonSafe(reason: string): boolean {
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
