/**
 * Sends a request to an upstream and returns its response as soon as the head is there. Chunks wait in the response
 * until the body is taken; after 64 KB the upstream is paused. The body is then either read (`chunksOf`) or pushed to a
 * sink, without a promise per chunk (`pushTo`).
 */
import { pipeline, type Transform } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { type Dispatcher, errors } from 'undici'
import { decoderFor, type Lease } from './body.ts'
import { contentEncoding, type RawHeaders, withHeaders, withoutGovernorHeaders } from './headers.ts'
import type { Transport } from './transport.ts'
import { type Failure, failureOf, type Head, type UpstreamCall } from './upstream.ts'

/** The upstream did not answer, or its response broke off. */
export class UpstreamFailed extends Error {
  override readonly name = 'UpstreamFailed'
  readonly failure: Failure
  constructor(failure: Failure) {
    super(failure.message, { cause: failure.cause })
    this.failure = failure
  }
}

/** Observes the chunks of a body before the client gets them. Must not change them. */
export interface ResponseObserver {
  /** Takes a chunk, which never changes. The client gets it once the returned promise has settled. */
  take(chunk: Buffer): Promise<unknown> | undefined
  /** Called after the last chunk. The client gets the end once the returned promise has settled. */
  last?(): Promise<unknown> | undefined
  /** Called once when the response is over or broke off, after the client got its end. */
  end(): void
}

/** Changes parts of a body as it comes. */
export interface ChunkFilter {
  /** Returns true if a chunk passes unchanged; it is not pushed then. */
  passes(chunk: Buffer): boolean
  push(chunk: Buffer): readonly Buffer[]
  end(): readonly Buffer[]
}

/** Takes the rest of a body. Nothing is called after `end` or `fail`. */
export interface BodySink {
  /** Returns false to pause the upstream until `resumeBody`. */
  data(chunk: Buffer): boolean
  end(trailers: RawHeaders): void
  fail(failure: Failure): void
}

type BodyEnd = { readonly trailers: RawHeaders } | { readonly failure: Failure }

/** A body while it arrives: chunks that wait, and the sink. Changed by the functions of this file alone. */
export interface ResponseBody {
  waiting: Buffer[]
  length: number
  /** Set once the last byte came, or the response broke off. */
  ending?: BodyEnd
  sink?: BodySink
  /** Called at the next chunk and at the end. */
  wake?: () => void
  isPaused: boolean
  /** How many promises of the observer the rest of the body waits for. */
  holds: number
  /** Makes undici continue after a pause. */
  readonly resume: () => void
}

/** A response whose body was not taken yet. */
export interface UpstreamResponse {
  readonly head: Head
  readonly body: ResponseBody
  /** Ends the use of the response, also after its end; closes the connection if it is incomplete. */
  abort(): void
}

export interface SendOptions {
  /** Called for each informational response (1xx) before the final one. */
  readonly onInformational?: ((head: Head) => void) | undefined
  readonly onHead?: ((head: Head) => void) | undefined
  /** Return what observes and what changes the body of a response with this head. */
  readonly observerFor?: ((head: Head) => ResponseObserver | undefined) | undefined
  readonly filterFor?: ((head: Head) => ChunkFilter | undefined) | undefined
}

export interface InFlight {
  /** Rejects with {UpstreamFailed} if there is no response. */
  readonly response: Promise<UpstreamResponse>
  /** Closes the upstream connection at once, also before the first byte; does nothing after the end. */
  abort(): void
}

/** Returns raw headers of undici, which are buffers, as texts; Latin-1 keeps bytes above ASCII. */
function rawList(headers: readonly (Buffer | string)[] | null): RawHeaders {
  return withoutGovernorHeaders((headers ?? []).map((item) => item.toString('latin1')))
}

/** The upstream is paused when more bytes than this wait. */
const MAX_WAITING = 65_536

interface Sending {
  readonly call: UpstreamCall
  readonly options: SendOptions
  readonly resolve: (response: UpstreamResponse) => void
  readonly reject: (error: UpstreamFailed) => void
  readonly abort: () => void
  stop?: (error: Error) => void
  body?: ResponseBody
  /** Unset once it knows that the response is over. */
  observer?: ResponseObserver | undefined
  filter?: ChunkFilter | undefined
  status: number
  isAborted: boolean
  isOver: boolean
}

function take(sending: Sending, body: ResponseBody, chunk: Buffer): void {
  hold(sending, body, sending.observer?.take(chunk))
  if (body.sink && body.holds === 0) {
    if (!body.sink.data(chunk)) body.isPaused = true
    return
  }
  body.waiting.push(chunk)
  body.length += chunk.length
  if (body.length > MAX_WAITING) body.isPaused = true
  body.wake?.()
}

