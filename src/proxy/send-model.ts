/**
 * Sends a request to a model. The only place that sends a request again: in another form while the provider refuses one,
 * and with one repair for each kind of refusal that Governor can mend (`recoveries.ts`).
 */
import { changeThread } from '../core/session/transitions.ts'
import type { Head, UpstreamCall } from '../http/upstream.ts'
import { UpstreamFailed, type UpstreamResponse } from '../http/upstream-response.ts'
import type { Edit } from '../json/edit.ts'
import { observeUsage } from './observe-usage.ts'
import { explainFrame, explainRefusal } from './overflow/explain.ts'
import { errorBodyOf, errorFrameFilter } from './overflow/find-errors.ts'
import {
  isBoundThinkingError,
  type ModelRequest,
  markedRecovered,
  smallerCall,
  watchedRequest,
  withoutBoundThinking,
} from './recoveries.ts'
import { noteRefused, withEdits } from './request-edits.ts'
import { noteOutcome } from './storm.ts'
import type { Turn } from './turn.ts'
import type { RequestEdit } from './unsupported-edits.ts'

/** One form of a request: the client's own bytes, or edits to them. */
export interface RequestVariant {
  /** Unset for the client's own bytes. */
  readonly edits?: readonly Edit[]
  /** What these edits do that an upstream may not support. */
  readonly features: readonly RequestEdit[]
}

/** A variant, and the head and body that came for it. */
export interface Attempt<Variant extends RequestVariant> {
  readonly variant: Variant
  readonly response: UpstreamResponse
}

/**
 * True if an error status may mean that the upstream does not support an edit. Never for an overflow, because the request
 * would be too large in any form. `dropsTools`: tools are not offered, or must not be chosen; gateways that find no
 * provider for that answer 404.
 */
export function mayBeUnsupported({ status, overflow }: Head, dropsTools = false): boolean {
  if (overflow) return false
  return status === 400 || status === 422 || status === 500 || (dropsTools && status === 404)
}

const TOOL_EDITS: readonly RequestEdit[] = ['drop_tools', 'tool_choice']

/**
 * Sends a request, and sends it again in another form for as long as an error comes and `next` returns another variant.
 * Returns the last attempt: one with a status below 400, or the error after which there was no other variant. If a variant
 * was accepted, the edit that only the refused one before it had is remembered as unsupported.
 * @throws {UpstreamFailed}
 */
export async function sendModel<Variant extends RequestVariant>(
  x: Turn,
  first: Variant,
  next: (refused: Attempt<Variant>) => Variant | undefined,
): Promise<Attempt<Variant>> {
  const { services, exchange, request } = x
  let refused: { readonly features: readonly RequestEdit[]; status: number; sentAt: number } | undefined
  let variant = first
  for (;;) {
    const { edits, features } = variant
    const sentAt = services.now()
    const response = await sendVariant(x, edits ? withEdits(x.call, x.bytes, edits) : x.call)
    const { status } = response.head
    if (status < 400) {
      const { model } = request.conversation
      if (features.length > 0) services.unsupportedEdits.accepted(exchange.route.upstream.name, model, features)
      const suspects = refused?.features.filter((edit) => !features.includes(edit)) ?? []
      const toolEdit = refused?.status === 404 && suspects.find((edit) => TOOL_EDITS.includes(edit))
      const edit = toolEdit || suspects[0]
      if (refused && edit) noteRefused(x, { ...refused, edit })
      return { variant, response }
    }
    const following = next({ variant, response })
    if (!following) return { variant, response }
    response.abort()
    refused = { features, status, sentAt }
    variant = following
  }
}

/**
 * Sends one variant. If the provider refuses the history because its reasoning was made for a prompt with a notice of
 * Governor, which the history does not contain, the request is sent once more and asks the provider to drop such
 * reasoning. All later requests of the conversation do the same. @throws {UpstreamFailed}
 */
async function sendVariant(x: Turn, call: UpstreamCall): Promise<UpstreamResponse> {
  const { services, exchange, runState, handle } = x
  const model = { services, exchange, turn: x }
  const bound = exchange.route.dialect?.boundThinking
  if (!bound) return sendOnce(model, call)
  const { noticeSent } = runState.thread
  const mended = x.thinking.isDropped ? withoutBoundThinking(x, bound, call) : undefined
  let response = await sendOnce(model, mended ?? call)
  const mayBeBound = !x.thinking.isDropped && noticeSent && response.head.status === 400
  if (mayBeBound && (await isBoundThinkingError(response, bound))) {
    const again = withoutBoundThinking(x, bound, call)
    if (again) {
      x.thinking.isDropped = true
      void handle.change(changeThread, { dropsThinking: true })
      response.abort()
      response = await sendOnce(model, again)
      if (response.head.status < 400) response = markedRecovered(response, 'thinking')
    }
  }
  // The model has seen content that the client's history does not contain.
  const isEdited = call.body !== x.call.body && response.head.status < 400
  if (isEdited && !noticeSent) void handle.change(changeThread, { noticeSent: true })
  return response
}

/**
 * Sends one call and returns its response. An overflow error gets its meaning added, or is replaced by the response to a
 * smaller request, if that is answered. @throws {UpstreamFailed}
 */
export async function sendOnce(x: ModelRequest, call: UpstreamCall): Promise<UpstreamResponse> {
  const { services, exchange, turn } = x
  // Whether overflow errors are looked for.
  const dialect = services.policies.overflow.enabled ? exchange.route.dialect : undefined
  const open = (one: UpstreamCall) =>
    exchange.open(one, {
      observerFor: turn && ((head) => observeUsage(turn, one, head)),
      filterFor:
        dialect &&
        ((head) =>
          errorFrameFilter(head, (frame, sent) => explainFrame(watchedRequest(x, dialect, call), frame, sent))),
    })
  let response: UpstreamResponse
  try {
    response = await open(call)
  } catch (error) {
    if (error instanceof UpstreamFailed) {
      const { code, status } = error.failure
      // Where nobody asked the provider, a status that says nothing of it.
      const wasAsked = code !== 'aborted' && code !== 'out_of_connections'
      if (turn) noteOutcome(turn, { status: wasAsked ? status : 499, reason: '', headers: [] })
    }
    throw error
  }
  const { head } = response
  const isError = head.status >= 400
  if (turn && !isError) noteOutcome(turn, head)
  if (!dialect && !(isError && services.policies.storm.enabled)) return response
  const body = await errorBodyOf(response, dialect !== undefined)
  const watched = dialect && body && watchedRequest(x, dialect, call)
  const explained = watched && (await explainRefusal(watched, response, body))
  if (!explained) {
    if (turn && isError) noteOutcome(turn, head, body)
    return response
  }
  // An error about the request itself does not show whether the provider is overloaded.
  if (turn) noteOutcome(turn, { ...head, status: 400 })
  const { overflow } = explained.classified
  const smaller = isError ? smallerCall(watched, overflow) : undefined
  if (!smaller) return explained.response
  const again = await open(smaller).catch((error) => {
    if (exchange.isClientGone() || !(error instanceof UpstreamFailed)) throw error
    return undefined
  })
  const { recovery } = overflow
  const isAnswered = again !== undefined && again.head.status < 400
  services.emit({ kind: 'recovered', recovery, outcome: isAnswered ? 'answered' : 'refused' })
  if (isAnswered) return markedRecovered(again, recovery === 'loop_refused' ? 'collapse' : recovery)
  again?.abort()
  return explained.response
}
