/**
 * Observes successful responses: their chunks go to the client unchanged, and only the beginning and the end are kept.
 * When the last chunk has gone, usage and ids are read from them. Nothing is copied or parsed before.
 */
import { type CallUsage, estimateTokens, type ResponseFacts } from '../core/usage.ts'
import type { Dialect, ResponseMetadata } from '../dialect/dialect.ts'
import { type ResponseText, readText } from '../dialect/shared/response-tail.ts'
import { decoded, decodedAtOnce, decoderFor } from '../http/body.ts'
import { contentEncoding, statesEventStream } from '../http/headers.ts'
import type { Head } from '../http/upstream.ts'
import type { ResponseObserver } from '../http/upstream-response.ts'
import { JsonScanError } from '../json/scan.ts'

/** The usage and the metadata of a model's response. */
export interface Answered extends ResponseMetadata {
  readonly usage: CallUsage
  /** True if it certainly contains no tool calls; unset if the response could not be read. */
  readonly callsNothing?: boolean | undefined
  readonly facts?: ResponseFacts | undefined
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

/** A response to observe, and what to report. */
export interface ObserverTarget {
  readonly dialect: Dialect
  readonly head: Head
  /** Bytes of the request that was sent, for an estimate. */
  readonly requestBytes: number
  readonly withFacts?: boolean
  readonly withText?: boolean
  /**
   * Called with its id at most once, as soon as that is known; the client gets its bytes once the promise has settled.
   * Set if the provider keeps the response: then its tool calls are reported too.
   */
  readonly begin?: ((id: string) => Promise<unknown>) | undefined
  /** Called once after `end`: synchronously, except for large bodies with a content coding. */
  readonly settle: (answered: Answered) => void
  /** Called with a fault of Governor while it reads the response, whose usage is then estimated. */
  readonly fault: (error: Error) => void
}

/** Returns the state of a response to observe: its beginning and its end, by reference. */
function newObserved(target: ObserverTarget) {
  const { dialect, head, withText = false, begin } = target
  const coding = contentEncoding(head.headers)
  const streams = statesEventStream(head.headers)
  return {
    target,
    coding,
    streams,
    tailBytes: begin ? TAIL_WITH_CALLS : TAIL_BYTES,
    head: [] as Buffer[],
    headLength: 0,
    tail: [] as Buffer[],
    tailLength: 0,
    length: 0,
    isOver: false,
    /** How many bytes are needed before the next search for the id; 0: no more searches. */
    nextSearch: begin && coding === 'identity' ? 1 : 0,
    /** Unset if nobody asks for the text, or after a fault in reading it. */
    text: withText ? readText(dialect, streams) : undefined,
  }
}

type Observed = ReturnType<typeof newObserved>

/** Returns an observer of a successful response. */
export function observeResponse(target: ObserverTarget): ResponseObserver {
  const observed = newObserved(target)
  const isPlain = observed.coding === 'identity'
  const decoding = target.begin && !isPlain ? decodeHead(observed) : undefined
  return {
    take(chunk) {
      if (chunk) {
        keep(observed, chunk)
        if (isPlain && observed.text) readTextOf(observed, observed.text, chunk)
        if (decoding) return decoding.take(chunk)
      }
      const { head, headLength, nextSearch } = observed
      if (nextSearch === 0 || (chunk && headLength < nextSearch)) return undefined
      const id = idIn(target, head)
      // A beginning that comes in small pieces is searched each time it has doubled.
      observed.nextSearch = id !== undefined || headLength >= HEAD_BYTES ? 0 : headLength * 2
      return id === undefined ? undefined : target.begin?.(id)
    },
    end() {
      if (observed.isOver) return
      observed.isOver = true
      decoding?.stop()
      settleKept(observed)
    },
  }
}

/** Reads the text of a chunk, or its end. A fault in that leaves the rest of the response observed. */
function readTextOf(observed: Observed, text: ResponseText, chunk?: Buffer): string | undefined {
  try {
    if (!chunk) return text.end()
    text.push(chunk)
  } catch (error) {
    observed.text = undefined
    observed.target.fault(error as Error)
  }
  return undefined
}

function keep(observed: Observed, chunk: Buffer): void {
  observed.length += chunk.length
  if (observed.headLength < HEAD_BYTES) {
    observed.head.push(chunk)
    observed.headLength += chunk.length
    return
  }
  const { tail, coding, tailBytes } = observed
  const kept = coding === 'identity' ? tailBytes : MAX_ENCODED
  tail.push(chunk)
  observed.tailLength += chunk.length
  for (let first = tail[0]; first && observed.tailLength - first.length >= kept; first = tail[0]) {
    observed.tailLength -= first.length
    tail.shift()
  }
}

function joined(chunks: readonly Buffer[]): Buffer {
  const [only] = chunks
  return only && chunks.length === 1 ? only : Buffer.concat(chunks)
}

/** Reads and reports what was kept of a body, after its content coding is undone. */
function settleKept(observed: Observed): void {
  const { target, coding, head, headLength, tail, tailLength, tailBytes, length } = observed
  const whole = headLength + tailLength === length ? joined([...head, ...tail]) : undefined
  if (coding !== 'identity') {
    if (!whole || whole.length <= MAX_DECODED_AT_ONCE)
      return settleDecoded(observed, whole && decodedAtOnce(whole, coding, MAX_DECODED))
    decoded(whole, coding, MAX_DECODED)
      .then((plain) => settleDecoded(observed, plain))
      .catch(target.fault)
    return
  }
  if (!whole) return settle(observed, joined(head), joined(tail), whole, length)
  const end = tailLength >= tailBytes ? whole.subarray(headLength) : whole
  settle(observed, whole.subarray(0, headLength), end, whole, length)
}

/** Reports a body that had a content coding. One that cannot be decoded is empty, as its length says little. */
function settleDecoded(observed: Observed, body: Buffer = Buffer.alloc(0)): void {
  const { tailBytes } = observed
  if (observed.text) readTextOf(observed, observed.text, body)
  const isLong = body.length > HEAD_BYTES + tailBytes
  const tail = isLong ? body.subarray(-tailBytes) : body
  settle(observed, body.subarray(0, HEAD_BYTES), tail, isLong ? undefined : body, body.length)
}

function idIn({ dialect, fault }: ObserverTarget, head: readonly Buffer[]): string | undefined {
  try {
    return dialect.responseId?.(joined(head))
  } catch (error) {
    fault(error as Error)
    return undefined
  }
}

/** Searches the beginning of a body with a content coding for the id; `undefined` if the coding is unknown. */
function decodeHead({ target, coding }: Observed) {
  const decoder = decoderFor(coding, true)
  if (!decoder) return undefined
  const head: Buffer[] = []
  let length = 0
  let begun: Promise<unknown> | undefined
  const stop = () => void decoder.destroy()
  decoder.on('error', stop)
  decoder.on('data', (piece: Buffer) => {
    if (decoder.destroyed) return
    head.push(piece)
    length += piece.length
    const id = idIn(target, head)
    if (id !== undefined) begun = target.begin?.(id)
    if (id !== undefined || length >= HEAD_BYTES) stop()
  })
  return {
    stop,
    /** Resolves when a chunk was searched, and the response is linked if its id was found. */
    take(chunk: Buffer): Promise<unknown> | undefined {
      if (decoder.destroyed) return undefined
      // The callback also comes, with an error, if the decoder is destroyed meanwhile.
      return new Promise((resolve) => decoder.write(chunk, resolve)).then(() => begun)
    },
  }
}

/** Reports a body of `length` bytes by its parts, as a dialect reads them. */
function settle(observed: Observed, head: Buffer, tail: Buffer, whole: Buffer | undefined, length: number): void {
  const { target, streams } = observed
  const { dialect, requestBytes, withFacts, fault } = target
  const body = { head, tail, whole, streams, withCalls: target.begin !== undefined }
  let metadata: ResponseMetadata = {}
  let callsNothing: boolean | undefined
  let facts: ResponseFacts | undefined
  try {
    metadata = dialect.metadata(body)
    callsNothing = dialect.callsNothing(body)
    if (withFacts) facts = dialect.responseFacts?.(body)
  } catch (error) {
    // A response that is not JSON, or incomplete, has no metadata.
    const isUnreadable = error instanceof SyntaxError || error instanceof JsonScanError
    if (!isUnreadable) fault(error as Error)
  }
  let usage: CallUsage
  if (metadata.usage) usage = { estimated: false, ...metadata.usage }
  else {
    // The characters that the model wrote in the tail, in proportion to the whole body.
    const written = tail.length === 0 ? 0 : (dialect.writtenCharacters(tail) * length) / tail.length
    usage = { input: estimateTokens(requestBytes), output: estimateTokens(written), estimated: true }
  }
  target.settle({ callsNothing, facts, text: observed.text && readTextOf(observed, observed.text), ...metadata, usage })
}
