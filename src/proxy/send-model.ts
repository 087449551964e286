/**
 * Sends a request to a model. This is the only place that sends it again:
 * - in another form, while the provider refuses one;
 * - once for each error that can be mended: too large an output cap, a beta that is not allowed, bound reasoning.
 */
import { changeThread } from '../core/session/transitions.ts'
import type { BoundThinking } from '../dialect/dialect.ts'
import { decodedAtOnce, isReadable } from '../http/body.ts'
import { contentEncoding, headerOf, statesEventStream, withHeaders } from '../http/headers.ts'
import type { Head, UpstreamCall } from '../http/upstream.ts'
import { peek, type ResponseObserver, send, UpstreamFailed, type UpstreamResponse } from '../http/upstream-response.ts'
import { withTrace } from '../telemetry/tracing.ts'
import type { Exchange } from './begin-exchange.ts'
import { noteFault } from './fault.ts'
import { noteLoop, noteNoNotice, noteNotice } from './note-decision.ts'
import { noteGap } from './note-gap.ts'
import { explainFrame, explainRefusal, type WatchedRequest } from './overflow/explain.ts'
import { errorBodyOf, errorCodeIn, watchErrorFrames } from './overflow/find-errors.ts'
import { observeModelList } from './overflow/model-list.ts'
import { bodyOf, recovered } from './overflow/recover.ts'
import {
  noteAccepted,
  noteRefused,
  type PlacedNotice,
  type RequestVariant,
  type SpokenRequest,
  spokenRequest,
  UNCHANGED,
  withEdits,
} from './request-edits.ts'
import type { RequestEdit } from './services.ts'
import { changeSession, giveBackIteration, type Turn } from './turn.ts'
import { observeFetched } from './usage/observe-fetched.ts'
import { observeAside, observeUsage } from './usage/observe-usage.ts'
import { noteOutcome, observeOutcome } from './waiting/error-streaks.ts'

/** A variant that was sent, and what came for it. */
export interface Attempt<Variant extends RequestVariant> {
  readonly variant: Variant
  readonly response: UpstreamResponse
}

/**
 * True if an error may mean that the upstream does not support an edit; never for an overflow, which any form would be.
 * `dropsTools`: tools are not offered, or must not be chosen; gateways that find no provider for that answer 404.
 */
export function mayBeUnsupported({ status, overflow }: Head, dropsTools = false): boolean {
  if (overflow) return false
  return status === 400 || status === 422 || status === 500 || (dropsTools && status === 404)
}

const TOOL_EDITS: readonly RequestEdit[] = ['drop_tools', 'tool_choice']

/**
 * Sends a request, and again in another form for as long as an error comes and `next` returns a variant. Returns the
 * last attempt. The edit that only the last refused variant had is remembered as unsupported. @throws {UpstreamFailed}
 */
export async function sendModel<Variant extends RequestVariant>(
  x: Turn,
  first: Variant,
  next: (refused: Attempt<Variant>) => Variant | undefined,
): Promise<Attempt<Variant>> {
  let refused: { readonly features: readonly RequestEdit[]; status: number; sentAt: number } | undefined
  let variant = first
  for (;;) {
    const { edits, features } = variant
    const sentAt = x.services.now()
    const call = edits ? withEdits(x.call, x.bytes, edits) : x.call
    const bound = x.dialect.boundThinking
    const response = await (bound ? sendBound(x, call, bound) : sendOnce(x.exchange, call, x))
    const { status } = response.head
    if (status < 400) {
      if (features.length > 0) noteAccepted(x, features)
      const suspects = refused?.features.filter((edit) => !features.includes(edit)) ?? []
      const toolEdit = refused?.status === 404 && suspects.find((edit) => TOOL_EDITS.includes(edit))
      const edit = toolEdit || suspects[0]
      if (refused && edit) await noteRefused(x, edit, refused.status, refused.sentAt)
      return { variant, response }
    }
    const following = next({ variant, response })
    if (!following) return { variant, response }
    response.abort()
    refused = { features: response.head.overflow ? [] : features, status, sentAt }
    variant = following
  }
}