/** Holds the rest of a body until a promise has settled. */
function hold(sending: Sending, body: ResponseBody, promise: Promise<unknown> | undefined): void {
  if (!promise) return
  body.holds++
  const release = () => {
    body.holds--
    if (body.holds > 0) return
    body.wake?.()
    if (body.sink) deliver(body, body.sink, sending.abort)
  }
  promise.then(release, release)
}

/** Gives a sink the waiting chunks, and the end if that has come. */
function deliver(body: ResponseBody, sink: BodySink, abort: () => void): void {
  const { waiting } = body
  body.waiting = []
  body.length = 0
  let hasRoom = true
  for (const chunk of waiting) hasRoom = sink.data(chunk)
  const { ending } = body
  if (ending) {
    if ('failure' in ending) sink.fail(ending.failure)
    else sink.end(ending.trailers)
    abort()
  } else if (hasRoom) resumeBody(body)
  else body.isPaused = true
}

function finish(sending: Sending, ending: BodyEnd): void {
  sending.isOver = true
  const { body, filter } = sending
  if (!body) {
    if ('failure' in ending) sending.reject(new UpstreamFailed(ending.failure))
    return
  }
  if (filter) for (const chunk of filter.end()) take(sending, body, chunk)
  hold(sending, body, sending.observer?.last?.())
  body.ending = ending
  if (body.sink && body.holds === 0) deliver(body, body.sink, sending.abort)
  body.wake?.()
  if (sending.isAborted) settle(sending)
}

/** Ends the observer: after the client got the end, or when the response is given up. */
function settle(sending: Sending): void {
  const { observer } = sending
  sending.observer = undefined
  observer?.end()
}

function fail(sending: Sending, error: Error): void {
  if (sending.isOver) return
  const { body, upstream } = sending.call
  // undici does not destroy a body that it has not begun to send; its source would wait for ever.
  if (body && 'destroy' in body) body.destroy()
  const failure = failureOf(error, upstream)
  finish(sending, { failure: sending.isAborted ? { ...failure, code: 'aborted' } : failure })
}

/** The older kind of handler: undici converts a newer one into it, with an object of all headers. */
function handlerOf(sending: Sending): Dispatcher.DispatchHandler {
  const { options, resolve, abort } = sending
  return {
    onConnect(stop) {
      sending.stop = stop
      if (sending.isAborted) stop(new errors.RequestAbortedError())
    },
    onHeaders(status, rawHeaders, resume, text = '\ufffd') {
      // undici decodes the reason phrase as UTF-8; Governor keeps it in Latin-1, like the headers.
      const isLost = text.includes('\ufffd')
      const reason = text === 'OK' ? text : isLost ? '' : Buffer.from(text).toString('latin1')
      const head = { status, reason, headers: rawList(rawHeaders) }
      sending.status = status
      if (status < 200) {
        options.onInformational?.(head)
        return true
      }
      options.onHead?.(head)
      sending.observer = options.observerFor?.(head)
      sending.filter = options.filterFor?.(head)
      const body: ResponseBody = { waiting: [], length: 0, isPaused: false, holds: 0, resume }
      sending.body = body
      resolve({ head, body, abort })
      return true
    },
    onData(chunk) {
      const { body, filter } = sending
      if (!body) return true
      if (filter && !filter.passes(chunk)) {
        for (const changed of filter.push(chunk)) take(sending, body, changed)
      } else take(sending, body, chunk)
      return !body.isPaused
    },
    onComplete(rawTrailers) {
      if (!sending.isOver) finish(sending, { trailers: rawList(rawTrailers) })
    },
    onError(error) {
      // undici expects a body in a 304 whose Content-Length is that of the 200 (RFC 9110, section 8.6).
      const isWhole = sending.status === 304 && error instanceof errors.ResponseContentLengthMismatchError
      if (!isWhole) fail(sending, error)
      else if (!sending.isOver) finish(sending, { trailers: [] })
    },
  }
}

/** Sends a request once, never again by itself: the upstream may have acted on it (RFC 9110, section 9.2.2). */
export function send(transport: Transport, call: UpstreamCall, options: SendOptions): InFlight {
  let sending: Sending | undefined
  const abort = (): void => {
    if (sending?.isOver) return settle(sending)
    if (!sending || sending.isAborted) return
    sending.isAborted = true
    sending.stop?.(new errors.RequestAbortedError())
  }
  const response = new Promise<UpstreamResponse>((resolve, reject) => {
    sending = { call, options, resolve, reject, abort, status: 0, isAborted: false, isOver: false }
    const { upstream, method, path, headers, body } = call
    try {
      transport.dispatch(
        { origin: upstream.origin, method, path, headers: headers as string[], body: body as Buffer },
        handlerOf(sending),
      )
    } catch (error) {
      // undici throws on requests that it does not send, for example with an invalid path.
      fail(sending, error as Error)
    }
  })
  return { response, abort }
}

export function resumeBody(body: ResponseBody): void {
  if (!body.isPaused) return
  body.isPaused = false
  body.resume()
}

