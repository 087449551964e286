/** The client of a request: what it asks, and the only way to write to it. */
import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import type { Readable, Writable } from 'node:stream'
import { headerOf, headText, pairsOf, type RawHeaders, replyHeaders, responseHeaders } from './headers.ts'
import type { Head } from './upstream.ts'

/** Headers that Governor adds, by lower-case name, all `x-governor-…`; those without a value are left out. */
export type GovernorHeaders = Readonly<Record<string, string | undefined>>

/** A request and its response, over any kind of connection. */
export interface Client {
  /** `target`: of the request line. */
  readonly head: { readonly method: string; readonly target: string; readonly headers: RawHeaders }
  readonly body: Readable
  /** Returns the status of the response; 0 before its head. */
  status(): number
  /** Returns true if the response is over and not whole: the client left, or it was broken off. */
  isGone(): boolean
  /** Calls back once when the response is over; at once if it is over already. Returns what takes the call back. */
  onClose(call: () => void): () => void
  /** Passes the head of an informational response (1xx) on, if the client can read it. */
  inform(head: Head): void
  /** Sends the head, with what is written in the same turn: the client of an event stream would wait for it. */
  begin(head: Head, governorHeaders: GovernorHeaders): void
  /** Writes bytes of the body. Returns a promise only if too many wait: until they are read, or nobody reads them. */
  write(bytes: Buffer | string): Promise<void> | undefined
  /** Ends the response, `last` being the rest of its body; its trailers need not be announced. */
  end(trailers?: RawHeaders, last?: Buffer): void
  /**
   * Breaks a response off so that the client sees an error: a clean end would look like a complete answer. Returns
   * false if nothing was sent yet and the client can only read the error in a reply.
   */
  fail(error: Error): boolean
}

/** Returns what every client has that is written to by a stream; `close` is called when that is over. */
export function writerTo(stream: Writable) {
  const calls = new Set<() => void>()
  let isClosed = false
  let drained: Promise<void> | undefined
  let resolve = () => {}
  const wake = () => {
    drained = undefined
    resolve()
  }
  const onClose: Client['onClose'] = (call) => {
    if (isClosed) call()
    else calls.add(call)
    return () => void calls.delete(call)
  }
  return {
    onClose,
    close(): void {
      isClosed = true
      wake()
      for (const call of calls) call()
      calls.clear()
    },
    isGone: () => isClosed && !stream.writableFinished,
    write(bytes: Buffer | string): Promise<void> | undefined {
      if (stream.write(bytes) || isClosed) return undefined
      if (stream.listenerCount('drain') === 0) stream.on('drain', wake)
      drained ??= new Promise((fulfil) => {
        resolve = fulfil
      })
      return drained
    },
  }
}

/** Returns the client that has sent a request over HTTP. */
export function clientOf(request: IncomingMessage, response: ServerResponse): Client {
  const { method = 'GET', url: target = '/', rawHeaders: headers, socket } = request
  const { onClose, close, isGone, write } = writerTo(response)
  let isHeadSent = false
  // That of the request comes as soon as a POST body is read (https://github.com/fastify/fastify/issues/6725).
  response.once('close', close)
  if (!response.socket) {
    // Node emits no `close` for a response that waits behind others on its connection when that connection ends.
    // A client chooses how many requests it sends at once.
    socket.setMaxListeners(0)
    socket.once('close', close)
    onClose(() => socket.off('close', close))
  }
  return {
    head: { method, target, headers },
    body: request,
    status: () => (response.headersSent ? response.statusCode : 0),
    isGone,
    onClose,
    inform({ status, reason, headers: raw }) {
      // Never to HTTP/1.0 (RFC 9110, section 15.2). A response has no socket while an earlier one is being sent.
      const { socket: to } = response
      if (response.headersSent || !to || request.httpVersion !== '1.1' || !isReasonSafe(reason)) return
      // Node knows only few of them.
      to.write(headText(`HTTP/1.1 ${status} ${reason}`, responseHeaders(raw)), 'latin1')
    },
    begin(head, governorHeaders) {
      writeHead(response, head, governorHeaders)
      // With the first bytes, if they come now: the head alone would be a packet of its own.
      queueMicrotask(() => {
        if (!isHeadSent && !response.destroyed) response.flushHeaders()
      })
    },
    write(bytes) {
      isHeadSent = true
      return write(bytes)
    },
    end(trailers = [], last) {
      isHeadSent = true
      // Node omits them if the body is not chunked.
      if (trailers.length > 0) response.addTrailers(pairsOf(responseHeaders(trailers)))
      response.end(last)
    },
    fail() {
      // Node sends what was written in this turn only at its end.
      if (response.headersSent) setImmediate(() => breakOff(response))
      return response.headersSent
    },
  }
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
function isReasonSafe(reason: string): boolean {
  return reason === 'OK' || /^[\t\x20-\x7e\x80-\xff]*$/.test(reason)
}

/** Writes a status line and headers without the fields that Node would add. */
function writeHead(response: ServerResponse, { status, reason, headers }: Head, governorHeaders: GovernorHeaders) {
  response.sendDate = false
  const passed = responseHeaders(headers)
  // A page of an upstream would run in the origin of Governor's own page (docs/decisions/0024-pages-of-upstreams.md).
  const isFromBrowser = response.req.headers['sec-fetch-site'] !== undefined
  const added = isFromBrowser ? { ...governorHeaders, 'content-security-policy': 'sandbox' } : governorHeaders
  const { method, httpVersionMajor: major, httpVersionMinor: minor } = response.req
  // Only a body of unknown length has trailers, in chunks. Node throws on a Trailer field in another response.
  const hasBody = method !== 'HEAD' && status !== 204 && status !== 304
  const isChunked = hasBody && major === 1 && minor > 0 && !headerOf(passed, 'content-length')
  response.writeHead(status, isReasonSafe(reason) ? reason : undefined, replyHeaders(passed, added, isChunked))
}

/** Sends a whole reply that Governor makes; `more`: further raw headers. */
export function reply(
  client: Client,
  status: number,
  contentType: string,
  body: string | Buffer,
  governorHeaders: GovernorHeaders = {},
  more: RawHeaders = [],
): void {
  const own = ['content-type', contentType, 'content-length', String(Buffer.byteLength(body))]
  const headers = [...own, ...more, 'date', new Date().toUTCString()]
  client.begin({ status, reason: STATUS_CODES[status] ?? 'unknown', headers }, governorHeaders)
  client.write(body)
  client.end()
}