/** Sends a request with its notice, or the client's own bytes if the provider refuses that. @throws {UpstreamFailed} */
export async function sendSpoken(x: Turn): Promise<Attempt<SpokenRequest>> {
  let notice: PlacedNotice | undefined
  try {
    const first = x.decision.speech ? spokenRequest(x, x.decision.speech) : UNCHANGED
    const made = await sendModel(x, first, ({ variant, response }) => {
      const dropsTools = variant.features.includes('drop_tools')
      const isRefused = mayBeUnsupported(response.head, dropsTools) || isTooLargeBy(response.head, variant)
      return variant !== UNCHANGED && isRefused ? UNCHANGED : undefined
    })
    const { status } = made.response.head
    if (status >= 400) {
      void giveBackIteration(x, status)
      return made
    }
    x.state.overflow = undefined
    notice = made.variant.notice
    const text = x.decision.speech?.notice
    if (notice) await noteNotice(x, notice)
    else if (text !== undefined) await noteNoNotice(x, text)
    return made
  } finally {
    noteLoop(x, notice !== undefined)
  }
}

/** True if a request may be too large only because of its edits: no character is more than four bytes, or tokens. */
function isTooLargeBy({ overflow, excess = 0 }: Head, { edits = [] }: RequestVariant): boolean {
  return (
    overflow !== undefined &&
    overflow !== 'loop_refused' &&
    excess <= edits.reduce((sum, { text }) => sum + text.length * 4, 0)
  )
}

/** Bytes that an error may have without its content coding. */
const MAX_ERROR = 1_048_576

/**
 * Sends a variant to an API that binds reasoning to its prompt. If the provider refuses reasoning that was made for a
 * prompt with a notice, which the history does not contain, this request and all later ones ask it to drop such
 * reasoning. @throws {UpstreamFailed}
 */
async function sendBound(x: Turn, call: UpstreamCall, bound: BoundThinking): Promise<UpstreamResponse> {
  const { exchange, runState, state } = x
  const { noticeSent } = runState.thread
  const mended = state.dropsThinking ? withoutBoundThinking(x, bound, call) : undefined
  let response = await sendOnce(exchange, mended ?? call, x)
  const mayBeBound = !state.dropsThinking && noticeSent && response.head.status === 400
  const error = mayBeBound ? await peek(response) : undefined
  const plain = error && decodedAtOnce(error, contentEncoding(response.head.headers), MAX_ERROR)
  if (plain && bound.isBoundThinkingError(plain)) {
    const again = withoutBoundThinking(x, bound, call)
    if (again) {
      state.dropsThinking = true
      void changeSession(x, changeThread, [{ dropsThinking: true }])
      response.abort()
      response = await sendOnce(exchange, again, x)
      if (response.head.status < 400) response = markedRecovered(response, 'thinking')
    }
  }
  // The model has seen content that the client's history does not contain.
  const isEdited = call.body !== x.call.body && response.head.status < 400
  if (isEdited && !noticeSent) void changeSession(x, changeThread, [{ noticeSent: true }])
  return response
}

/** Returns the call that makes the provider drop bound reasoning; `undefined` if it has no such setting. */
function withoutBoundThinking(x: Turn, bound: BoundThinking, sent: UpstreamCall): UpstreamCall | undefined {
  try {
    const body = sent.body === x.call.body ? x.bytes : bodyOf(sent)
    const removal = body && bound.dropBoundThinking(body)
    if (!removal) return undefined
    const changed = withEdits(sent, body, removal.edits)
    const { name, value } = removal.header
    const asked = headerOf(sent.headers, name)
    return { ...changed, headers: withHeaders(changed.headers, { [name]: asked ? `${asked},${value}` : value }) }
  } catch (error) {
    noteFault(x.services.emit, error)
    return undefined
  }
}

/**
 * Sends one call; without a turn it is unguarded. An overflow error of a known API gets its meaning added, or is
 * replaced by the answer to a smaller request. @throws {UpstreamFailed}
 */
