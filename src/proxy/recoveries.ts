/**
 * Opens one request and mends by itself what can be mended, each once: an output cap that is too large, a beta that is
 * not allowed, and reasoning that was made for another prompt. Whatever variant of a request is tried goes this way.
 */
import { NO_CONTEXTS, reduce } from '../core/context-window.ts'
import type { Overflow } from '../core/overflow.ts'
import type { BoundThinking } from '../dialect/dialect.ts'
import { decodedAtOnce } from '../http/body.ts'
import { contentEncoding, headerOf, withHeaders } from '../http/headers.ts'
import type { Head, UpstreamCall } from '../http/upstream.ts'
import { peek, UpstreamFailed, type UpstreamResponse } from '../http/upstream-response.ts'
import type { Classified } from '../overflow/classify.ts'
import type { Annotation } from '../overflow/http/annotate.ts'
import { modelIn, recovered } from '../overflow/http/recover.ts'
import { errorBodyOf, errorFrameFilter, explainRefusal, type WatchedRequest } from '../overflow/http/watch.ts'
import { keptName } from '../overflow/windows.ts'
import type { Exchange } from './begin-exchange.ts'
import { errorReplyOf, noteOutcome } from './error-streak.ts'
import type { Evaluation } from './evaluate.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import { faultOf } from './fault.ts'
import { observeUsage } from './observe-usage.ts'
import { withEdits } from './request-edits.ts'
import type { Services } from './services.ts'

/** A request on its way to a model; without an evaluation it goes through as it came. */
export interface ModelRequest {
  readonly services: Services
  readonly exchange: Exchange
  readonly evaluation: Evaluation | undefined
}

/** Takes an overflow into account: for the model's window, and for what this session may count on. */
function noteOverflow(
  { services, exchange, evaluation }: ModelRequest,
  call: UpstreamCall,
  classified: Classified,
): Annotation {
  const { windows, now, policies } = services
  const { overflow, quirk } = classified
  const { upstream, dialect, asked } = exchange.route
  const named = evaluation?.request.conversation.model ?? (dialect && modelIn(dialect, asked, call))
  const model = named ?? ''
  const at = { upstream, model }
  windows.learn(at, overflow)
  evaluation?.handle.noteOverflow(overflow.recovery)
  const refusal = {
    upstream: upstream.name,
    model: keptName(model),
    overflow,
    now: now(),
    ttl: policies().overflow.effectiveTtl,
  }
  void evaluation?.handle.changeContexts((contexts) => ({
    ...contexts,
    reductions: reduce(contexts.reductions, refusal),
  }))
  exchange.emit({ kind: 'overflow', upstream: upstream.name, recovery: overflow.recovery, quirk })
  const before = evaluation?.runState.reductions ?? NO_CONTEXTS.reductions
  return { classified, base: windows.base(at), effective: windows.effective(at, reduce(before, refusal)) }
}

function watchedRequest(x: ModelRequest, call: UpstreamCall): WatchedRequest | undefined {
  const { services, exchange } = x
  const policy = services.policies().overflow
  const { dialect } = exchange.route
  if (!policy.enabled || !dialect) return undefined
  return {
    call,
    dialect,
    policy,
    loadWindows: async () => {
      if (!services.catalogue.isLoaded) await services.catalogue.load().catch(() => undefined)
    },
    note: (classified) => noteOverflow(x, call, classified),
    fault: (error) => services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) }),
  }
}

/** Counts what a provider did for a session in which errors may come in a row. `body`: of an error, where all of it came. */
function noteStatus({ services, exchange, evaluation }: ModelRequest, head: Head, body?: Buffer): void {
  if (!evaluation) return
  const chunks = body ? [body] : []
  noteOutcome(evaluation, head.status, () => errorReplyOf(head, chunks, exchange.route.api, services.now()))
}

/**
 * Sends a request to a model and returns its response; a refusal that means an overflow comes with what it means, or the
 * response to a request that asks for what fits. @throws {UpstreamFailed}
 */
export async function openModel(x: ModelRequest, call: UpstreamCall): Promise<UpstreamResponse> {
  const { services, exchange, evaluation } = x
  const watched = watchedRequest(x, call)
  const open = (one: UpstreamCall) =>
    exchange.open(one, {
      observerFor: evaluation && ((head) => observeUsage(services, exchange, evaluation, one, head)),
      filterFor: watched && ((head) => errorFrameFilter(watched, head)),
    })
  let response: UpstreamResponse
  try {
    response = await open(call)
  } catch (error) {
    if (error instanceof UpstreamFailed) noteStatus(x, { status: statusOf(error), reason: '', headers: [] })
    throw error
  }
  const { head } = response
  if (head.status < 400) noteStatus(x, head)
  if (!watched && (head.status < 400 || !services.policies().storm.enabled)) return response
  const body = await errorBodyOf(response, watched !== undefined)
  const explained = watched && body && (await explainRefusal(watched, response, body))
  if (!explained) {
    if (head.status >= 400) noteStatus(x, head, body)
    return response
  }
  // It says something of the request, and nothing of whether the provider is there.
  noteStatus(x, { ...head, status: 400 })
  const { overflow } = explained.classified
  const again = head.status >= 400 ? mendedCall(watched, overflow) : undefined
  return (again && (await openAgain(x, overflow, open(again)))) ?? explained.response
}

