/** Sends a request that goes on normally: as it is, or with what Governor has to say to the model. */

import type { Channel, Speech } from '../core/decide.ts'
import { globMatches } from '../core/glob.ts'
import { withoutLength } from '../http/headers.ts'
import { type GovernorHeaders, relayTo } from '../http/response.ts'
import { type Head, lengthOf, type Receiver, type UpstreamCall } from '../http/upstream.ts'
import { type Edit, editedPieces } from '../json/edit.ts'
import type { ResponseObserver } from '../usage/observe.ts'
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import { faultOf } from './fault.ts'
import { usageRecorderFor } from './record-usage.ts'
import type { Services } from './services.ts'
import { channelsFor, type RequestEdit } from './unsupported-edits.ts'

/**
 * Answers that may mean "not in this form": law 2. One that is too large is so in any form. `forbids`: the tools are not to
 * be chosen; gateways that look for somebody who takes all that a request asks for find nobody for that, and say so with 404.
 */
export function mayBeUnsupported({ status, overflow }: Head, forbids = false): boolean {
  if (overflow) return false
  return status === 400 || status === 422 || status === 500 || (forbids && status === 404)
}

/** Has this request's upstream refused an alteration for its model? */
export function isUnsupported(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  alteration: RequestEdit,
): boolean {
  const { model } = evaluation.request.conversation
  return services.unsupportedEdits.isRefused(exchange.route.upstream.name, model, alteration)
}

/** Edits that state the budget in the system text; none where it is not to be stated, or was refused. */
export function announcementFor(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
): readonly Edit[] {
  const { request, decision } = evaluation
  const announcement = decision.speech?.announcement
  if (announcement === undefined || isUnsupported(services, exchange, evaluation, 'announce')) return []
  return request.announce(announcement)
}

/** A notice placed in a request. */
export interface PlacedNotice {
  readonly channel: Channel
  readonly edits: readonly Edit[]
}

/** Puts a notice in one place of a request; `undefined` where that can't be, or was refused. */
function placeIn(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  text: string,
  channel: Channel,
): PlacedNotice | undefined {
  if (isUnsupported(services, exchange, evaluation, channel)) return undefined
  const edits = evaluation.request.notice(text, channel)
  return edits && { channel, edits }
}

/** The places a notice can go in this request, the preferred one first, without those the upstream has refused. */
export function placesFor(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  text: string,
): PlacedNotice[] {
  return channelsFor(evaluation.policy.channel).flatMap((channel) => {
    const place = placeIn(services, exchange, evaluation, text, channel)
    return place ? [place] : []
  })
}

/** The first of them. */
export function placeFor(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  text: string,
  preferred: Channel = evaluation.policy.channel,
): PlacedNotice | undefined {
  for (const channel of channelsFor(preferred)) {
    const place = placeIn(services, exchange, evaluation, text, channel)
    if (place) return place
  }
  return undefined
}

/** Up to so many bytes, copying them into one piece costs less than sending several. */
const ONE_PIECE = 65_536

/** The same call with an edited body. What a content coding was is gone: `json` is the plain text of the body. */
export function withEdits(call: UpstreamCall, json: Buffer, edits: readonly Edit[]): UpstreamCall {
  const { upstream, method, path } = call
  const headers = withoutLength(call.headers)
  const pieces = editedPieces(json, edits)
  const length = lengthOf(pieces)
  if (length <= ONE_PIECE) return { upstream, method, path, headers, body: Buffer.concat(pieces, length) }
  headers.push('content-length', String(length))
  return { upstream, method, path, headers, body: pieces }
}

/** Edits that no longer offer the tools that match the globs; none where that was refused. */
export function droppedFor(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  globs: readonly string[],
  instead?: readonly Edit[],
): readonly Edit[] {
  if (globs.length === 0 || isUnsupported(services, exchange, evaluation, 'drop_tools')) return []
  const { request } = evaluation
  const isDropped = (name: string) => globs.some((glob) => globMatches(glob, name))
  return request.dropTools(isDropped, instead ?? request.banTools('choice_none'))
}

/** What is said to the model, and the request that says it. */
export interface EditedRequest {
  readonly call: UpstreamCall
  /** What the provider refuses if it refuses the request; the announcement first, as it stands where templates are strict. */
  readonly suspectEdit: RequestEdit
  readonly notice: PlacedNotice | undefined
  readonly edits: readonly Edit[]
  /** Of these, those that add to what is said, and touch no tool. */
  readonly textEdits: readonly Edit[]
  /** Tools are no longer offered, or not to be chosen. */
  readonly dropsTools: boolean
}

function editRequest(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  bytes: Buffer,
): EditedRequest | undefined {
  const { speech } = evaluation.decision
  if (!speech) return undefined
  const announcing = announcementFor(services, exchange, evaluation)
  const { notice, channel } = speech
  const dropping = droppedFor(services, exchange, evaluation, speech.dropTools)
  const place = notice === undefined ? undefined : placeFor(services, exchange, evaluation, notice, channel)
  const textEdits = joined(announcing, place?.edits ?? [])
  const edits = joined(textEdits, dropping)
  const suspectEdit = announcing.length > 0 ? 'announce' : dropping.length > 0 ? 'drop_tools' : place?.channel
  if (!suspectEdit) return undefined
  return {
    call: withEdits(call, bytes, edits),
    suspectEdit,
    edits,
    textEdits,
    dropsTools: dropping.length > 0,
    notice: place,
  }
}

