/** Sends a request upstream; its body waits until it is read (`chunksOf`) or given to the client (`relay`). */
import { pipeline, type Transform } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import type { Dispatcher } from 'undici'
import { decodedAtOnce, decoderFor, type Lease } from './body.ts'
import type { Client, GovernorHeaders } from './client.ts'
import { contentEncoding, type RawHeaders, statesEventStream, withHeaders, withoutGovernorHeaders } from './headers.ts'
import type { Tick } from './tick.ts'
import type { Transport } from './transport.ts'
import { type Failure, failureOf, type Head, invalidStatus, type UpstreamCall, WRONG_LENGTH } from './upstream.ts'

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
  /** Takes a chunk (`undefined`: the end), which the client gets once the returned promise has settled. */
  take(chunk: Buffer | undefined): Promise<unknown> | undefined
  /** Called once when the response is over, after the client got its end; `isWhole`: it did not break off. */
  end(isWhole: boolean): void
}

/** Changes parts of a body as it comes. */
export interface ChunkFilter {
  /** Returns true if a chunk passes unchanged; it is not pushed then. */
  passes(chunk: Buffer): boolean
  push(chunk: Buffer): readonly Buffer[]
  end(): readonly Buffer[]
}

/** What observes and what changes the body of a response. */
interface BodyWatch {
  readonly observer?: ResponseObserver | undefined
  readonly filter?: ChunkFilter | undefined
}

/** The trailers are empty after a failure. */
interface BodyEnd {
  readonly trailers: RawHeaders
  readonly failure?: Failure
}

/** The client that gets the rest of a body as it comes. */
interface Sink {
  readonly client: Client
  /** Called if the body breaks off. */
  readonly failed: (failure: Failure) => void
  /** Delays the end of what observes the body, until other responses are at that point too. */
  readonly later: Tick['later']
}

/** A body while it arrives. Changed by the functions of this file alone. */
export interface ResponseBody {
  /** Chunks that nobody took yet, and their bytes. */
  waiting: Buffer[]
  length: number
  /** Set once the last byte came, or the response broke off. */
  ending?: BodyEnd
  sink?: Sink
  /** The client reads slowly: the upstream is paused until what it has not read is sent. */
  isFull?: boolean
  /** Called at the next chunk and at the end. */
  wake?: () => void
  isPaused: boolean
  /** How many promises of the observer the rest of the body waits for. */
  holds: number
  /** Makes undici continue after a pause. */
  resume?: () => void
  watch?: BodyWatch | undefined
}

/** A response whose body was not taken yet. */
export interface UpstreamResponse {
  readonly head: Head
  readonly body: ResponseBody
  /** Ends the use of the response, also after its end; closes the connection if it is incomplete. */
  abort(): void
}

/** Returns raw headers of undici, which are buffers, as texts; Latin-1 keeps bytes above ASCII. */
function rawList(headers: readonly (Buffer | string)[] | null): RawHeaders {
  return withoutGovernorHeaders((headers ?? []).map((item) => item.toString('latin1')))
}

/** The upstream is paused when more bytes than this wait. */
const MAX_WAITING = 65_536

function take(body: ResponseBody, chunk: Buffer): void {
  hold(body, body.watch?.observer?.take(chunk))
  if (body.sink && body.holds === 0) return sendChunk(body, body.sink, chunk)
  body.waiting.push(chunk)
  body.length += chunk.length
  if (body.length > MAX_WAITING) body.isPaused = true
  body.wake?.()
}

/** Holds the rest of a body until a promise has settled. */
function hold(body: ResponseBody, promise: Promise<unknown> | undefined): void {
  if (!promise) return
  body.holds++
  const release = () => {
    body.holds--
    if (body.holds > 0) return
    body.wake?.()
    if (body.sink) deliver(body, body.sink)
  }
  promise.then(release, release)
}

function sendChunk(body: ResponseBody, { client }: Sink, chunk: Buffer): void {
  const drained = client.write(chunk)
  // A filter may split one chunk into many: only the first that is too much waits.
  if (!drained || body.isFull) return
  body.isPaused = true
  body.isFull = true
  drained.then(() => {
    body.isFull = false
    resume(body)
  })
}

