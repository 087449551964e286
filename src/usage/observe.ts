/**
 * Observes successful responses: their chunks go to the client unchanged, and only the beginning and the end are kept.
 * When the last chunk has gone, usage and ids are read from them. Nothing is copied or parsed before.
 */
import type { ToolCall } from '../core/conversation.ts'
import { type CallUsage, estimateTokens, type TokenUsage } from '../core/usage.ts'
import type { Dialect, ResponseMetadata, ResponseTail } from '../dialect/dialect.ts'
import { type ResponseText, readText } from '../dialect/shared/response-text.ts'
import { type Decoder, decoded, decodedAtOnce, decoderFor } from '../http/body.ts'
import { contentEncoding, isEventStream } from '../http/headers.ts'
import type { Head } from '../http/upstream.ts'
import type { ResponseObserver } from '../http/upstream-response.ts'
import { JsonScanError } from '../json/scan.ts'

/** The usage and the metadata of a model's response. */
export interface Answered {
  readonly usage: CallUsage
  /** The id from which the client may continue, and the id of the conversation that the provider keeps. */
  readonly id?: string | undefined
  readonly conversation?: string | undefined
  readonly calls?: readonly ToolCall[] | undefined
  /** True if it certainly contains no tool calls; unset if the response could not be read. */
  readonly callsNothing?: boolean | undefined
  /** The id of its first item. */
  readonly item?: string | undefined
  /** What the model said; set only with `withText`. */
  readonly text?: string | undefined
}

const HEAD_BYTES = 16_384
const TAIL_BYTES = 65_536
/** With calls: they stand before the metadata of the response, which may repeat all tools. */
const TAIL_WITH_CALLS = 1_048_576

/** Bytes of a body with a content coding that are kept, and that they may have when decoded. */
const MAX_ENCODED = 1_048_576
const MAX_DECODED = 16 * 1_048_576
/** Up to so many bytes, decoding at once takes less time than handing it to another thread. */
const MAX_DECODED_AT_ONCE = 65_536

/** The kept parts of a body, and its whole length in bytes. */
interface Body extends ResponseTail {
  readonly length: number
}

/** The beginning of a body with a content coding. */
interface Decoding {
  readonly decoder: Decoder
  readonly head: Buffer[]
  length: number
  /** Settles when the response is linked. */
  begun: Promise<unknown> | undefined
}

const NOTHING = Buffer.alloc(0)
const NO_METADATA: ResponseMetadata = {}

/** Estimates the characters that the model wrote: those in the tail, in proportion to the whole body. */
function writtenCharacters(dialect: Dialect, { tail, length }: Body): number {
  return tail.length === 0 ? 0 : (dialect.writtenCharacters(tail) * length) / tail.length
}

function estimated(dialect: Dialect, body: Body, requestBytes: number): CallUsage {
  return {
    input: estimateTokens(requestBytes),
    output: estimateTokens(writtenCharacters(dialect, body)),
    cachedInput: undefined,
    cacheWrite: undefined,
    reasoning: undefined,
    cost: undefined,
    estimated: true,
  }
}

function stated(usage: TokenUsage): CallUsage {
  return {
    input: usage.input,
    output: usage.output,
    cachedInput: usage.cachedInput,
    cacheWrite: usage.cacheWrite,
    reasoning: usage.reasoning,
    cost: undefined,
    estimated: false,
  }
}

/** A response to observe, and what to report. */
export interface ObserverTarget {
  readonly dialect: Dialect
  readonly head: Head
  /** Bytes of the request that was sent, for an estimate. */
  readonly requestBytes: number
  /** Report its tool calls. */
  readonly withCalls?: boolean
  /** Report what the model said. */
  readonly withText?: boolean
  /** Report its id as soon as it is known. */
  readonly withId?: boolean
  /** Called with the id at most once; the client gets its bytes once the promise has settled. */
  readonly begin?: (id: string) => Promise<unknown>
  /** Called once after `end`: synchronously, except for large bodies with a content coding. */
  readonly settle: (answered: Answered) => void
  /** Called with a fault of Governor while it reads the response, whose usage is then estimated. */
  readonly fault: (error: Error) => void
}

