/**
 * Looks at successful responses from beside: their chunks go to the client as they come, and when the last one has gone,
 * what is left of the head and the tail is asked for usage and ids. Nothing is copied or parsed before.
 */
import type { ToolCall } from '../core/conversation.ts'
import { type CallUsage, estimateTokens, type TokenUsage } from '../core/usage.ts'
import type { Dialect, ResponseMetadata, ResponseTail } from '../dialect/dialect.ts'
import { decoded, decodedAtOnce } from '../http/body.ts'
import { contentEncoding, isEventStream } from '../http/headers.ts'
import type { Head } from '../http/upstream.ts'
import type { ResponseObserver } from '../http/upstream-response.ts'
import { JsonScanError } from '../json/scan.ts'

/** What a model call brought. */
export interface Answered {
  readonly usage: CallUsage
  /** The id by which the client may go on from the response, and that of the conversation the provider keeps. */
  readonly id?: string | undefined
  readonly conversation?: string | undefined
  readonly calls?: readonly ToolCall[] | undefined
  /** It surely calls nothing, where that was asked for. */
  readonly callsNothing?: boolean | undefined
  /** The id of the first item it consists of. */
  readonly item?: string | undefined
}

const HEAD_BYTES = 16_384
const TAIL_BYTES = 65_536
/** Of a response whose calls are to be told: they stand before what it says of itself, which may repeat all tools. */
const TAIL_WITH_CALLS = 1_048_576

/** Bytes of a body in a content coding that are kept, and what they may become. */
const MAX_ENCODED = 1_048_576
const MAX_DECODED = 16 * 1_048_576
/** Up to so many bytes undoing a content coding takes less time than it takes to have it done elsewhere. */
const MAX_DECODED_AT_ONCE = 65_536

/** What is looked at of a body, and how long all of it is. */
interface Body extends ResponseTail {
  readonly length: number
}

const NOTHING = Buffer.alloc(0)
const NO_FACTS: ResponseMetadata = {}

/** Characters that the model wrote, as the tail has them, in proportion to the whole body. */
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

/** One response to be looked at. */
export interface ObserverTarget {
  readonly dialect: Dialect
  readonly head: Head
  /** Of the request that was sent, for an estimate. */
  readonly requestBytes: number
  /** What it calls is to be told as well. */
  readonly withCalls?: boolean
  /** Whether it calls anything is to be told as well. */
  readonly withEnd?: boolean
  /** Its id is to be told as soon as it is known. */
  readonly withId?: boolean
  /** Told the id at most once, before the client gets the bytes that state it; not for a body in a content coding. */
  readonly begin?: (id: string) => void
  /** Told once, after `end`: synchronously, but for large bodies in a content coding. */
  readonly settle: (answered: Answered) => void
  /** A fault of Governor's own in reading the response, which is estimated then. */
  readonly fault: (error: Error) => void
}

/** What is kept of a response on its way: its beginning and its end, by reference. */
interface Observed {
  readonly target: ObserverTarget
  readonly coding: string
  readonly streams: boolean
  readonly withCalls: boolean
  /** Bytes of the end that are kept. */
  readonly tailBytes: number
  readonly head: Buffer[]
  headLength: number
  readonly tail: Buffer[]
  tailLength: number
  length: number
  isOver: boolean
  /** How many bytes must be there before the id is looked for next; 0: it is not looked for any more. */
  idWithin: number
}

/** Returns what looks at a successful response. */
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
    idWithin: target.withId === true && coding === 'identity' ? 1 : 0,
  }
  return {
    take(chunk) {
      keep(observed, chunk)
      if (observed.idWithin > 0) lookForId(observed)
    },
    end() {
      if (observed.isOver) return
      observed.isOver = true
      if (observed.coding === 'identity') settle(observed, keptBody(observed))
      else settleEncoded(observed)
    },
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

/** What is kept of a body without a content coding. */
function keptBody(observed: Observed): Body {
  const { head, headLength, tail, tailLength, tailBytes, length, streams, withCalls } = observed
  const whole = wholeBody(observed)
  if (!whole) return { head: joined(head), tail: joined(tail), whole, length, streams, withCalls }
  const end = tailLength >= tailBytes ? whole.subarray(headLength) : whole
  return { head: whole.subarray(0, headLength), tail: end, whole, length, streams, withCalls }
}

/** What would have been kept of a body that is all there. */
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

/** The id stands at the beginning; where it comes in small pieces, it is looked for each time there is twice as much. */
function lookForId(observed: Observed): void {
  const { dialect, begin, fault } = observed.target
  if (observed.headLength < observed.idWithin) return
  try {
    const id = dialect.responseId?.(joined(observed.head))
    const isKnown = id !== undefined || observed.headLength >= HEAD_BYTES || !dialect.responseId
    observed.idWithin = isKnown ? 0 : observed.headLength * 2
    if (id !== undefined) begin?.(id)
  } catch (error) {
    observed.idWithin = 0
    fault(error as Error)
  }
}

function settleEncoded(observed: Observed): void {
  const { coding, target } = observed
  const whole = wholeBody(observed)
  // Of what can't be decoded not even its length says much; the request's does.
  const settleWith = (plain: Buffer | undefined) => settle(observed, bodyFrom(observed, plain ?? NOTHING))
  if (!whole) return settleWith(undefined)
  if (whole.length <= MAX_DECODED_AT_ONCE) return settleWith(decodedAtOnce(whole, coding, MAX_DECODED))
  decoded(whole, coding, MAX_DECODED).then(settleWith).catch(target.fault)
}

function settle({ target }: Observed, body: Body): void {
  const { dialect, requestBytes, withEnd, fault } = target
  let facts: ResponseMetadata = NO_FACTS
  let callsNothing: boolean | undefined
  try {
    facts = dialect.metadata(body)
    callsNothing = withEnd ? dialect.callsNothing(body) : undefined
  } catch (error) {
    // A response that is no JSON, or only the beginning of it, says nothing of itself.
    const isUnreadable = error instanceof SyntaxError || error instanceof JsonScanError
    if (!isUnreadable) fault(error as Error)
  }
  const { usage, id, conversation, calls, item } = facts
  target.settle({
    usage: usage ? stated(usage) : estimated(dialect, body, requestBytes),
    id,
    conversation,
    calls,
    callsNothing,
    item,
  })
}
