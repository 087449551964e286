/** Gives a client one response, made of one response of the upstream or of several. */
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { setImmediate } from 'node:timers/promises'
import { type GovernorHeaders, writeHead } from '../../http/client.ts'
import { type RawHeaders, responseHeaders, withoutBodyFields } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import { createFrameReader } from '../../sse/frames.ts'

/** A client's response while it is made. */
export interface ClientStream {
  readonly response: ServerResponse
  /** What the client gets besides the upstream's headers; a change has no effect once they are sent. */
  governorHeaders: GovernorHeaders
  head: Head | undefined
  /** Chunks that wait for the model's text: until then another response may take their place. */
  waiting: Buffer[]
  /** All chunks wait for the end of the response. */
  isHeld?: boolean
  /** What the client has not read yet counts as memory of a lease, so that nobody waits until it reads. */
  isLeased?: boolean
}

/** Bytes that wait for the first text, at most. */
const MAX_WAITING = 65_536

/** Opens the response to a client. */
export function openClientStream(response: ServerResponse, governorHeaders: GovernorHeaders): ClientStream {
  return { response, governorHeaders, head: undefined, waiting: [] }
}

/** Adds chunks, which go to the client with the model's text. */
export async function show(client: ClientStream, chunks: readonly Buffer[], isText: boolean): Promise<void> {
  const { head, waiting, response } = client
  for (const chunk of chunks) waiting.push(chunk)
  if (client.isHeld) return
  const bytes = waiting.reduce((sum, { length }) => sum + length, 0)
  const isDue = isText || response.headersSent || bytes > MAX_WAITING
  if (head && isDue && waiting.length > 0) await flush(client, head)
}

async function flush(client: ClientStream, head: Head, headers?: RawHeaders): Promise<void> {
  const { response, waiting, governorHeaders, isLeased } = client
  client.waiting = []
  if (!response.headersSent) writeHead(response, head, headers ?? rewrittenHeaders(head), governorHeaders)
  await write(response, waiting, !isLeased)
}

/** Sends all that waits, and ends the response. `isUnchanged`: the upstream's own bytes, of its length. */
export async function end(client: ClientStream, chunks: readonly Buffer[], isUnchanged = false): Promise<void> {
  const { head, response, waiting } = client
  for (const chunk of chunks) waiting.push(chunk)
  if (head) await flush(client, head, isUnchanged ? responseHeaders(head.headers) : undefined)
  response.end()
}

/** Sends a whole response: what was `read` of its body, then the rest as it comes. */
export async function sendWhole(
  { response, governorHeaders }: ClientStream,
  head: Head,
  headers: RawHeaders,
  read: Buffer,
  rest?: AsyncIterable<Buffer>,
): Promise<void> {
  writeHead(response, head, headers, governorHeaders)
  // A whole body is in memory anyway.
  await write(response, [read], rest !== undefined)
  if (rest) for await (const chunk of rest) await write(response, [chunk], true)
  response.end()
}

/** Returns the headers for a rewritten body; `length`: its bytes, if it is whole. */
export function rewrittenHeaders(head: Head, length?: number): string[] {
  const headers = withoutBodyFields(responseHeaders(head.headers))
  return length === undefined ? headers : [...headers, 'content-length', String(length)]
}

/** Bytes that are written at once. */
const MAX_WRITE = 65_536

/** Writes chunks to the client; `waits` while it reads slowly, and lets others go on between two large pieces. */
async function write(response: ServerResponse, chunks: readonly Buffer[], waits: boolean): Promise<void> {
  const [only = Buffer.alloc(0)] = chunks
  const bytes = chunks.length === 1 ? only : Buffer.concat(chunks)
  for (let at = 0; at < bytes.length; at += MAX_WRITE) {
    if (!response.write(bytes.subarray(at, at + MAX_WRITE)) && waits && !response.destroyed) {
      const waiting = new AbortController()
      const { signal } = waiting
      await Promise.race([once(response, 'drain', { signal }), once(response, 'close', { signal })])
      waiting.abort()
    }
    if (bytes.length - at >= MAX_WRITE) await setImmediate()
  }
}

/** Yields, for each chunk of a stream and for its end, the frames that it completes, and its length in bytes. */
export async function* framesOf(body: AsyncIterable<Buffer>) {
  const reader = createFrameReader()
  for await (const chunk of body) yield { frames: reader.push(chunk), bytes: chunk.length }
  yield { frames: reader.end(), bytes: 0 }
}