export async function sendOnce(x: Exchange, call: UpstreamCall, turn?: Turn): Promise<UpstreamResponse> {
  const { services, route } = x
  if (!route.dialect) return openUpstream(x, call)
  const { overflow: policy, storm } = services.policies
  const dialect = policy.enabled ? route.dialect : undefined
  const watched = dialect && { x, turn, call, dialect }
  let response: UpstreamResponse
  try {
    response = await openUpstream(x, call, turn, watched)
  } catch (error) {
    if (turn && error instanceof UpstreamFailed) {
      const { code, status } = error.failure
      // With one of these codes the request did not reach the provider.
      if (code !== 'aborted' && code !== 'out_of_connections') noteOutcome(turn, { status, reason: '', headers: [] })
    }
    throw error
  }
  const { head } = response
  const isError = head.status >= 400
  const isRead = dialect !== undefined || (isError && storm.enabled)
  const body = isRead ? await errorBodyOf(response, dialect !== undefined) : undefined
  if (turn) turn.state.errorCode = isError && body ? errorCodeIn(head, body) : undefined
  const explained = watched && body && (await explainRefusal(watched, response, body))
  if (!explained) {
    if (turn && isError) noteOutcome(turn, head, body)
    return response
  }
  const { overflow } = explained
  const smaller = isError ? recovered(x, watched.dialect, call, overflow) : undefined
  if (!smaller) return explained.response
  const again = await openUpstream(x, smaller, turn, watched).catch((error) => {
    if (x.client.isGone() || !(error instanceof UpstreamFailed)) throw error
    return undefined
  })
  const { recovery } = overflow
  const isAnswered = again !== undefined && again.head.status < 400
  services.emit({ kind: 'recovered', recovery, outcome: isAnswered ? 'answered' : 'refused' })
  if (isAnswered) return markedRecovered(again, recovery === 'loop_refused' ? 'collapse' : recovery)
  again?.abort()
  return explained.response
}

function observerOf(x: Exchange, call: UpstreamCall, head: Head, turn: Turn | undefined): ResponseObserver | undefined {
  if (turn) return observeOutcome(turn, head, observeUsage(turn, call, head))
  if (x.aside) return observeAside(x, x.aside, call, head)
  if (x.fetched) return observeFetched(x, x.fetched, head)
  return x.route.dialect ? undefined : observeModelList(x, call, head)
}

/**
 * Sends a call, and aborts it if the client leaves. The response is observed for usage; where no API is guarded, for
 * windows of models. `watched`: errors in its stream get their meaning. @throws {UpstreamFailed}
 */
async function openUpstream(
  x: Exchange,
  call: UpstreamCall,
  turn?: Turn,
  watched?: WatchedRequest,
): Promise<UpstreamResponse> {
  if (x.calledAt === 0) x.calledAt = performance.now()
  const traced = x.span ? { ...call, headers: withTrace(x.span, call.headers) } : call
  x.inFlight = send(x.services.transport, traced, (head) => {
    const { status, headers } = head
    if (status < 200) {
      x.client.inform(head)
      return undefined
    }
    x.upstreamMs = performance.now() - x.calledAt
    if (turn && status < 300 && !isReadable(contentEncoding(headers)))
      void noteGap(x.services, 'unread_coding', turn.found)
    const mayChange = watched && statesEventStream(headers) && contentEncoding(headers) === 'identity'
    try {
      const filter = mayChange ? watchErrorFrames((frame, sent) => explainFrame(watched, frame, sent, head)) : undefined
      return { observer: observerOf(x, call, head, turn), filter }
    } catch (error) {
      // The response passes all the same.
      noteFault(x.services.emit, error)
      return undefined
    }
  })
  if (x.client.isGone()) x.inFlight.abort()
  const response = await x.inFlight.response
  await x.services.tick.next()
  return response
}

/** Returns the response with a header that says how Governor changed its request. */
function markedRecovered(response: UpstreamResponse, recovery: string): UpstreamResponse {
  const headers = withHeaders(response.head.headers, { 'x-governor-recovered': recovery })
  return { ...response, head: { ...response.head, headers } }
}