/** The state of an observed response: its beginning and its end, by reference. */
interface Observed {
  readonly target: ObserverTarget
  readonly coding: string
  readonly streams: boolean
  readonly withCalls: boolean
  /** How many bytes of the end are kept. */
  readonly tailBytes: number
  readonly head: Buffer[]
  headLength: number
  readonly tail: Buffer[]
  tailLength: number
  length: number
  isOver: boolean
  /** How many bytes are needed before the next search for the id; 0: no more searches. */
  nextSearch: number
  /** Decodes the beginning of a body with a content coding, until its id is found. */
  decoding: Decoding | undefined
  /** Unset if nobody asks for the text, or after a fault in reading it. */
  text: ResponseText | undefined
}

/** Returns an observer of a successful response. */
export function observeResponse(target: ObserverTarget): ResponseObserver {
  const { headers } = target.head
  const coding = contentEncoding(headers)
  const withCalls = target.withCalls === true
  const observed: Observed = {
    target,
    coding,
    streams: isEventStream(headers),
    withCalls,
    tailBytes: coding === 'identity' ? tailBytesFor(withCalls) : MAX_ENCODED,
    head: [],
    headLength: 0,
    tail: [],
    tailLength: 0,
    length: 0,
    isOver: false,
    nextSearch: target.withId === true && coding === 'identity' ? 1 : 0,
    decoding: undefined,
    text: target.withText === true ? readText(target.dialect, isEventStream(headers)) : undefined,
  }
  if (target.withId === true && coding !== 'identity') decodeHead(observed)
  return {
    take(chunk) {
      keep(observed, chunk)
      if (observed.text && coding === 'identity') takeText(observed, observed.text, chunk)
      const { decoding, nextSearch } = observed
      if (decoding) return decodeMore(decoding, chunk)
      return nextSearch > 0 && observed.headLength >= nextSearch ? lookForId(observed) : undefined
    },
    last: () => (observed.nextSearch > 0 ? lookForId(observed) : undefined),
    end() {
      if (observed.isOver) return
      observed.isOver = true
      observed.decoding?.decoder.destroy()
      if (observed.coding === 'identity') settle(observed, keptBody(observed))
      else settleEncoded(observed)
    },
  }
}

/** A fault in reading the text leaves the rest of the response observed. */
function takeText(observed: Observed, text: ResponseText, chunk: Buffer): void {
  try {
    text.push(chunk)
  } catch (error) {
    observed.text = undefined
    observed.target.fault(error as Error)
  }
}

function textOf({ text, target }: Observed): string | undefined {
  try {
    return text?.end()
  } catch (error) {
    target.fault(error as Error)
    return undefined
  }
}

function tailBytesFor(withCalls: boolean): number {
  return withCalls ? TAIL_WITH_CALLS : TAIL_BYTES
}

function keep(observed: Observed, chunk: Buffer): void {
  observed.length += chunk.length
  if (observed.headLength < HEAD_BYTES) {
    observed.head.push(chunk)
    observed.headLength += chunk.length
    return
  }
  const { tail, tailBytes } = observed
  tail.push(chunk)
  observed.tailLength += chunk.length
  for (let first = tail[0]; first && observed.tailLength - first.length >= tailBytes; first = tail[0]) {
    observed.tailLength -= first.length
    tail.shift()
  }
}

function joined(chunks: readonly Buffer[]): Buffer {
  const [only] = chunks
  return only && chunks.length === 1 ? only : Buffer.concat(chunks)
}

function wholeBody({ head, headLength, tail, tailLength, length }: Observed): Buffer | undefined {
  return headLength + tailLength === length ? joined([...head, ...tail]) : undefined
}