function joined(edits: readonly Edit[], more: readonly Edit[]): readonly Edit[] {
  if (more.length === 0) return edits
  return edits.length === 0 ? more : [...edits, ...more]
}

/** Law 2: what goes wrong in saying something to the model leaves the request as it was. */
export function editSafely(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  bytes: Buffer,
): EditedRequest | undefined {
  try {
    return editRequest(services, exchange, evaluation, call, bytes)
  } catch (error) {
    services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error as Error) })
    return undefined
  }
}

/** What was refused with a status. */
export function blamedEdit({ suspectEdit }: EditedRequest, status: number): RequestEdit {
  return status === 404 ? 'drop_tools' : suspectEdit
}

export function forward(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  bytes: Buffer,
  governorHeaders: GovernorHeaders,
): void {
  const change = editSafely(services, exchange, evaluation, call, bytes)
  if (!change) {
    exchange.call(call, relayReceiver(services, exchange, evaluation, call, governorHeaders))
    return
  }
  const { speech } = evaluation.decision
  const told = () => {
    if (speech && change.notice) noteInjected(services, evaluation, speech, change.notice.channel)
  }
  const receiver = relayReceiver(services, exchange, evaluation, change.call, governorHeaders, told)
  let refusedWith = 0
  let isSentAgain = false
  const sendAgain = () => {
    if (isSentAgain || exchange.isClientGone()) return
    isSentAgain = true
    // What it says does not matter: a refusal that never ends would keep the client waiting, and its connection open.
    callOff()
    resend(
      services,
      exchange,
      evaluation,
      call,
      governorHeaders,
      blamedEdit(change, refusedWith),
      refusedWith,
    )
  }
  const callOff = exchange.call(change.call, {
    inform: (head) => receiver.inform?.(head),
    start(head, flow) {
      if (!mayBeUnsupported(head, change.dropsTools)) return receiver.start(head, flow)
      refusedWith = head.status
      // Mostly all of it comes at once, and its connection can be used again.
      queueMicrotask(sendAgain)
    },
    data: (chunk) => (refusedWith ? undefined : receiver.data(chunk)),
    end(trailers) {
      if (refusedWith) sendAgain()
      else receiver.end(trailers)
    },
    fail(failure) {
      if (!refusedWith || exchange.isClientGone()) receiver.fail(failure)
      else sendAgain()
    },
  })
}

/** A notice has reached the model. */
export function noteInjected(
  services: Services,
  evaluation: Evaluation,
  { tier, meter }: Speech,
  channel: Channel,
): void {
  services.emit({
    kind: 'notice',
    tier: tier ?? (meter ? 'none' : 'loop'),
    channel,
    ...(meter ? { meter } : {}),
  })
  if (tier === 'warning')
    evaluation.handle.noteWarning().catch(() => services.emit({ kind: 'failed_open', reason: 'store' }))
}

/**
 * Sends the client's own bytes instead of an altered request that was refused. Only if those are taken was the
 * alteration to blame: then it is not tried again.
 */
function resend(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  governorHeaders: GovernorHeaders,
  suspectEdit: RequestEdit,
  refusedWith: number,
): void {
  const receiver = relayReceiver(services, exchange, evaluation, call, governorHeaders)
  exchange.call(call, {
    ...receiver,
    start(head, flow) {
      if (head.status < 400) markUnsupported(services, exchange, evaluation, suspectEdit, refusedWith)
      receiver.start(head, flow)
    },
  })
}

/** Remembers that an upstream's model does not take an alteration, and says so. */
export function markUnsupported(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  alteration: RequestEdit,
  status: number,
): void {
  const { model } = evaluation.request.conversation
  const upstream = exchange.route.upstream.name
  services.unsupportedEdits.remember(upstream, model, alteration)
  services.emit({ kind: 'alteration_refused', upstream, model, alteration, status })
}

/** Relays an answer; one that is none gives the iteration back. */
function relayReceiver(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  governorHeaders: GovernorHeaders,
  answered?: () => void,
): Receiver {
  const relayed = relayTo(exchange.response, governorHeaders)
  let observer: ResponseObserver | undefined
  return {
    inform: relayed.inform,
    start(head, flow) {
      if (head.status >= 400) releaseIteration(evaluation)
      else answered?.()
      observer = usageRecorderFor(services, exchange, evaluation, call, head)
      relayed.start(head, flow)
    },
    data(chunk) {
      observer?.take(chunk)
      relayed.data(chunk)
    },
    end(trailers) {
      relayed.end(trailers)
      observer?.end()
    },
    fail(failure) {
      if (!exchange.isClientGone()) releaseIteration(evaluation)
      exchange.fail(failure, governorHeaders)
      // What came before it broke off was paid for.
      observer?.end()
    },
  }
}

/** Gives an iteration back without keeping the client waiting; a store that can't is a store that forgets. */
export function releaseIteration(evaluation: Evaluation): void {
  evaluation.handle.releaseIteration().catch(() => undefined)
}
