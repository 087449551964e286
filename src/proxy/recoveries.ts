/**
 * Sends one request and repairs three kinds of refusals, each once: an output cap that is too large, a beta that is
 * not allowed, and reasoning that was made for another prompt. Every variant of a request is sent this way.
 */
import { NO_CONTEXTS, reduce } from '../core/context-window.ts'
import type { BoundThinking } from '../dialect/dialect.ts'
import { decodedAtOnce } from '../http/body.ts'
import { contentEncoding, headerOf, withHeaders } from '../http/headers.ts'
import type { Head, UpstreamCall } from '../http/upstream.ts'
import { peek, UpstreamFailed, type UpstreamResponse } from '../http/upstream-response.ts'
import type { Classified } from '../overflow/classify.ts'
import type { Overflow } from '../overflow/overflow.ts'
import { errorReplyOf, noteOutcome } from './answer/storm-reply.ts'
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import { faultOf } from './fault.ts'
import { observeUsage } from './observe/observe-usage.ts'
import type { Annotation } from './overflow/annotate.ts'
import { modelIn, recovered } from './overflow/recover.ts'
import { errorBodyOf, errorFrameFilter, explainRefusal, type WatchedRequest } from './overflow/watch.ts'
import { keptName } from './overflow/windows.ts'
import { withEdits } from './request-edits.ts'
import type { Services } from './services.ts'

/** A request on its way to a model; without an evaluation it is relayed unchanged. */
export interface ModelRequest {
  readonly services: Services
  readonly exchange: Exchange
  readonly evaluation: Evaluation | undefined
}

/** Records an overflow: in the known window of the model, and in the effective context of this session. */
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
  const { recovery } = overflow
  if (recovery !== 'loop_refused') evaluation?.handle.noteOverflow(recovery)
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
  exchange.emit({ kind: 'overflow', upstream: upstream.name, recovery, quirk, ...evaluation?.handle.names })
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

/** Records the provider's success or error in the error streak of a session. `body`: the body of an error, if it is complete. */
function noteStatus({ services, exchange, evaluation }: ModelRequest, head: Head, body?: Buffer): void {
  if (!evaluation) return
  const chunks = body ? [body] : []
  noteOutcome(evaluation, head.status, () => errorReplyOf(head, chunks, exchange.route.api, services.now()))
}

/**
 * Sends a request to a model and returns its response; an overflow error is annotated with its meaning, or
 * replaced by the response to a smaller request. @throws {UpstreamFailed}
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
  // An error about the request itself does not show whether the provider is overloaded.
  noteStatus(x, { ...head, status: 400 })
  const { overflow } = explained.classified
  const again = head.status >= 400 ? mendedCall(watched, overflow) : undefined
  return (again && (await openAgain(x, overflow, open(again)))) ?? explained.response
}

/** Returns a status that says nothing of the provider where nobody asked it. */
function statusOf({ failure }: UpstreamFailed): number {
  return failure.code === 'aborted' || failure.code === 'out_of_connections' ? 499 : failure.status
}

/** After a fault of Governor in the repair, the client gets the provider's error unchanged. */
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

/** Returns the response to a smaller request; `undefined` if that fails as well. */
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
  if (isAnswered) return markedRecovered(response, recovery === 'loop_refused' ? 'collapse' : recovery)
  response?.abort()
  return undefined
}

function markedRecovered(response: UpstreamResponse, recovery: string): UpstreamResponse {
  const headers = withHeaders(response.head.headers, { 'x-governor-recovered': recovery })
  return { ...response, head: { ...response.head, headers } }
}

/** Errors about bound reasoning are small and arrive at once. */
const ERROR_LIMITS = { bytes: 65_536, ms: 1_000 }

function bytesOf({ body }: UpstreamCall): Buffer | undefined {
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
}

/** Returns the call with the setting that makes the provider drop bound reasoning; `undefined` if the API has no such setting. */
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
    // After a fault of Governor in the repair, the request stays as it was.
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
 * Sends one variant of an evaluated request. If the provider refuses the history because its reasoning was made for a
 * prompt with a notice of Governor, which the history does not contain, the request is sent once more and asks the provider to drop such
 * reasoning. All later requests of the conversation do the same. @throws {UpstreamFailed}
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
  // The model has seen content that the client's history does not contain.
  if (call.body !== x.call.body && response.head.status < 400) void handle.noteInjected()
  return response
}
