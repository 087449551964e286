/** Gives a client one response, made of one response of the upstream or of several. */
import { setImmediate } from 'node:timers/promises'
import type { Client, GovernorHeaders } from '../../http/client.ts'
import { type RawHeaders, withoutBodyFields } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import { trailersOf, type UpstreamResponse } from '../../http/upstream-response.ts'
import { createFrameReader } from '../../sse/frames.ts'

/** A client's response while it is made. */
export interface ClientStream {
  readonly to: Client
  /** What the client gets besides the upstream's headers; a change has no effect once they are sent. */
  governorHeaders: GovernorHeaders
  /** Of the newest response of the upstream. */
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
export function openClientStream(to: Client, governorHeaders: GovernorHeaders): ClientStream {
  return { to, governorHeaders, head: undefined, waiting: [] }
}

/** Adds chunks, which go to the client with the model's text. */
export async function show(client: ClientStream, chunks: readonly Buffer[], isText: boolean): Promise<void> {
  const { head, waiting, to } = client
  for (const chunk of chunks) waiting.push(chunk)
  if (client.isHeld) return
  const bytes = waiting.reduce((sum, { length }) => sum + length, 0)
  const isDue = isText || to.status() !== 0 || bytes > MAX_WAITING
  if (head && isDue && waiting.length > 0) await flush(client, rewritten(head))
}

async function flush(client: ClientStream, head: Head): Promise<void> {
  const { to, waiting, governorHeaders, isLeased } = client
  client.waiting = []
  if (to.status() === 0) to.begin(head, governorHeaders)
  await writePieces(to, waiting, !isLeased)
}

/** Sends all that waits, and ends the response. `unchanged`: the upstream's own trailers, if all bytes are its own. */
export async function end(client: ClientStream, chunks: readonly Buffer[], unchanged?: RawHeaders): Promise<void> {
  const { head, to, waiting } = client
  for (const chunk of chunks) waiting.push(chunk)
  if (head) await flush(client, unchanged ? head : rewritten(head))
  to.end(unchanged)
}

/**
 * Sends a whole response: what was `read` of its body, then the rest as it comes. `own`: the upstream's response, if
 * the client gets all of its bytes unchanged, and its trailers after them.
 */
export async function sendWhole(
  { to, governorHeaders }: ClientStream,
  head: Head,
  read: Buffer,
  rest?: AsyncIterable<Buffer>,
  own?: UpstreamResponse,
): Promise<void> {
  to.begin(head, governorHeaders)
  // A whole body is in memory anyway.
  await writePieces(to, [read], rest !== undefined)
  if (rest) for await (const chunk of rest) await writePieces(to, [chunk], true)
  to.end(own && trailersOf(own))
}

/** Returns the head of a rewritten body; `length`: its bytes, if it is whole. */
export function rewritten(head: Head, length?: number): Head {
  const headers = withoutBodyFields(head.headers)
  if (length !== undefined) headers.push('content-length', String(length))
  return { ...head, headers }
}

/** Bytes that are written at once. */
const MAX_WRITE = 65_536

/** Writes chunks to the client; `waits` while it reads slowly, and lets others go on between two large pieces. */
async function writePieces(to: Client, chunks: readonly Buffer[], waits: boolean): Promise<void> {
  const [only = Buffer.alloc(0)] = chunks
  const bytes = chunks.length === 1 ? only : Buffer.concat(chunks)
  for (let at = 0; at < bytes.length; at += MAX_WRITE) {
    const drained = to.write(bytes.subarray(at, at + MAX_WRITE))
    if (waits) await drained
    if (bytes.length - at >= MAX_WRITE) await setImmediate()
  }
}

/** Yields, for each chunk of a stream and for its end, the frames that it completes, and its length in bytes. */
export async function* framesOf(body: AsyncIterable<Buffer>) {
  const reader = createFrameReader()
  for await (const chunk of body) yield { frames: reader.push(chunk), bytes: chunk.length }
  yield { frames: reader.end(), bytes: 0 }
}
