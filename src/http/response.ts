/** Writes to a client: the head of a response, a reply that Governor makes, or an error. */
import type { ServerResponse } from 'node:http'
import { headerOf, headText, type RawHeaders, replyHeaders, responseHeaders } from './headers.ts'
import type { Head } from './upstream.ts'

/** Headers that Governor adds, by lower-case name, all `x-governor-…`; those without a value are left out. */
export type GovernorHeaders = Readonly<Record<string, string | undefined>>

/**
 * Returns true if the client left before its response was complete. Call it on `close` of the response: that
 * of the request fires as soon as a POST body is read (https://github.com/fastify/fastify/issues/6725).
 */
export function isGone(response: ServerResponse): boolean {
  return !response.writableFinished
}

/** Calls back once when a response closes; at once if it is closed already. */
export function whenClosed(response: ServerResponse, call: () => void): void {
  if (response.closed) call()
  else response.once('close', call)
}

/**
 * Breaks a response off so that its client sees an error: to HTTP/1.0 a body without a length is complete where its
 * connection ends (RFC 9112, section 8), so that it has to be reset. Proxies ask in HTTP/1.0 too.
 */
export function breakOff(response: ServerResponse): void {
  if (response.req.httpVersion === '1.1') response.destroy()
  else response.socket?.resetAndDestroy()
}

/** True if Node would write this reason phrase. */
export function isReasonSafe(reason: string): boolean {
  return reason === 'OK' || /^[\t\x20-\x7e\x80-\xff]*$/.test(reason)
}

/** Writes a status line and headers without the fields that Node would add. */
export function writeHead(
  response: ServerResponse,
  head: Head,
  headers: RawHeaders,
  governorHeaders: GovernorHeaders,
): void {
  response.sendDate = false
  // A page of an upstream would run in the origin of Governor's own page (docs/decisions/0024-pages-of-upstreams.md).
  const isFromBrowser = response.req.headers['sec-fetch-site'] !== undefined
  const added = isFromBrowser ? { ...governorHeaders, 'content-security-policy': 'sandbox' } : governorHeaders
  const { method, httpVersionMajor: major, httpVersionMinor: minor } = response.req
  // Only a body of unknown length has trailers, in chunks. Node throws on a Trailer field in another response.
  const hasBody = method !== 'HEAD' && head.status !== 204 && head.status !== 304
  const isChunked = hasBody && major === 1 && minor > 0 && !headerOf(headers, 'content-length')
  const all = replyHeaders(headers, added, isChunked)
  response.writeHead(head.status, isReasonSafe(head.reason) ? head.reason : undefined, all)
}

/** Sends a whole reply that Governor makes; `more`: further raw headers. */
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

/**
 * Passes an informational response (1xx) on, never to HTTP/1.0 (RFC 9110, section 15.2). It writes to the
 * socket, as Node knows only few of them. A response has no socket while an earlier one is being sent.
 */
export function relayInformational(response: ServerResponse, head: Head): void {
  const { socket, req } = response
  if (response.headersSent || !socket || req.httpVersion !== '1.1' || !isReasonSafe(head.reason)) return
  const line = `HTTP/1.1 ${head.status} ${head.reason}`
  socket.write(headText(line, responseHeaders(head.headers)), 'latin1')
}