function statusOf({ failure }: UpstreamFailed): number {
  return failure.code === 'aborted' ? 499 : failure.status
}

/** A fault of Governor's own in mending a request leaves the provider's error as it is. */
function mendedCall(
  { call, dialect, policy, fault }: WatchedRequest,
  overflow: Overflow,
): UpstreamCall | undefined {
  try {
    return recovered(dialect, call, overflow, policy)
  } catch (error) {
    fault(error as Error)
    return undefined
  }
}

/** Returns the response to a request for what fits; `undefined` if that fails as well. */
async function openAgain(
  { services, exchange }: ModelRequest,
  { recovery }: Overflow,
  opening: Promise<UpstreamResponse>,
): Promise<UpstreamResponse | undefined> {
  const response = await opening.catch((error) => {
    if (exchange.isClientGone() || !(error instanceof UpstreamFailed)) throw error
    return undefined
  })
  const isAnswered = response !== undefined && response.head.status < 400
  services.emit({ kind: 'recovered', recovery, outcome: isAnswered ? 'answered' : 'refused' })
  if (isAnswered) return markedRecovered(response, recovery)
  response?.abort()
  return undefined
}

function markedRecovered(response: UpstreamResponse, recovery: string): UpstreamResponse {
  const headers = withHeaders(response.head.headers, { 'x-governor-recovered': recovery })
  return { ...response, head: { ...response.head, headers } }
}

/** Errors about bound reasoning are small, and come at once. */
const ERROR_LIMITS = { bytes: 65_536, ms: 1_000 }

function bytesOf({ body }: UpstreamCall): Buffer | undefined {
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
}

/** Returns the call with its provider told to leave bound reasoning out; `undefined` where that can't be said. */
function withoutBoundThinking(
  { services, call, bytes }: EvaluatedRequest,
  bound: BoundThinking,
  sent: UpstreamCall,
): UpstreamCall | undefined {
  try {
    const body = sent.body === call.body ? bytes : bytesOf(sent)
    const removal = body && bound.dropBoundThinking(body)
    if (!removal) return undefined
    const changed = withEdits(sent, body, removal.edits)
    const { name, value } = removal.header
    const asked = headerOf(sent.headers, name)
    const headers = withHeaders(changed.headers, { [name]: asked ? `${asked},${value}` : value })
    return { ...changed, headers }
  } catch (error) {
    // A fault of Governor's own in mending a request leaves it as it was.
    services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error as Error) })
    return undefined
  }
}

/** True if an error says that reasoning in the history was made for another prompt. */
async function isBoundThinkingError(response: UpstreamResponse, bound: BoundThinking): Promise<boolean> {
  if (response.head.status !== 400) return false
  const body = await peek(response, ERROR_LIMITS)
  if (!body) return false
  const coding = contentEncoding(response.head.headers)
  const plain = coding === 'identity' ? body : decodedAtOnce(body, coding, 16 * ERROR_LIMITS.bytes)
  return plain !== undefined && bound.isBoundThinkingError(plain)
}

/**
 * Sends one variant of an evaluated request. If the provider refuses the history because its reasoning was made for
 * Governor's words, which the history does not show, it is asked once more to leave such reasoning out, and so it is from then
 * on. @throws {UpstreamFailed}
 */
export async function openRecovering(x: EvaluatedRequest, call: UpstreamCall): Promise<UpstreamResponse> {
  const { exchange, evaluation } = x
  const bound = exchange.route.dialect?.boundThinking
  if (!bound) return openModel(x, call)
  const { runState, handle } = evaluation
  const changed = () => withoutBoundThinking(x, bound, call)
  let response: UpstreamResponse
  if (x.thinking.isDropped) {
    response = await openModel(x, changed() ?? call)
  } else {
    response = await openModel(x, call)
    const again = runState.noticeSent && (await isBoundThinkingError(response, bound)) ? changed() : undefined
    if (again) {
      x.thinking.isDropped = true
      void handle.dropBoundThinking()
      response.abort()
      response = await openModel(x, again)
      if (response.head.status < 400) response = markedRecovered(response, 'thinking')
    }
  }
  // The model was shown what the client's history does not hold.
  if (call.body !== x.call.body && response.head.status < 400) void handle.noteInjected()
  return response
}
