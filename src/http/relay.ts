/** Gives a client an upstream's response byte for byte, chunk by chunk, with no promise between two chunks. */
import type { ServerResponse } from 'node:http'
import { headText, responseHeaders } from './headers.ts'
import { type GovernorHeaders, isReasonSafe, writeHead } from './response.ts'
import type { Failure, Head } from './upstream.ts'
import { type BodySink, pushTo, resumeBody, type UpstreamResponse } from './upstream-response.ts'

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

/** Returns a sink that writes to a client; calls `resume` when a slow client can take more. */
function clientSink(response: ServerResponse, resume: () => void, failed: (failure: Failure) => void): BodySink {
  let isWaiting = false
  return {
    data(chunk) {
      if (response.write(chunk)) return true
      // A filter may split one chunk into many: only the first that is too much waits for `drain`.
      if (!isWaiting) {
        isWaiting = true
        response.once('drain', () => {
          isWaiting = false
          resume()
        })
      }
      return false
    },
    end(trailers) {
      // Whether or not they were announced. Node omits them if the body is not chunked.
      const fields = responseHeaders(trailers)
      const pairs = fields.flatMap((name, at): [string, string][] =>
        at % 2 === 0 ? [[name, fields[at + 1] ?? '']] : [],
      )
      if (pairs.length > 0) response.addTrailers(pairs)
      response.end()
    },
    fail: failed,
  }
}

/** Writes the head of a response to a client, then its body as it comes. Calls `failed` if the body breaks off. */
export function relay(
  from: UpstreamResponse,
  response: ServerResponse,
  governorHeaders: GovernorHeaders,
  failed: (failure: Failure) => void,
): void {
  writeHead(response, from.head, responseHeaders(from.head.headers), governorHeaders)
  const hasBegun = from.body.waiting.length > 0 && from.body.holds === 0
  pushTo(
    from,
    clientSink(response, () => resumeBody(from.body), failed),
  )
  // Node would hold the head until the first byte of the body, and the client of an event stream would wait for it.
  if (!hasBegun && !response.writableEnded && !response.destroyed) response.flushHeaders()
}