/** Gives the client the waiting chunks, and the end if that has come. */
function deliver(body: ResponseBody, sink: Sink): void {
  const { waiting, ending } = body
  body.waiting = []
  body.length = 0
  // The last chunk goes out with the end, and a whole answer that came at once with its head too.
  const last = ending && !ending.failure ? waiting.pop() : undefined
  for (const chunk of waiting) sendChunk(body, sink, chunk)
  if (!ending) {
    if (!body.isFull) resume(body)
    return
  }
  if (ending.failure) sink.failed(ending.failure)
  else sink.client.end(ending.trailers, last)
  sink.later(() => endObserver(body))
}

function resume(body: ResponseBody): void {
  if (!body.isPaused) return
  body.isPaused = false
  body.resume?.()
}

/** A call in flight, and the body of its response. */
interface Sending extends ResponseBody {
  readonly call: UpstreamCall
  readonly onHead: OnHead
  readonly resolve: (response: UpstreamResponse) => void
  readonly reject: (error: UpstreamFailed) => void
  readonly abort: () => void
  stop?: (error: Error) => void
  /** 0 before the head. */
  status: number
  isAborted?: boolean
}

/** Ends the observer: after the client got the end, or when the response is given up. */
function endObserver(body: ResponseBody): void {
  const observer = body.watch?.observer
  body.watch = undefined
  observer?.end(body.ending !== undefined && !body.ending.failure)
}

function finish(sending: Sending, ending: BodyEnd): void {
  const { watch } = sending
  if (watch?.filter) for (const chunk of watch.filter.end()) take(sending, chunk)
  if (!ending.failure) hold(sending, watch?.observer?.take(undefined))
  sending.ending = ending
  if (sending.status < 200 && ending.failure) return sending.reject(new UpstreamFailed(ending.failure))
  if (sending.sink && sending.holds === 0) deliver(sending, sending.sink)
  sending.wake?.()
  if (sending.isAborted) endObserver(sending)
}

function fail(sending: Sending, error: Error): void {
  const { call, ending, status, isAborted } = sending
  if (ending) return
  // undici expects a body in a 304 whose Content-Length is that of the 200 (RFC 9110, section 8.6).
  if (status === 304 && Reflect.get(error, 'code') === WRONG_LENGTH) return finish(sending, { trailers: [] })
  // undici does not destroy a body that it has not begun to send; its source would wait for ever.
  if (call.body && 'destroy' in call.body) call.body.destroy()
  const failure = failureOf(error, call.upstream)
  finish(sending, { trailers: [], failure: isAborted ? { ...failure, code: 'aborted' } : failure })
}

const givenUp = () => new Error('Governor has given the request up')

/** The older kind of handler: undici converts a newer one into it, with an object of all headers. */
function handlerOf(sending: Sending): Dispatcher.DispatchHandler {
  return {
    onConnect(stop) {
      sending.stop = stop
      if (sending.isAborted) stop(givenUp())
    },
    onHeaders(status, rawHeaders, resumeRequest, text = '\ufffd') {
      const invalid = invalidStatus(status)
      if (invalid) throw invalid
      // undici decodes the reason phrase as UTF-8; Governor keeps it in Latin-1, like the headers.
      const isLost = text.includes('\ufffd')
      const reason = text === 'OK' ? text : isLost ? '' : Buffer.from(text).toString('latin1')
      const head = { status, reason, headers: rawList(rawHeaders) }
      sending.status = status
      const watch = sending.onHead(head)
      if (status < 200) return true
      sending.watch = watch
      sending.resume = resumeRequest
      sending.resolve({ head, body: sending, abort: sending.abort })
      return true
    },
    onData(chunk) {
      const filter = sending.watch?.filter
      if (!filter || filter.passes(chunk)) take(sending, chunk)
      else for (const changed of filter.push(chunk)) take(sending, changed)
      return !sending.isPaused
    },
    onComplete(rawTrailers) {
      if (!sending.ending) finish(sending, { trailers: rawList(rawTrailers) })
    },
    onError: (error) => fail(sending, error),
  }
}

