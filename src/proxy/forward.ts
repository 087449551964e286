/** Sends a request that goes on normally: as it is, or with what Governor has to say to the model. */

import type { Channel, Verdict } from '../core/decide.ts'
import { globMatches } from '../core/glob.ts'
import { dropTools } from '../dialect/shared/tools.ts'
import { withoutLength } from '../http/headers.ts'
import { type OwnHeaders, relayTo } from '../http/response.ts'
import { type Head, lengthOf, type Receiver, type UpstreamCall } from '../http/upstream.ts'
import { type Edit, editedPieces } from '../json/edit.ts'
import type { Tap } from '../usage/observe.ts'
import type { Trip } from './begin-exchange.ts'
import type { Judgement } from './evaluate.ts'
import { faultOf } from './fault.ts'
import { tapFor } from './record-usage.ts'
import type { ProxyContext } from './services.ts'
import { type Alteration, channelsFor } from './unsupported-edits.ts'

/**
 * Answers that may mean "not in this form": law 2. One that is too large is so in any form. `forbids`: the tools are not to
 * be chosen; gateways that look for somebody who takes all that a request asks for find nobody for that, and say so with 404.
 */
export function mayBeRefusal({ status, overflow }: Head, forbids = false): boolean {
  if (overflow) return false
  return status === 400 || status === 422 || status === 500 || (forbids && status === 404)
}

/** Has this request's upstream refused an alteration for its model? */
export function isRefused(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  alteration: Alteration,
): boolean {
  const { model } = judgement.request.conversation
  return context.refusals.isRefused(trip.route.upstream.name, model, alteration)
}

/** Edits that state the budget in the system text; none where it is not to be stated, or was refused. */
export function announcementFor(context: ProxyContext, trip: Trip, judgement: Judgement): readonly Edit[] {
  const { request, verdict } = judgement
  const announcement = 'announcement' in verdict ? verdict.announcement : undefined
  if (announcement === undefined || isRefused(context, trip, judgement, 'announce')) return []
  return request.announce(announcement)
}

/** A notice placed in a request. */
export interface PlacedNotice {
  readonly channel: Channel
  readonly edits: readonly Edit[]
}

/** Puts a notice in one place of a request; `undefined` where that can't be, or was refused. */
function placeIn(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  text: string,
  channel: Channel,
): PlacedNotice | undefined {
  if (isRefused(context, trip, judgement, channel)) return undefined
  const edits = judgement.request.notice(text, channel)
  return edits && { channel, edits }
}

/** The places a notice can go in this request, the preferred one first, without those the upstream has refused. */
export function placesFor(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  text: string,
): PlacedNotice[] {
  return channelsFor(judgement.policy.channel).flatMap((channel) => {
    const place = placeIn(context, trip, judgement, text, channel)
    return place ? [place] : []
  })
}

/** The first of them. */
export function placeFor(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  text: string,
  preferred: Channel = judgement.policy.channel,
): PlacedNotice | undefined {
  for (const channel of channelsFor(preferred)) {
    const place = placeIn(context, trip, judgement, text, channel)
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
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  globs: readonly string[],
  instead?: readonly Edit[],
): readonly Edit[] {
  if (globs.length === 0 || isRefused(context, trip, judgement, 'drop_tools')) return []
  return dropTools(judgement.request, (name) => globs.some((glob) => globMatches(glob, name)), instead)
}

/** What is said to the model, and the request that says it. */
export interface Altered {
  readonly call: UpstreamCall
  /** What the provider refuses if it refuses the request; the announcement first, as it stands where templates are strict. */
  readonly suspect: Alteration
  readonly notice: PlacedNotice | undefined
  readonly edits: readonly Edit[]
  /** Of these, those that add to what is said, and touch no tool. */
  readonly said: readonly Edit[]
  /** Tools are no longer offered, or not to be chosen. */
  readonly dropsTools: boolean
}

function altered(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  bytes: Buffer,
): Altered | undefined {
  const { verdict } = judgement
  if (verdict.kind === 'allow' && verdict.announcement === undefined) return undefined
  const announcing = announcementFor(context, trip, judgement)
  const isWarned = verdict.kind === 'warn'
  const dropping = isWarned ? droppedFor(context, trip, judgement, verdict.dropTools) : []
  const place = isWarned ? placeFor(context, trip, judgement, verdict.notice, verdict.channel) : undefined
  const said = joined(announcing, place?.edits ?? [])
  const edits = joined(said, dropping)
  const suspect = announcing.length > 0 ? 'announce' : dropping.length > 0 ? 'drop_tools' : place?.channel
  if (!suspect) return undefined
  return {
    call: withEdits(call, bytes, edits),
    suspect,
    edits,
    said,
    dropsTools: dropping.length > 0,
    notice: place,
  }
}

function joined(edits: readonly Edit[], more: readonly Edit[]): readonly Edit[] {
  if (more.length === 0) return edits
  return edits.length === 0 ? more : [...edits, ...more]
}

/** Law 2: what goes wrong in saying something to the model leaves the request as it was. */
export function alteredSafely(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  bytes: Buffer,
): Altered | undefined {
  try {
    return altered(context, trip, judgement, call, bytes)
  } catch (error) {
    context.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error as Error) })
    return undefined
  }
}

