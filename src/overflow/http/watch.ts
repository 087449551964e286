/**
 * Finds errors in responses that say that something is too large, and says in them what they mean: in a refusal, in a
 * body of status 200 that is an error, and in an error event of a stream.
 */
import type { Dialect } from '../../dialect/dialect.ts'
import { contentEncoding, isEventStream } from '../../http/headers.ts'
import type { Head, UpstreamCall } from '../../http/upstream.ts'
import { type ChunkFilter, peek, type UpstreamResponse, withBody } from '../../http/upstream-response.ts'
import { type Classified, classify } from '../classify.ts'
import type { OverflowPolicy } from '../policy.ts'
import { type Annotation, annotated, canonicalEvent, isInputTooLarge, parsed } from './annotate.ts'
import { explained, mayBeError, meaningOf, typeOf } from './error-body.ts'
import { watchErrorFrames } from './error-frames.ts'
import { bodyOf } from './recover.ts'

/** A refusal is small, and comes soon after its head: a larger or slower one goes on as it comes. */
const REFUSAL_LIMITS = { bytes: 65_536, ms: 1_000 }

/** A request whose responses are watched. */
export interface WatchedRequest {
  readonly call: UpstreamCall
  readonly dialect: Dialect
  readonly policy: OverflowPolicy
  /** Settles when what is known of models is loaded, which `note` tells. */
  readonly loadWindows: () => Promise<void>
  /** Takes an overflow into account; returns what clients are told of it. */
  readonly note: (classified: Classified) => Annotation
  /** Counts a fault of Governor's own, after which the response goes on as it came. */
  readonly fault: (error: Error) => void
}

/**
 * Waits for all of a body that may be an error; returns it, or `undefined` where it is an answer, too long or too slow.
 * A JSON body of status 200 waits for its first bytes only, which tell. `readsAnswers`: those are looked at as well.
 */
export async function errorBodyOf(
  response: UpstreamResponse,
  readsAnswers: boolean,
): Promise<Buffer | undefined> {
  const { head } = response
  if (head.status >= 400) return peek(response, REFUSAL_LIMITS)
  if (head.status !== 200 || !readsAnswers) return undefined
  const type = typeOf(head)
  // No model's answer is plain text: that is what proxies make of an error.
  const isText = type.startsWith('text/plain')
  if ((!isText && !type.includes('json')) || contentEncoding(head.headers) !== 'identity') return undefined
  return peek(response, REFUSAL_LIMITS, (first) => !mayBeError(isText, first))
}

/** A refusal with what it means. */
export interface ExplainedRefusal {
  readonly response: UpstreamResponse
  readonly classified: Classified
}

/** Returns a refusal whose whole body is `body` with what it means; `undefined` if it is no overflow, or can't be read. */
export async function explainRefusal(
  request: WatchedRequest,
  response: UpstreamResponse,
  body: Buffer,
): Promise<ExplainedRefusal | undefined> {
  const { call, dialect, policy, loadWindows, note, fault } = request
  try {
    const found = meaningOf(response.head, body, policy.quirks, () => bodyOf(call))
    if (!found) return undefined
    await loadWindows()
    const { plain, classified } = found
    const refusal = { head: response.head, body, plain }
    const changed = explained(refusal, note(classified), policy.canonical ? dialect : undefined)
    return { response: withBody(response, changed.head, changed.body), classified }
  } catch (error) {
    fault(error as Error)
    return undefined
  }
}

/** Returns what changes error events in a streamed response; `undefined` for any other response. */
export function errorFrameFilter(request: WatchedRequest, { headers }: Head): ChunkFilter | undefined {
  if (!isEventStream(headers) || contentEncoding(headers) !== 'identity') return undefined
  return watchErrorFrames((frame, sent) => {
    const rest = frame.subarray(sent)
    try {
      const whole = explainedFrame(request, frame)
      // What has gone can't be changed any more.
      return whole?.subarray(0, sent).equals(frame.subarray(0, sent)) ? whole.subarray(sent) : rest
    } catch (error) {
      request.fault(error as Error)
      return rest
    }
  })
}

/** Returns an error event with what it means; `undefined` if it is no overflow. */
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
  const classified = classify(reply, policy.quirks, () => bodyOf(call))
  if (!classified) return undefined
  const annotation = note(classified)
  const changed =
    policy.canonical && isInputTooLarge(annotation)
      ? canonicalEvent(json, dialect, annotation)
      : annotated(json, annotation)
  return changed && Buffer.concat([frame.subarray(0, start), changed, frame.subarray(end)])
}
