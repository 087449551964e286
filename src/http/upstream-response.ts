/**
 * Sends a request to an upstream and returns its response as soon as the head is there. Chunks that come before
 * somebody takes the body wait in the response, at most 64 KB before the upstream is held back. The body is then either
 * read (`chunksOf`) or pushed on with no promise between two chunks (`pushTo`).
 */
import { PassThrough } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import zlib from 'node:zlib'
import { type Dispatcher, errors } from 'undici'
import { decoderFor } from './body.ts'
import type { Lease } from './buffer-budget.ts'
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

/** Sees the chunks of a body as they come, before the client gets them. Must not change them. */
export interface ResponseObserver {
  /** Takes a chunk, which does not change any more. */
  take(chunk: Buffer): void
  /** The response is over or broke off; called once, after the client got its end. */
  end(): void
}

/** Replaces parts of a body as they come. */
export interface ChunkFilter {
  /** True if a chunk goes on as it is; it is not pushed then. */
  passes(chunk: Buffer): boolean
  /** Takes a chunk; returns what goes on now. */
  push(chunk: Buffer): readonly Buffer[]
  /** Returns what is left when the body is over. */
  end(): readonly Buffer[]
}

/** Takes the rest of a body. After `end` or `fail` nothing more is called. */
export interface BodySink {
  /** Returns false to hold the upstream back until `resumeBody`. */
  data(chunk: Buffer): boolean
  end(trailers: RawHeaders): void
  /** The response broke off. */
  fail(failure: Failure): void
}

type BodyEnd = { readonly trailers: RawHeaders } | { readonly failure: Failure }

/** A body on its way: what came and was not taken yet, and who takes it. Changed by the functions of this file alone. */
export interface ResponseBody {
  /** In order. */
  waiting: Buffer[]
  /** Bytes of `waiting`. */
  length: number
  /** Set once the last byte came, or the response broke off. */
  ending: BodyEnd | undefined
  sink: BodySink | undefined
  /** Called at the next chunk and at the end. */
  wake: (() => void) | undefined
  isPaused: boolean
  /** Makes undici go on after a pause. */
  readonly resume: () => void
}

/** A response whose body is still to be taken. */
export interface UpstreamResponse {
  readonly head: Head
  readonly body: ResponseBody
  /**
   * Gives the response up; also to be called once all of it was taken. Closes its connection, unless all of it came: then
   * the connection is used again.
   */
  abort(): void
}

/** What happens while a request is under way. */
export interface SendOptions {
  /** Called for each informational response (1xx) before the one that counts. */
  readonly onInformational?: ((head: Head) => void) | undefined
  /** Called once with the head that counts, before any of its body. */
  readonly onHead?: ((head: Head) => void) | undefined
  /** What looks at the body of a response and what changes it, by its head. */
  readonly observerFor?: ((head: Head) => ResponseObserver | undefined) | undefined
  readonly filterFor?: ((head: Head) => ChunkFilter | undefined) | undefined
}

/** A request that was sent. */
export interface InFlight {
  /** Rejects with {UpstreamFailed} if there is no response. */
  readonly response: Promise<UpstreamResponse>
  /** Closes the upstream connection at once, also before the first byte; does nothing once the response is over. */
  abort(): void
}

/** A field name and value are read out of one text: what undici gives are views of the chunk they came in. */
const MAX_HEAD = 65_536

/** undici hands raw headers over as buffers; bytes above ASCII are kept as they are by Latin-1. */
function rawList(headers: readonly (Buffer | string)[] | null): string[] {
  const list: string[] = []
  if (!headers || headers.length === 0) return list
  const [first] = headers
  const last = headers.at(-1)
  if (first instanceof Buffer && last instanceof Buffer) {
    const start = first.byteOffset
    const length = last.byteOffset + last.length - start
    if (first.buffer === last.buffer && length > 0 && length <= MAX_HEAD) {
      const text = Buffer.from(first.buffer, start, length).toString('latin1')
      for (const item of headers) {
        const at = item instanceof Buffer && item.buffer === first.buffer ? item.byteOffset - start : -1
        const isInside = at >= 0 && at + item.length <= length
        list.push(isInside ? text.slice(at, at + item.length) : latin1Of(item))
      }
      return list
    }
  }
  for (const item of headers) list.push(latin1Of(item))
  return list
}

function latin1Of(item: Buffer | string): string {
  return typeof item === 'string' ? item : item.toString('latin1')
}

/** undici reads a reason phrase as UTF-8; its bytes, like those of a header, are kept by Latin-1. */
function reasonOf(text: string | undefined): string {
  if (text === 'OK') return text
  return text === undefined || text.includes('\ufffd') ? '' : Buffer.from(text).toString('latin1')
}

/**
 * undici holds the length that a 304 states against the body it does not have (RFC 9110, section 8.6: it is that of
 * the 200 the client has).
 */
function isWholeAnyway(status: number, error: Error): boolean {
  return status === 304 && error instanceof errors.ResponseContentLengthMismatchError
}