/** Gives a body to `sink`: the waiting chunks at once, then each chunk as it comes. */
export function pushTo({ body, abort }: UpstreamResponse, sink: BodySink): void {
  body.sink = sink
  if (body.holds === 0) deliver(body, sink, abort)
}

/** The chunks of a body, to be read once. */
type BodyChunks = AsyncGenerator<Buffer, void, undefined>

/** Resolves at the next chunk or at the end of the body. */
function nextChange(body: ResponseBody): Promise<void> {
  return new Promise((resolve) => {
    body.wake = resolve
    if (body.holds === 0) resumeBody(body)
  })
}

/**
 * Yields the chunks of a body, once, and pauses after some: Node reads up to 2 MB of a fast upstream in one turn of the
 * event loop. A reader that stops early aborts the response. @throws {UpstreamFailed} if it breaks off
 */
export async function* chunksOf({ body, abort }: UpstreamResponse): BodyChunks {
  let sincePause = 0
  try {
    for (;;) {
      const chunk = body.holds > 0 ? undefined : body.waiting.shift()
      if (chunk) {
        body.length -= chunk.length
        sincePause += chunk.length
        yield chunk
        if (sincePause < MAX_WAITING) continue
        sincePause = 0
        await setImmediate()
      } else if (!body.ending || body.holds > 0) {
        await nextChange(body)
      } else if ('failure' in body.ending) {
        throw new UpstreamFailed(body.ending.failure)
      } else {
        return
      }
    }
  } finally {
    abort()
  }
}

/** An error is small and comes soon after its head; a larger or slower one passes unchanged. */
const MAX_PEEKED = 65_536
const MAX_PEEK_MS = 1_000

/**
 * Waits for the whole body of an error and returns it without taking it. Returns `undefined`
 * - if the body is too long or too slow;
 * - at once, if `isEnough` is true of its first chunk.
 */
export async function peek(
  { body }: UpstreamResponse,
  isEnough?: (first: Buffer) => boolean,
): Promise<Buffer | undefined> {
  let timer: NodeJS.Timeout | undefined
  let isLate = false
  let isDecided = false
  try {
    for (;;) {
      const [first] = body.waiting
      if (first && !isDecided && isEnough?.(first)) return undefined
      isDecided ||= first !== undefined
      if (body.ending || body.length > MAX_PEEKED || isLate) break
      // Most bodies arrive together with the head and need no timer.
      timer ??= setTimeout(() => {
        isLate = true
        body.wake?.()
      }, MAX_PEEK_MS)
      await nextChange(body)
    }
  } finally {
    clearTimeout(timer)
  }
  const isWhole = body.ending && 'trailers' in body.ending && body.length <= MAX_PEEKED
  return isWhole ? Buffer.concat(body.waiting, body.length) : undefined
}

/** Returns a response with another head and body and the same trailers. Its body must be complete. */
export function withBody(response: UpstreamResponse, head: Head, bytes: Buffer): UpstreamResponse {
  const body = { ...response.body, waiting: [bytes], length: bytes.length, holds: 0 }
  return { ...response, head, body }
}

/** Returns the body without its content coding; `undefined` if the coding is unknown. */
export function plainBody(response: UpstreamResponse): BodyChunks | undefined {
  const encoding = contentEncoding(response.head.headers)
  if (encoding === 'identity') return chunksOf(response)
  const decoder = decoderFor(encoding, true)
  return decoder && decode(response, decoder)
}

/** Yields a decoded body. @throws {UpstreamFailed} if it breaks off, or is not in that coding */
async function* decode(response: UpstreamResponse, decoder: Transform): BodyChunks {
  pipeline(chunksOf(response), decoder, () => undefined)
  try {
    yield* decoder
  } catch (error) {
    if (error instanceof UpstreamFailed) throw error
    const message = 'The body of the upstream’s response is not in the coding that its content-encoding names.'
    throw new UpstreamFailed({ status: 502, code: 'upstream_undecodable', message, cause: error as Error })
  } finally {
    // The source would only end at its next chunk.
    response.abort()
  }
}

/** Returns a request that asks for a response without content coding, which Governor can change. */
export function withoutCompression(call: UpstreamCall): UpstreamCall {
  return { ...call, headers: withHeaders(call.headers, { 'accept-encoding': 'identity' }) }
}

/**
 * Reads a body of at most `max` bytes for which `lease` has room, and hardly more. Returns its beginning, and the rest
 * unless that was all. @throws as `body` does
 */
export async function readUpTo(
  body: BodyChunks,
  max: number,
  lease: Lease,
): Promise<{ bytes: Buffer; rest?: BodyChunks }> {
  const chunks: Buffer[] = []
  let length = 0
  for (;;) {
    const { done, value } = await body.next()
    if (done) return { bytes: Buffer.concat(chunks, length) }
    chunks.push(value)
    length += value.length
    if (length > max || !lease.grow(value.length)) return { bytes: Buffer.concat(chunks, length), rest: body }
  }
}
