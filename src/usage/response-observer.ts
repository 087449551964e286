/**
 * Observes successful responses: their chunks go to the client unchanged, and only the beginning and the end are kept.
 * The ids by which the client may continue are found as they pass; usage is read when the last chunk has gone.
 */
import { type CallUsage, estimateTokens, type ResponseFacts } from '../core/usage.ts'
import type { Dialect, ResponseMetadata, ResponseTail } from '../dialect/dialect.ts'
import { type ResponseText, readText } from '../dialect/shared/response-tail.ts'
import { decoderFor } from '../http/body.ts'
import { contentEncoding, headerOf, statesEventStream } from '../http/headers.ts'
import type { Head } from '../http/upstream.ts'
import type { ResponseObserver } from '../http/upstream-response.ts'
import { JsonScanError } from '../json/scan.ts'
import { type StreamSearch, searchStream } from './relayed-calls.ts'

/** The usage and the metadata of a model's response. */
export interface Answered extends ResponseMetadata {
  readonly usage: CallUsage
  /** True if it certainly contains no tool calls; unset if the response could not be read. */
  readonly callsNothing?: boolean | undefined
  readonly facts?: ResponseFacts | undefined
  readonly text?: string | undefined
  /** It broke off, or reported an error in its stream. */
  readonly isCut: boolean
}

const HEAD_BYTES = 16_384
const TAIL_BYTES = 65_536
/** With calls: they stand before the metadata of the response, which may repeat all tools. */
const TAIL_WITH_CALLS = 1_048_576

/** Bytes that a body with a content coding may have without it. */
const MAX_DECODED = 16 * 1_048_576

/** A response to observe, and what to report. */
interface ObserverTarget {
  readonly dialect: Dialect
  readonly head: Head
  /** Bytes of the request that was sent, for an estimate. */
  readonly requestBytes: number
  readonly withFacts?: boolean
  readonly withText?: boolean
  /** A client may continue from it by its id: that, and its tool calls, are reported with the ids of the calls. */
  readonly isKept?: boolean
  /** Its client may fetch it, or the rest of it, later. */
  readonly mayBePending?: boolean
  /**
   * Called with its id at most once, as soon as that is known; the client gets its bytes once the promise has settled.
   */
  readonly begin?: ((id: string) => Promise<unknown>) | undefined
  /**
   * Called with the ids of the calls as soon as the response is over, before the client gets its end; `isCut`: it broke
   * off. The client gets the rest once the promise has settled. Called again if there were further calls. `kept`: what
   * `isKept` asks for, as far as it can be read.
   */
  readonly relayed?:
    | ((callIds: readonly string[], isCut: boolean, kept: ResponseMetadata) => Promise<unknown> | undefined)
    | undefined
  /** Called once after `end`: synchronously, unless the rest of a content coding is to be undone before. */
  readonly completed: (answered: Answered) => void
  /** Called with a fault of Governor while it reads the response, whose usage is then estimated. */
  readonly fault: (error: unknown) => void
}

/** A response while it is observed. Changed by the functions of this file alone. */
interface Observed {
  readonly target: ObserverTarget
  streams: boolean
  /** Undoes the content coding. */
  readonly decoder: ReturnType<typeof decoding> | undefined
  /** Nothing of it can be read. */
  readonly isUnread: boolean
  /** Bytes that are still to come; a client that knows them has the whole answer with the last one. */
  left: number
  /** Its beginning and its end, by reference, without its content coding. */
  readonly head: Buffer[]
  readonly tail: Buffer[]
  tailBytes: number
  headLength: number
  tailLength: number
  length: number
  search: StreamSearch | undefined
  ending: 'whole' | 'failed' | undefined
  /** Unset if nobody asks for the text, or after a fault in reading it. */
  text: ResponseText | undefined
  isOver: boolean
  /** What was read when so many bytes had come. */
  read: { readonly length: number; readonly metadata: ResponseMetadata } | undefined
  /** How many ids were reported; -1: nothing was. */
  reported: number
  /** How many bytes are needed before the next search for the id; 0: no more searches. */
  nextSearch: number
}

function newObserved(target: ObserverTarget): Observed {
  const { head, begin } = target
  const coding = contentEncoding(head.headers)
  const decoder = coding === 'identity' ? undefined : decoderFor(coding, true)
  // V8 needs 20 µs for the same object if it begins with a spread: each key after that makes a new hidden class.
  return {
    target,
    streams: statesEventStream(head.headers),
    decoder: decoder && decoding(decoder),
    isUnread: coding !== 'identity' && !decoder,
    left: Number(headerOf(head.headers, 'content-length') ?? Number.NaN),
    head: [],
    tail: [],
    tailBytes: TAIL_BYTES,
    headLength: 0,
    tailLength: 0,
    length: 0,
    search: undefined,
    ending: undefined,
    text: undefined,
    isOver: false,
    read: undefined,
    reported: -1,
    nextSearch: begin ? 1 : 0,
  }
}