/** More bytes than this do not wait for somebody to take them: the upstream is held back. */
const MAX_WAITING = 65_536

/** Everything that is known of a request under way. */
interface Sending {
  readonly call: UpstreamCall
  readonly options: SendOptions
  readonly resolve: (response: UpstreamResponse) => void
  readonly reject: (error: UpstreamFailed) => void
  readonly abort: () => void
  stop: ((error: Error) => void) | undefined
  body: ResponseBody | undefined
  observer: ResponseObserver | undefined
  filter: ChunkFilter | undefined
  status: number
  isAborted: boolean
  isOver: boolean
  /** The observer knows that the response is over. */
  isSettled: boolean
}

function take(body: ResponseBody, chunk: Buffer): void {
  if (body.sink) {
    if (!body.sink.data(chunk)) body.isPaused = true
    return
  }
  body.waiting.push(chunk)
  body.length += chunk.length
  if (body.length > MAX_WAITING) body.isPaused = true
  body.wake?.()
}

function takeAll(sending: Sending, body: ResponseBody, chunks: readonly Buffer[]): void {
  for (const chunk of chunks) {
    sending.observer?.take(chunk)
    take(body, chunk)
  }
}

function finish(sending: Sending, ending: BodyEnd): void {
  if (sending.isOver) return
  sending.isOver = true
  const { body, filter } = sending
  if (!body) {
    if ('failure' in ending) sending.reject(new UpstreamFailed(ending.failure))
    return
  }
  if (filter) takeAll(sending, body, filter.end())
  body.ending = ending
  if (body.sink) tellEnd(body.sink, ending)
  body.wake?.()
  if (body.sink || sending.isAborted) settle(sending)
}

/** Ends the observer: after the client got the end, or once nobody takes the body any more. */
function settle(sending: Sending): void {
  if (sending.isSettled) return
  sending.isSettled = true
  sending.observer?.end()
}

function tellEnd(sink: BodySink, ending: BodyEnd): void {
  if ('failure' in ending) sink.fail(ending.failure)
  else sink.end(ending.trailers)
}

function fail(sending: Sending, error: Error): void {
  if (sending.isOver) return
  const { body, upstream } = sending.call
  // undici leaves a body that it has not begun to send; its source would wait for ever.
  if (body && 'destroy' in body) body.destroy()
  const failure = failureOf(error, upstream)
  finish(sending, { failure: sending.isAborted ? { ...failure, code: 'aborted' } : failure })
}

function begin(sending: Sending, head: Head, resume: () => void): ResponseBody {
  const { options, resolve, abort } = sending
  options.onHead?.(head)
  sending.observer = options.observerFor?.(head)
  sending.filter = options.filterFor?.(head)
  const body: ResponseBody = {
    waiting: [],
    length: 0,
    ending: undefined,
    sink: undefined,
    wake: undefined,
    isPaused: false,
    resume,
  }
  resolve({ head, body, abort })
  return body
}

/**
 * What undici's dispatcher calls. This is the kind of handler that undici's own clients use inside: of the newer one it
 * makes this, and an object of all headers besides, which nobody here reads.
 */
function handlerOf(sending: Sending): Dispatcher.DispatchHandler {
  return {
    onConnect(abort) {
      sending.stop = abort
      if (sending.isAborted) abort(new errors.RequestAbortedError())
    },
    onHeaders(status, rawHeaders, resume, reason) {
      const head = { status, reason: reasonOf(reason), headers: withoutGovernorHeaders(rawList(rawHeaders)) }
      sending.status = status
      if (status < 200) sending.options.onInformational?.(head)
      else sending.body = begin(sending, head, resume)
      return true
    },
    onData(chunk) {
      const { body, filter } = sending
      if (!body) return true
      if (filter && !filter.passes(chunk)) {
        takeAll(sending, body, filter.push(chunk))
      } else {
        sending.observer?.take(chunk)
        take(body, chunk)
      }
      return !body.isPaused
    },
    onComplete(rawTrailers) {
      finish(sending, { trailers: withoutGovernorHeaders(rawList(rawTrailers)) })
    },
    onError(error) {
      if (isWholeAnyway(sending.status, error)) finish(sending, { trailers: [] })
      else fail(sending, error)
    },
  }
}

/**
 * Sends a request, once: the upstream may have acted on what it got, so that it is never sent again by itself (RFC 9110,
 * section 9.2.2).
 */
export function send(transport: Transport, call: UpstreamCall, options: SendOptions): InFlight {
  let sending: Sending | undefined
  const abort = (): void => {
    if (sending?.isOver) return settle(sending)
    if (!sending || sending.isAborted) return
    sending.isAborted = true
    sending.stop?.(new errors.RequestAbortedError())
  }
  const response = new Promise<UpstreamResponse>((resolve, reject) => {
    sending = {
      call,
      options,
      resolve,
      reject,
      abort,
      stop: undefined,
      body: undefined,
      observer: undefined,
      filter: undefined,
      status: 0,
      isAborted: false,
      isOver: false,
      isSettled: false,
    }
    const { upstream, method, path, headers, body } = call
    try {
      transport.dispatch(
        { origin: upstream.origin, method, path, headers: headers as string[], body: body as Buffer },
        handlerOf(sending),
      )
    } catch (error) {
      // undici throws on what it will not send at all, such as a path that is no path.
      fail(sending, error as Error)
    }
  })
  return { response, abort }
}

