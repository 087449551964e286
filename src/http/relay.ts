/** Gives a client an upstream's response byte for byte, chunk by chunk, with no promise between two chunks. */
import type { ServerResponse } from 'node:http'
import { headText, type RawHeaders, responseHeaders } from './headers.ts'
import { type GovernorHeaders, isReasonSafe, writeHead } from './response.ts'
import type { Failure, Head } from './upstream.ts'
import { type BodySink, pushTo, resumeBody, type UpstreamResponse } from './upstream-response.ts'

/**
 * Passes an informational response (1xx) on, never to HTTP/1.0 (RFC 9110, section 15.2). Writes past Node, which knows few
 * of them and not every field; without a socket, the response to an earlier request comes first.
 */
export function relayInformational(response: ServerResponse, head: Head): void {
  const { socket, req } = response
  if (response.headersSent || !socket || req.httpVersion !== '1.1' || !isReasonSafe(head.reason)) return
  const line = `HTTP/1.1 ${head.status} ${head.reason}`
  socket.write(headText(line, responseHeaders(head.headers)), 'latin1')
}

/** Returns a sink that writes to a client; `resume` is called when a client that was slow can take more. */
function clientSink(
  response: ServerResponse,
  resume: () => void,
  failed: (failure: Failure) => void,
): BodySink {
  let isWaiting = false
  return {
    data(chunk) {
      if (response.write(chunk)) return true
      // One chunk of the upstream's may be written in many pieces: the first of them that was too much waits for all.
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
      // Announced or not; Node leaves them out where the body has no chunks.
      if (trailers.length > 0) response.addTrailers(pairs(responseHeaders(trailers)))
      response.end()
    },
    fail: failed,
  }
}

/** Writes the head of a response to a client, then its body as it comes. `failed` is called if it breaks off. */
export function relay(
  from: UpstreamResponse,
  response: ServerResponse,
  governorHeaders: GovernorHeaders,
  failed: (failure: Failure) => void,
): void {
  writeHead(response, from.head, responseHeaders(from.head.headers), governorHeaders)
  const hasBegun = from.body.waiting.length > 0
  pushTo(
    from,
    clientSink(response, () => resumeBody(from.body), failed),
  )
  // Node keeps the head back until the first byte of the body; a client of an event stream would wait for nothing.
  if (!hasBegun && !response.writableEnded && !response.destroyed) response.flushHeaders()
}

function pairs(headers: RawHeaders): [string, string][] {
  const found: [string, string][] = []
  for (let at = 0; at + 1 < headers.length; at += 2) {
    found.push([headers[at] ?? '', headers[at + 1] ?? ''])
  }
  return found
}
