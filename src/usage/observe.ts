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

function joined(chunks: readonly Buffer[]): Buffer {
  const [only] = chunks
  return only && chunks.length === 1 ? only : Buffer.concat(chunks)
}

/**
 * What is kept of a body: its beginning and its end, by reference, joined when it is asked for. A class, as accessors in
 * an object literal keep every object of it until the next full collection.
 */
class KeptChunks implements Body {
  readonly #tailBytes: number
  readonly #head: Buffer[]
  readonly #tail: Buffer[] = []
  #headLength: number
  #tailLength = 0
  #length: number
  readonly streams: boolean
  readonly withCalls: boolean

  constructor(first: Buffer, tailBytes: number, streams: boolean, withCalls: boolean) {
    this.#tailBytes = tailBytes
    this.#head = [first]
    this.#headLength = first.length
    this.#length = first.length
    this.streams = streams
    this.withCalls = withCalls
  }

  take(chunk: Buffer): void {
    this.#length += chunk.length
    if (this.#headLength < HEAD_BYTES) {
      this.#head.push(chunk)
      this.#headLength += chunk.length
      return
    }
    this.#tail.push(chunk)
    this.#tailLength += chunk.length
    for (
      let first = this.#tail[0];
      first && this.#tailLength - first.length >= this.#tailBytes;
      first = this.#tail[0]
    ) {
      this.#tailLength -= first.length
      this.#tail.shift()
    }
  }

  #isWhole(): boolean {
    return this.#headLength + this.#tailLength === this.#length
  }

  get length(): number {
    return this.#length
  }

  get head(): Buffer {
    return joined(this.#head)
  }

  get tail(): Buffer {
    const isTail = this.#tailLength >= this.#tailBytes || !this.#isWhole()
    return joined(isTail ? this.#tail : [...this.#head, ...this.#tail])
  }

  get whole(): Buffer | undefined {
    return this.#isWhole() ? joined([...this.#head, ...this.#tail]) : undefined
  }
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
  begin?(id: string): void
  /** Told once, after `end`: synchronously, but for large bodies in a content coding. */
  settle(answered: Answered): void
  /** A fault of Governor's own in reading the response, which is estimated then. */
  fault(error: Error): void
}

/** Opens a tap on a successful response. */
export function observeResponse(target: ObserverTarget): ResponseObserver {
  return new ResponseTap(target)
}

class ResponseTap implements ResponseObserver {
  readonly #target: ObserverTarget
  readonly #coding: string
  readonly #streams: boolean
  readonly #withCalls: boolean
  /** The first chunk, which most often is all. */
  #first: Buffer | undefined
  #more: KeptChunks | undefined
  #isOver = false
  /** Of how many bytes the id is looked for next; 0: not any more. */
  #idWithin: number

  constructor(target: ObserverTarget) {
    const { headers } = target.head
    this.#target = target
    this.#coding = contentEncoding(headers)
    this.#streams = isEventStream(headers)
    this.#withCalls = target.withCalls === true
    this.#idWithin = target.withId === true && this.#coding === 'identity' ? 1 : 0
  }

  get #tailBytes(): number {
    return this.#withCalls ? TAIL_WITH_CALLS : TAIL_BYTES
  }

  take(chunk: Buffer): void {
    if (this.#more) {
      this.#more.take(chunk)
    } else if (this.#first) {
      const tailBytes = this.#coding === 'identity' ? this.#tailBytes : MAX_ENCODED
      this.#more = new KeptChunks(this.#first, tailBytes, this.#streams, this.#withCalls)
      this.#more.take(chunk)
    } else {
      this.#first = chunk
    }
    if (this.#idWithin > 0) this.#lookForId()
  }

  /** The id stands at the beginning; where it comes in small pieces, it is looked for each time there is twice as much. */
  #lookForId(): void {
    const { dialect } = this.#target
    const head = this.#more ? this.#more.head : (this.#first ?? NOTHING)
    if (head.length < this.#idWithin) return
    try {
      const id = dialect.responseId?.(head)
      const isKnown = id !== undefined || head.length >= HEAD_BYTES || !dialect.responseId
      this.#idWithin = isKnown ? 0 : head.length * 2
      if (id !== undefined) this.#target.begin?.(id)
    } catch (error) {
      this.#idWithin = 0
      this.#target.fault(error as Error)
    }
  }

  end(): void {
    if (this.#isOver) return
    this.#isOver = true
    if (this.#coding !== 'identity') this.#tellCoded()
    else if (this.#more) this.#tell(this.#more)
    else this.#tell(this.#all(this.#first ?? NOTHING))
  }

  /** A body that is all there, as it would have been kept. */
  #plain(body: Buffer): Body {
    const tailBytes = this.#tailBytes
    const all = this.#all(body)
    const head = body.subarray(0, HEAD_BYTES)
    if (body.length <= HEAD_BYTES + tailBytes) return { ...all, head }
    return { ...all, head, tail: body.subarray(-tailBytes), whole: undefined }
  }

  #all(body: Buffer): Body {
    return {
      head: body,
      tail: body,
      whole: body,
      length: body.length,
      streams: this.#streams,
      withCalls: this.#withCalls,
    }
  }

  #tellCoded(): void {
    const whole = this.#more ? this.#more.whole : (this.#first ?? NOTHING)
    // Of what can't be undone not even its length says much; the request's does.
    const untold = () => this.#tell(this.#all(NOTHING))
    if (!whole) return untold()
    if (whole.length <= MAX_DECODED_AT_ONCE)
      return this.#tell(this.#plain(decodedAtOnce(whole, this.#coding, MAX_DECODED) ?? NOTHING))
    decoded(whole, this.#coding, MAX_DECODED)
      .then((plain) => (plain ? this.#tell(this.#plain(plain)) : untold()))
      .catch((error: Error) => this.#target.fault(error))
  }

  #tell(body: Body): void {
    const { dialect, requestBytes, withEnd } = this.#target
    let facts: ResponseMetadata = NO_FACTS
    let callsNothing: boolean | undefined
    try {
      facts = dialect.metadata(body)
      callsNothing = withEnd ? dialect.callsNothing(body) : undefined
    } catch (error) {
      // A response that is no JSON, or only the beginning of it, says nothing of itself.
      const isUnreadable = error instanceof SyntaxError || error instanceof JsonScanError
      if (!isUnreadable) this.#target.fault(error as Error)
    }
    const { usage, id, conversation, calls, item } = facts
    this.#target.settle({
      usage: usage ? stated(usage) : estimated(dialect, body, requestBytes),
      id,
      conversation,
      calls,
      callsNothing,
      item,
    })
  }
}