/** Lets a body go on whose sink returned false. */
export function resumeBody(body: ResponseBody): void {
  if (!body.isPaused) return
  body.isPaused = false
  body.resume()
}

/** Gives the rest of a body to `sink`: at once what came already, then each chunk as it comes. */
export function pushTo({ body, abort }: UpstreamResponse, sink: BodySink): void {
  body.sink = sink
  const { waiting } = body
  body.waiting = []
  body.length = 0
  let hasRoom = true
  for (const chunk of waiting) hasRoom = sink.data(chunk)
  if (body.ending) {
    tellEnd(sink, body.ending)
    return abort()
  }
  if (hasRoom) resumeBody(body)
  else body.isPaused = true
}

/** Settles at the next chunk, or at the end of the body. */
function nextChange(body: ResponseBody): Promise<void> {
  return new Promise((resolve) => {
    body.wake = resolve
    resumeBody(body)
  })
}

/**
 * The rest of a body, to be read once. Throws {UpstreamFailed} where the response breaks off; a reader that leaves before
 * the end gives the response up.
 */
export async function* chunksOf({ body, abort }: UpstreamResponse): AsyncGenerator<Buffer, void, undefined> {
  try {
    for (;;) {
      const chunk = body.waiting.shift()
      if (chunk) {
        body.length -= chunk.length
        yield chunk
      } else if (!body.ending) {
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

/** How long to look at the beginning of a body. */
export interface PeekLimits {
  readonly bytes: number
  readonly ms: number
}

/**
 * Waits until all of a body is there, at most for so many bytes and milliseconds. Takes nothing out of it: what came
 * still waits for whatever takes the body. Returns all of the body; `undefined` where it is not whole, or where `isEnough`
 * is true of its first chunk, after which nothing more is waited for.
 */
export async function peek(
  { body }: UpstreamResponse,
  { bytes, ms }: PeekLimits,
  isEnough?: (first: Buffer) => boolean,
): Promise<Buffer | undefined> {
  let timer: NodeJS.Timeout | undefined
  let isLate = false
  let isDecided = isEnough === undefined
  try {
    for (;;) {
      const [first] = body.waiting
      if (first && !isDecided && isEnough?.(first)) return undefined
      isDecided ||= first !== undefined
      if (body.ending || body.length > bytes || isLate) break
      // Mostly all of it comes with the head: then there is no timer.
      timer ??= setTimeout(() => {
        isLate = true
        body.wake?.()
      }, ms)
      await nextChange(body)
    }
  } finally {
    clearTimeout(timer)
  }
  const isWhole = body.ending && 'trailers' in body.ending && body.length <= bytes
  return isWhole ? Buffer.concat(body.waiting, body.length) : undefined
}

/** The same response with another head and body; its trailers stay. To be called once all of its body is there. */
export function withBody(response: UpstreamResponse, head: Head, bytes: Buffer): UpstreamResponse {
  const body = { ...response.body, waiting: [bytes], length: bytes.length }
  return { ...response, head, body }
}

/** The body without its content coding, to be read once; `undefined` where Governor does not know the coding. */
export function plainBody(response: UpstreamResponse): AsyncIterable<Buffer> | undefined {
  const encoding = contentEncoding(response.head.headers)
  const body = chunksOf(response)
  if (encoding === 'identity') return body
  const decoder = decoderFor(encoding, zlib.constants.Z_SYNC_FLUSH)
  if (!decoder) return undefined
  const plain = new PassThrough()
  pipeline(body, decoder, plain).catch((error: Error) => plain.destroy(error))
  return plain
}

/** Asks for a response without a content coding, which would have to be undone before anything can be read or changed. */
export function withoutCompression(call: UpstreamCall): UpstreamCall {
  return { ...call, headers: withHeaders(call.headers, { 'accept-encoding': 'identity' }) }
}

/** The beginning of a body, and what is left where that was not all. */
export interface Beginning {
  readonly bytes: Buffer
  readonly rest: AsyncIterable<Buffer> | undefined
}

/** Reads a whole body of at most `max` bytes for which `lease` has room; of any other, little more than that. */
export async function readUpTo(body: AsyncIterable<Buffer>, max: number, lease: Lease): Promise<Beginning> {
  const iterator = body[Symbol.asyncIterator]()
  const chunks: Buffer[] = []
  let length = 0
  for (;;) {
    const { done, value } = await iterator.next()
    if (done) return { bytes: Buffer.concat(chunks, length), rest: undefined }
    chunks.push(value)
    length += value.length
    if (length > max || !(await lease.grow(value.length)))
      return { bytes: Buffer.concat(chunks, length), rest: { [Symbol.asyncIterator]: () => iterator } }
  }
}