/** Called with each head, also of informational responses (1xx); returns what watches the body of the final one. */
type OnHead = (head: Head) => BodyWatch | undefined

export type InFlight = ReturnType<typeof send>

/** Sends a request once (RFC 9110, section 9.2.2); `response` rejects with {UpstreamFailed} if there is none. */
export function send(transport: Transport, call: UpstreamCall, onHead: OnHead) {
  let sending: Sending | undefined
  /** Closes the upstream connection at once, also before the first byte; does nothing after the end. */
  const abort = (): void => {
    if (sending?.ending) return endObserver(sending)
    if (!sending || sending.isAborted) return
    sending.isAborted = true
    sending.stop?.(givenUp())
  }
  const response = new Promise<UpstreamResponse>((resolve, reject) => {
    sending = { call, onHead, resolve, reject, abort, status: 0, waiting: [], length: 0, isPaused: false, holds: 0 }
    const { upstream, method, path, headers, body } = call
    try {
      const { origin } = upstream
      transport.dispatch(
        { origin, method, path, headers: headers as string[], body: body as Buffer },
        handlerOf(sending),
      )
    } catch (error) {
      // undici throws on requests that it does not send, for example with an invalid path.
      fail(sending, error as Error)
    }
  })
  return { response, abort }
}

/** Gives a client a response byte for byte, without a promise per chunk. */
export function relay({ head, body }: UpstreamResponse, sink: Sink, governorHeaders: GovernorHeaders): void {
  sink.client.begin(head, governorHeaders)
  body.sink = sink
  if (body.holds === 0) deliver(body, sink)
}

/** The chunks of a body, to be read once. */
type BodyChunks = AsyncGenerator<Buffer, void, undefined>

/** Resolves at the next chunk or at the end of the body. */
function nextChange(body: ResponseBody): Promise<void> {
  return new Promise((resolve) => {
    body.wake = resolve
    if (body.holds === 0) resume(body)
  })
}

/** Yields the chunks of a body once, with pauses, as Node reads 2 MB in one turn. @throws {UpstreamFailed} */
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
      } else if (body.ending.failure) {
        throw new UpstreamFailed(body.ending.failure)
      } else {
        return
      }
    }
  } finally {
    abort()
  }
}

/** Bytes without content coding in which the first characters of a body are looked for. */
const MAX_DECODED = 16 * 1024 * 1024

/** An error is small and comes soon after its head; a larger or slower one passes unchanged. */
const MAX_PEEKED = 65_536
const MAX_PEEK_MS = 1_000

/** Returns the whole body of an error, not taken; none if too long, too slow, or `isEnough` of its first chunk. */
export async function peek({ body }: UpstreamResponse, isEnough?: (first: Buffer) => boolean) {
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
  const isWhole = body.ending && !body.ending.failure && body.length <= MAX_PEEKED
  return isWhole ? Buffer.concat(body.waiting, body.length) : undefined
}

const FIELDS = ['data', 'event', 'id', 'retry']

/** True if the first characters are of an event stream, or of neither that nor JSON and the type says so. */
export async function isEventStream({ head, body }: UpstreamResponse): Promise<boolean> {
  for (let seen = -1; ; seen = body.length) {
    while (body.length === seen && !body.ending) await nextChange(body)
    const first = Buffer.concat(body.waiting)
    const plain = decodedAtOnce(first, contentEncoding(head.headers), MAX_DECODED) ?? first
    const start = plain.toString('utf8').replace(/^\ufeff?\s*/, '')
    if (/^(?:data|event|id|retry)?[:\r\n]/.test(start)) return true
    const mayBegin = FIELDS.some((field) => field.startsWith(start)) && body.length <= MAX_WAITING
    if (!mayBegin || body.ending) return !/^[[{]/.test(start) && statesEventStream(head.headers)
  }
}

/** Returns the trailers of a response; none before its end. */
export function trailersOf({ body }: UpstreamResponse): RawHeaders {
  return body.ending?.trailers ?? []
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

/** Reads up to `max` bytes with room in `lease`; returns them, and the rest if any. @throws as `body` does */
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
