/**
 * Looks at successful responses from beside: their chunks go to the client as they come, and when the last one has gone,
 * what is left of the head and the tail is asked for usage and ids. Nothing is copied or parsed before.
 */
import type { ToolCall } from '../core/conversation.ts'
import { type CallUsage, estimateTokens } from '../core/usage.ts'
import type { Dialect, Facts, Tapped } from '../dialect/dialect.ts'
import { JsonScanError } from '../json/scan.ts'
import { decoded, decodedAtOnce } from './body.ts'
import { codingOf, isEventStream } from './headers.ts'
import type { Head } from './upstream.ts'

/** What a model call brought. */
export interface Answered {
  readonly usage: CallUsage
  /** The id by which the client may go on from the response, and that of the conversation the provider keeps. */
  readonly id?: string
  readonly conversation?: string
  readonly calls?: readonly ToolCall[]
  /** It surely calls nothing, where that was asked for. */
  readonly callsNothing?: boolean
  /** The id of the first item it consists of. */
  readonly item?: string
}

export interface Tap {
  /** Takes a chunk, which must not change any more. */
  take(chunk: Buffer): void
  /** The response is over, or broke off. */
  end(): void
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

/** What is kept of a body: its beginning and its end, by reference. */
interface Kept {
  take(chunk: Buffer): void
  readonly length: number
  readonly head: Buffer
  readonly tail: Buffer
  readonly whole: Buffer | undefined
}

function joined(chunks: readonly Buffer[]): Buffer {
  const [only] = chunks
  return only && chunks.length === 1 ? only : Buffer.concat(chunks)
}

/** A class, as accessors in an object literal keep every object of it until the next full collection. */
class KeptChunks implements Kept {
  readonly #tailBytes: number
  readonly #head: Buffer[] = []
  readonly #tail: Buffer[] = []
  #headLength = 0
  #tailLength = 0
  #length = 0

  constructor(tailBytes: number) {
    this.#tailBytes = tailBytes
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

function keep(tailBytes = TAIL_BYTES): Kept {
  return new KeptChunks(tailBytes)
}

/** A body that is there already, as it would have been kept. */
function kept(body: Buffer, tailBytes = TAIL_BYTES): Kept {
  const whole = body.length <= HEAD_BYTES + tailBytes ? body : undefined
  return {
    take: () => undefined,
    length: body.length,
    head: body.subarray(0, HEAD_BYTES),
    tail: whole ?? body.subarray(-tailBytes),
    whole,
  }
}

/** What a model wrote stands in these, in every dialect. */
const WRITTEN =
  /"(?:content|text|delta|arguments|partial_json|thinking|reasoning|reasoning_content|refusal|input)"\s{0,4}:\s{0,4}"((?:[^"\\]|\\.)*)"/g

/** Characters that the model wrote, as the tail has them, in proportion to the whole body. */
function writtenCharacters({ tail, length }: Kept): number {
  let characters = 0
  for (const [, written = ''] of tail.toString('latin1').matchAll(WRITTEN)) characters += written.length
  return tail.length === 0 ? 0 : (characters * length) / tail.length
}

function estimated(body: Kept, requestBytes: number): CallUsage {
  return {
    input: estimateTokens(requestBytes),
    output: estimateTokens(writtenCharacters(body)),
    estimated: true,
  }
}

/** What is kept of a body, joined when it is asked for. A class for the same reason. */
class TappedBody implements Tapped {
  readonly #body: Kept
  readonly streams: boolean
  readonly withCalls: boolean

  constructor(body: Kept, streams: boolean, withCalls: boolean) {
    this.#body = body
    this.streams = streams
    this.withCalls = withCalls
  }

  get head(): Buffer {
    return this.#body.head
  }

  get tail(): Buffer {
    return this.#body.tail
  }

  get whole(): Buffer | undefined {
    return this.#body.whole
  }
}

/** One response to be looked at. */
export interface TapTarget {
  readonly dialect: Dialect
  readonly head: Head
  /** Of the request that was sent, for an estimate. */
  readonly requestBytes: number
  /** What it calls is to be told as well. */
  readonly withCalls?: boolean
  /** Whether it calls anything is to be told as well. */
  readonly withEnd?: boolean
  /** Told once, after `end`: synchronously, but for large bodies in a content coding. */
  settle(answered: Answered): void
  /** A fault of Governor's own in reading the response, which is estimated then. */
  fault(error: Error): void
}

/** Opens a tap on a successful response. */
export function openTap(target: TapTarget): Tap {
  const { dialect, head, requestBytes, withCalls = false, withEnd = false } = target
  const coding = codingOf(head.headers)
  const isCoded = coding !== 'identity'
  const tailBytes = withCalls ? TAIL_WITH_CALLS : TAIL_BYTES
  const body = keep(isCoded ? MAX_ENCODED : tailBytes)
  let isOver = false
  const tell = (read: Kept) => {
    const streams = isEventStream(head.headers)
    const tapped = new TappedBody(read, streams, withCalls)
    let facts: Facts = {}
    let callsNothing = false
    try {
      facts = dialect.facts(tapped)
      callsNothing = withEnd && dialect.callsNothing(tapped)
    } catch (error) {
      // A response that is no JSON, or only the beginning of it, says nothing of itself.
      const isUnreadable = error instanceof SyntaxError || error instanceof JsonScanError
      if (!isUnreadable) target.fault(error as Error)
    }
    const { usage } = facts
    const taken = usage ? Object.assign({ estimated: false }, usage) : estimated(read, requestBytes)
    target.settle(Object.assign({ callsNothing }, facts, { usage: taken }))
  }
  const tellCoded = () => {
    const { whole } = body
    // Of what can't be undone not even its length says much; the request's does.
    const untold = () => tell(kept(Buffer.alloc(0)))
    if (!whole) return untold()
    if (whole.length <= MAX_DECODED_AT_ONCE)
      return tell(kept(decodedAtOnce(whole, coding, MAX_DECODED) ?? Buffer.alloc(0), tailBytes))
    decoded(whole, coding, MAX_DECODED)
      .then((plain) => (plain ? tell(kept(plain, tailBytes)) : untold()))
      .catch((error: Error) => target.fault(error))
  }
  return {
    take: (chunk) => body.take(chunk),
    end() {
      if (isOver) return
      isOver = true
      if (isCoded) tellCoded()
      else tell(body)
    },
  }
}