/** Returns the kept parts of a body without a content coding. */
function keptBody(observed: Observed): Body {
  const { head, headLength, tail, tailLength, tailBytes, length, streams, withCalls } = observed
  const whole = wholeBody(observed)
  if (!whole) return { head: joined(head), tail: joined(tail), whole, length, streams, withCalls }
  const end = tailLength >= tailBytes ? whole.subarray(headLength) : whole
  return { head: whole.subarray(0, headLength), tail: end, whole, length, streams, withCalls }
}

/** Returns the parts that would have been kept of a whole body. */
function bodyFrom({ streams, withCalls }: Observed, body: Buffer): Body {
  const tailBytes = tailBytesFor(withCalls)
  const isLong = body.length > HEAD_BYTES + tailBytes
  return {
    head: body.subarray(0, HEAD_BYTES),
    tail: isLong ? body.subarray(-tailBytes) : body,
    whole: isLong ? undefined : body,
    length: body.length,
    streams,
    withCalls,
  }
}

function idIn({ dialect, fault }: ObserverTarget, head: readonly Buffer[]): string | undefined {
  try {
    return dialect.responseId?.(joined(head))
  } catch (error) {
    fault(error as Error)
    return undefined
  }
}

/** Searches the beginning for the id; if it comes in small pieces, each time it has doubled. */
function lookForId(observed: Observed): Promise<unknown> | undefined {
  const { target, head, headLength } = observed
  const id = idIn(target, head)
  observed.nextSearch = id !== undefined || headLength >= HEAD_BYTES ? 0 : headLength * 2
  return id === undefined ? undefined : target.begin?.(id)
}

/** Searches the beginning of a body with a content coding for the id. */
function decodeHead(observed: Observed): void {
  const { target, coding } = observed
  const decoder = decoderFor(coding, true)
  if (!decoder) return
  const decoding: Decoding = { decoder, head: [], length: 0, begun: undefined }
  observed.decoding = decoding
  const stop = () => {
    observed.decoding = undefined
    decoder.destroy()
  }
  decoder.on('error', stop)
  decoder.on('data', (piece: Buffer) => {
    if (decoder.destroyed) return
    decoding.head.push(piece)
    decoding.length += piece.length
    const id = idIn(target, decoding.head)
    if (id !== undefined) decoding.begun = target.begin?.(id)
    if (id !== undefined || decoding.length >= HEAD_BYTES) stop()
  })
}

/** Resolves when a chunk was searched, and the response is linked if its id was found. */
async function decodeMore(decoding: Decoding, chunk: Buffer): Promise<void> {
  // The callback also comes, with an error, if the decoder is destroyed meanwhile.
  await new Promise((resolve) => decoding.decoder.write(chunk, resolve))
  await decoding.begun
}

function settleEncoded(observed: Observed): void {
  const { coding, target } = observed
  const whole = wholeBody(observed)
  // The length of a body that cannot be decoded says little: only the request is estimated.
  const settleWith = (plain: Buffer | undefined) => {
    if (plain && observed.text) takeText(observed, observed.text, plain)
    settle(observed, bodyFrom(observed, plain ?? NOTHING))
  }
  if (!whole) return settleWith(undefined)
  if (whole.length <= MAX_DECODED_AT_ONCE) return settleWith(decodedAtOnce(whole, coding, MAX_DECODED))
  decoded(whole, coding, MAX_DECODED).then(settleWith).catch(target.fault)
}

function settle(observed: Observed, body: Body): void {
  const { target } = observed
  const { dialect, requestBytes, fault } = target
  let metadata: ResponseMetadata = NO_METADATA
  let callsNothing: boolean | undefined
  try {
    metadata = dialect.metadata(body)
    callsNothing = dialect.callsNothing(body)
  } catch (error) {
    // A response that is not JSON, or incomplete, has no metadata.
    const isUnreadable = error instanceof SyntaxError || error instanceof JsonScanError
    if (!isUnreadable) fault(error as Error)
  }
  const { usage, id, conversation, calls, item } = metadata
  target.settle({
    usage: usage ? stated(usage) : estimated(dialect, body, requestBytes),
    id,
    conversation,
    calls,
    callsNothing,
    item,
    text: textOf(observed),
  })
}
