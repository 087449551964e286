/**
 * Finds overflow errors in responses and adds their meaning: in a response with an error status, in an error body of
 * status 200, and in an error event of a stream.
 */
import type { Dialect } from '../../dialect/dialect.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { contentEncoding, headerOf, isEventStream } from '../../http/headers.ts'
import type { Head, UpstreamCall } from '../../http/upstream.ts'
import { type ChunkFilter, peek, type UpstreamResponse, withBody } from '../../http/upstream-response.ts'
import { type Classified, classify } from '../../overflow/classify.ts'
import { type Annotation, annotated, canonicalEvent, explained, isInputTooLarge, parsed } from './annotate.ts'
import { watchErrorFrames } from './error-frames.ts'
import { bodyOf, type OverflowPolicy } from './recover.ts'

/** An error is small and comes soon after its head; a larger or slower one passes unchanged. */
const REFUSAL_LIMITS = { bytes: 65_536, ms: 1_000 }

/** Bytes that a body may have without its content coding. */
const MAX_DECODED = 1_048_576

/** A member that only errors have, whatever the status. In a string its quotes would be escaped. */
const ERROR_FIELD = /"(?:error|errors|exception|base_resp)"\s{0,8}:\s{0,8}[^\sn]/
/** The beginning of server-sent events, which some servers send as plain text. */
const EVENT_FIELD = /^(?:data|event|id|retry)?:/
/** Errors have such a member near the beginning. */
const FIRST_BYTES = 4_096

/** A request whose responses are checked for overflows. */
export interface WatchedRequest {
  readonly call: UpstreamCall
  readonly dialect: Dialect
  readonly policy: OverflowPolicy
  /** Resolves when the windows of models are loaded, which `note` needs. */
  readonly loadWindows: () => Promise<void>
  /** Records an overflow; returns what the error gets in addition. */
  readonly note: (classified: Classified) => Annotation
  /** Counts a fault of Governor, after which the response passes unchanged. */
  readonly fault: (error: Error) => void
}

/**
 * Waits for the whole body of an error and returns it; `undefined` if it is no error, too long or too slow. With
 * `readsAnswers` it also checks a body of status 200, whose first bytes show whether it is an error.
 */
export async function errorBodyOf(
  response: UpstreamResponse,
  readsAnswers: boolean,
): Promise<Buffer | undefined> {
  const { head } = response
  if (head.status >= 400) return peek(response, REFUSAL_LIMITS)
  if (head.status !== 200 || !readsAnswers) return undefined
  const type = headerOf(head.headers, 'content-type')?.toLowerCase() ?? ''
  // A model's answer is never plain text; an error that a proxy made may be.
  const isText = type.startsWith('text/plain')
  if ((!isText && !type.includes('json')) || contentEncoding(head.headers) !== 'identity') return undefined
  return peek(response, REFUSAL_LIMITS, (first) =>
    isText
      ? EVENT_FIELD.test(first.toString('latin1', 0, 16))
      : // One expression on a text takes a third of the time of a search for each word in bytes.
        !ERROR_FIELD.test(first.toString('latin1', 0, FIRST_BYTES)),
  )
}

/** An error response with its meaning added. */
export interface ExplainedRefusal {
  readonly response: UpstreamResponse
  readonly classified: Classified
}

/** Returns an error response, whose whole body is `body`, with its meaning; `undefined` if it has none. */
export async function explainRefusal(
  request: WatchedRequest,
  response: UpstreamResponse,
  body: Buffer,
): Promise<ExplainedRefusal | undefined> {
  const { call, dialect, policy, loadWindows, note, fault } = request
  const { head } = response
  try {
    const coding = contentEncoding(head.headers)
    const plain = coding === 'identity' ? body : decodedAtOnce(body, coding, MAX_DECODED)
    if (!plain) return undefined
    const reply = { status: head.status, body: parsed(plain.toString()) }
    const classified = classify(reply, { rows: policy.quirks, request: () => bodyOf(call) })
    if (!classified) return undefined
    await loadWindows()
    const changed = explained({ head, body, plain }, note(classified), policy.canonical ? dialect : undefined)
    return { response: withBody(response, changed.head, changed.body), classified }
  } catch (error) {
    fault(error as Error)
    return undefined
  }
}

/** Returns a filter that adds the meaning to error events of a stream; `undefined` for any other response. */
export function errorFrameFilter(request: WatchedRequest, { headers }: Head): ChunkFilter | undefined {
  if (!isEventStream(headers) || contentEncoding(headers) !== 'identity') return undefined
  return watchErrorFrames((frame, sent) => {
    const rest = frame.subarray(sent)
    try {
      const whole = explainedFrame(request, frame)
      // Bytes that have gone cannot be changed any more.
      return whole?.subarray(0, sent).equals(frame.subarray(0, sent)) ? whole.subarray(sent) : rest
    } catch (error) {
      request.fault(error as Error)
      return rest
    }
  })
}

/** Returns an error event with its meaning; `undefined` if it is no overflow. */
function explainedFrame({ call, dialect, policy, note }: WatchedRequest, frame: Buffer): Buffer | undefined {
  const data = frame.indexOf('data:')
  if (data === -1) return undefined
  let start = data + 'data:'.length
  if (frame[start] === 0x20) start++
  const line = frame.indexOf('\n', start)
  let end = line === -1 ? frame.length : line
  if (frame[end - 1] === 0x0d) end--
  const json = frame.subarray(start, end)
  const reply = { status: 200, body: parsed(json.toString()) }
  const classified = classify(reply, { rows: policy.quirks, request: () => bodyOf(call) })
  if (!classified) return undefined
  const annotation = note(classified)
  const changed =
    policy.canonical && isInputTooLarge(annotation)
      ? canonicalEvent(json, dialect, annotation)
      : annotated(json, annotation)
  return changed && Buffer.concat([frame.subarray(0, start), changed, frame.subarray(end)])
}