/** What was refused with a status. */
export function suspectOf({ suspect }: Altered, status: number): Alteration {
  return status === 404 ? 'drop_tools' : suspect
}

export function forward(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  bytes: Buffer,
  own: OwnHeaders,
): void {
  const change = alteredSafely(context, trip, judgement, call, bytes)
  if (!change) {
    trip.call(call, receiverOf(context, trip, judgement, call, own))
    return
  }
  const { verdict } = judgement
  const told = () => {
    if (verdict.kind === 'warn' && change.notice) noteTold(context, judgement, verdict, change.notice.channel)
  }
  const receiver = receiverOf(context, trip, judgement, change.call, own, told)
  let refusedWith = 0
  let isSentAgain = false
  const sendAgain = () => {
    if (isSentAgain || trip.isClientGone()) return
    isSentAgain = true
    // What it says does not matter: a refusal that never ends would keep the client waiting, and its connection open.
    callOff()
    resend(context, trip, judgement, call, own, suspectOf(change, refusedWith), refusedWith)
  }
  const callOff = trip.call(change.call, {
    inform: (head) => receiver.inform?.(head),
    start(head, flow) {
      if (!mayBeRefusal(head, change.dropsTools)) return receiver.start(head, flow)
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
      if (!refusedWith || trip.isClientGone()) receiver.fail(failure)
      else sendAgain()
    },
  })
}

/** A notice has reached the model. */
export function noteTold(
  context: ProxyContext,
  judgement: Judgement,
  { tier, meter }: Extract<Verdict, { kind: 'warn' }>,
  channel: Channel,
): void {
  context.emit({
    kind: 'notice',
    tier: tier ?? (meter ? 'none' : 'loop'),
    channel,
    ...(meter ? { meter } : {}),
  })
  if (tier === 'warning')
    judgement.remembered.warned().catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
}

/**
 * Sends the client's own bytes instead of an altered request that was refused. Only if those are taken was the
 * alteration to blame: then it is not tried again.
 */
function resend(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  own: OwnHeaders,
  suspect: Alteration,
  refusedWith: number,
): void {
  const receiver = receiverOf(context, trip, judgement, call, own)
  trip.call(call, {
    ...receiver,
    start(head, flow) {
      if (head.status < 400) blame(context, trip, judgement, suspect, refusedWith)
      receiver.start(head, flow)
    },
  })
}

/** Remembers that an upstream's model does not take an alteration, and says so. */
export function blame(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  alteration: Alteration,
  status: number,
): void {
  const { model } = judgement.request.conversation
  const upstream = trip.route.upstream.name
  context.refusals.remember(upstream, model, alteration)
  context.emit({ kind: 'alteration_refused', upstream, model, alteration, status })
}

/** Relays an answer; one that is none gives the iteration back. */
function receiverOf(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  own: OwnHeaders,
  answered?: () => void,
): Receiver {
  const relayed = relayTo(trip.response, own)
  let tap: Tap | undefined
  return {
    inform: relayed.inform,
    start(head, flow) {
      if (head.status >= 400) returnIteration(judgement)
      else answered?.()
      tap = tapFor(context, trip, judgement, call, head)
      relayed.start(head, flow)
    },
    data(chunk) {
      tap?.take(chunk)
      relayed.data(chunk)
    },
    end(trailers) {
      relayed.end(trailers)
      tap?.end()
    },
    fail(failure) {
      if (!trip.isClientGone()) returnIteration(judgement)
      trip.fail(failure, own)
      // What came before it broke off was paid for.
      tap?.end()
    },
  }
}

/** Gives an iteration back without keeping the client waiting; a store that can't is a store that forgets. */
export function returnIteration(judgement: Judgement): void {
  judgement.remembered.giveBack().catch(() => undefined)
}