/** Returns an observer of a successful response. */
export function observeResponse(target: ObserverTarget): ResponseObserver {
  const observed = newObserved(target)
  const { decoder } = observed
  const takePlain = (chunk: Buffer | undefined, isLast: boolean) => {
    if (chunk) keep(observed, chunk)
    const [one, other] = [searchId(observed, isLast), searchCalls(observed, chunk, isLast)]
    return one && other ? Promise.all([one, other]) : (one ?? other)
  }
  return {
    take(chunk) {
      if (observed.isUnread) return undefined
      observed.left -= chunk?.length ?? 0
      const isLast = chunk === undefined || observed.left === 0
      if (decoder) return decoder.take(chunk, isLast, takePlain)
      return takePlain(chunk, isLast)
    },
    end(isWhole) {
      if (observed.isOver) return
      observed.isOver = true
      if (!isWhole) observed.ending ??= 'failed'
      const settleNow = () => {
        void searchCalls(observed, undefined, true)
        reportAnswer(observed)
      }
      // What came of a response that broke off is read first.
      const reading = decoder?.take(undefined, true, takePlain)
      if (reading) reading.then(settleNow)
      else settleNow()
    },
  }
}

/** Reports the id of the response as soon as its beginning contains it. */
function searchId(observed: Observed, isLast: boolean): Promise<unknown> | undefined {
  const { target, head, headLength, nextSearch } = observed
  if (nextSearch === 0 || (!isLast && headLength < nextSearch)) return undefined
  const id = idIn(target, head)
  // A beginning that comes in small pieces is searched each time it has doubled.
  observed.nextSearch = id !== undefined || headLength >= HEAD_BYTES ? 0 : headLength * 2
  return id === undefined ? undefined : target.begin?.(id)
}

/** Reports the calls once the response is over. */
function searchCalls(observed: Observed, chunk: Buffer | undefined, isLast: boolean): Promise<unknown> | undefined {
  const { target, streams, search } = observed
  if (!target.relayed) return undefined
  try {
    if (chunk && search) observed.ending = search.push(chunk) ?? observed.ending
    if (isLast && !streams) observed.ending ??= 'whole'
    return isLast || (observed.ending && chunk) ? report(observed) : undefined
  } catch (error) {
    target.fault(error)
    return undefined
  }
}

function report(observed: Observed): Promise<unknown> | undefined {
  const { target, search, streams, ending, reported } = observed
  const callIds = streams ? (search?.callIds ?? []) : reported === -1 ? idsInWhole(observed) : []
  if (callIds.length <= reported) return undefined
  observed.reported = callIds.length
  const isRead = target.mayBePending || (target.isKept && callIds.length > 0)
  return target.relayed?.(callIds, ending !== 'whole', isRead ? metadataOf(observed) : {})
}

/** Returns the metadata of a response whose end has come; none if it can't be read, which is reported after that. */
function metadataOf(observed: Observed): ResponseMetadata {
  try {
    observed.read = { length: observed.length, metadata: metadataIn(observed, bodyOf(observed)) }
    return observed.read.metadata
  } catch {
    return {}
  }
}

function metadataIn({ target, streams, ending }: Observed, body: ResponseTail): ResponseMetadata {
  const { dialect, mayBePending } = target
  const metadata = dialect.metadata(body)
  if (!mayBePending) return metadata
  // The beginning of a last event that holds pictures is not kept.
  const isOver = streams && ending === 'whole'
  return { ...metadata, isPending: isOver ? false : dialect.isPending?.(body) }
}

/** Returns the ids of the calls in a body that is no stream; none if it is too long, or can't be read. */
function idsInWhole({ target, head, tail, headLength, tailLength, length }: Observed): readonly string[] {
  if (headLength + tailLength !== length) return []
  const body = joined([...head, ...tail])
  const { marks, readAnswer } = target.dialect
  if (marks && !body.includes(marks.call)) return []
  return readAnswer(body)?.calls.map(({ id }) => id) ?? []
}

/** Reads the text of a chunk, or its end. A fault in that leaves the rest of the response observed. */
function readTextOf(observed: Observed, text: ResponseText, chunk?: Buffer): string | undefined {
  try {
    if (!chunk) return text.end()
    text.push(chunk)
  } catch (error) {
    observed.text = undefined
    observed.target.fault(error)
  }
  return undefined
}

/** Decides by the first characters of a body whether it is a stream of events: not all upstreams state that. */
function begin(observed: Observed, first: Buffer): void {
  const { target } = observed
  const start = first.toString('utf8', 0, 64).replace(/^\ufeff?\s*/, '')
  observed.streams = /^(?:data|event|id|retry)?:/.test(start) || (observed.streams && !/^[[{]/.test(start))
  const { dialect, isKept, relayed, withText = false } = target
  observed.tailBytes = isKept || !observed.streams ? TAIL_WITH_CALLS : TAIL_BYTES
  observed.search = observed.streams && relayed ? searchStream(dialect) : undefined
  observed.text = withText ? readText(dialect, observed.streams) : undefined
}

function keep(observed: Observed, chunk: Buffer): void {
  if (observed.length === 0) begin(observed, chunk)
  if (observed.text) readTextOf(observed, observed.text, chunk)
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

/** Returns what was kept of a body so far, as dialects read it. */
function bodyOf({ target, streams, head, headLength, tail, tailLength, tailBytes, length }: Observed): ResponseTail {
  const how = { streams, withCalls: target.isKept === true }
  const whole = headLength + tailLength === length ? joined([...head, ...tail]) : undefined
  if (!whole) return { head: joined(head), tail: joined(tail), whole, ...how }
  const end = tailLength >= tailBytes ? whole.subarray(headLength) : whole
  return { head: whole.subarray(0, headLength), tail: end, whole, ...how }
}

function idIn({ dialect, fault }: ObserverTarget, head: readonly Buffer[]): string | undefined {
  try {
    return dialect.responseId?.(joined(head))
  } catch (error) {
    fault(error)
    return undefined
  }
}

type TakePlain = (chunk: Buffer | undefined, isLast: boolean) => Promise<unknown> | undefined

/** Undoes the content coding of a body chunk by chunk; what comes after a fault, or after too much, is not read. */
function decoding(decoder: NonNullable<ReturnType<typeof decoderFor>>) {
  const found: (Promise<unknown> | undefined)[] = []
  let takePlain: TakePlain | undefined
  let length = 0
  let isLast = false
  const stop = () => void decoder.destroy()
  // A decoder that fails never calls the callback of its last write.
  const closed = new Promise((resolve) => decoder.once('close', resolve))
  decoder.on('error', stop)
  decoder.on('data', (piece: Buffer) => {
    length += piece.length
    if (length > MAX_DECODED) stop()
    else found.push(takePlain?.(piece, false))
  })
  return {
    /** Resolves when the chunk was read, and what was found in it is recorded; `undefined` after the last one. */
    take(chunk: Buffer | undefined, isLastChunk: boolean, take: TakePlain): Promise<unknown> | undefined {
      takePlain = take
      if (isLast) return undefined
      isLast = isLastChunk
      const read = new Promise((resolve) => {
        if (decoder.destroyed) resolve(undefined)
        else if (isLast) decoder.end(chunk)
        else decoder.write(chunk, resolve)
      })
      return Promise.race([read, closed]).then(() => {
        if (isLastChunk) found.push(take(undefined, true))
        return Promise.all(found.splice(0))
      })
    },
  }
}

/** Reads and reports what was kept of a body. One that can't be decoded is empty, as its length says little. */
function reportAnswer(observed: Observed): void {
  const { target, streams, ending, length } = observed
  const { dialect, requestBytes, withFacts, fault } = target
  const body = bodyOf(observed)
  const { tail } = body
  let metadata: ResponseMetadata = {}
  let callsNothing: boolean | undefined
  let facts: ResponseFacts | undefined
  try {
    metadata = observed.read?.length === length ? observed.read.metadata : metadataIn(observed, body)
    callsNothing = dialect.callsNothing(body)
    if (withFacts) facts = dialect.responseFacts?.(body)
  } catch (error) {
    // A response that is not JSON, or incomplete, has no metadata.
    const isUnreadable = error instanceof SyntaxError || error instanceof JsonScanError
    if (!isUnreadable) fault(error)
  }
  let usage: CallUsage
  const { isBegun } = metadata
  // Zeros alone are no statement: every prompt has tokens.
  const stated = metadata.usage && metadata.usage.input + metadata.usage.output > 0 ? metadata.usage : undefined
  if (stated && !isBegun) usage = { estimated: false, ...stated }
  else {
    // The characters that the model wrote in the tail, in proportion to the whole body.
    const written = tail.length === 0 ? 0 : (dialect.writtenCharacters(tail) * length) / tail.length
    const output = Math.max(stated?.output ?? 0, estimateTokens(written))
    usage = { input: estimateTokens(requestBytes), ...stated, output, estimated: true }
  }
  const text = observed.text && readTextOf(observed, observed.text)
  const isCut = ending === 'failed' || (streams && ending === undefined && observed.search !== undefined)
  try {
    target.completed({ callsNothing, facts, text, ...metadata, usage, isCut })
  } catch (error) {
    fault(error)
  }
}
