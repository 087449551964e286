/** One request, from its bytes to its reply. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Readable } from 'node:stream'
import type { Dialect } from '../dialect/dialect.ts'
import { ClientGone, hasBody, readBody, streamOf, type Unread, unpacked } from '../http/body.ts'
import { type Lease, leaseFor } from '../http/buffer-budget.ts'
import { headerOf } from '../http/headers.ts'
import { isGone, relayTo, reply } from '../http/response.ts'
import type { UpstreamCall } from '../http/upstream.ts'
import { type AccessRefusal, accessRefusal, isAccessKey, refusalBody } from './access.ts'
import { beginTrip, noteJudgement, type Trip } from './begin-exchange.ts'
import { type Sent, watchBound } from './bound-thinking.ts'
import { replyInStorm } from './error-streak.ts'
import { type Judgement, judge } from './evaluate.ts'
import { countFault, faultOf } from './fault.ts'
import { guardCalls } from './filter-calls.ts'
import { answerLast, repeatAnswer } from './final-answer.ts'
import { forward, withEdits } from './forward.ts'
import { asksForModels, createListingWatch } from './model-list-watch.ts'
import { createOverflowWatch } from './overflow-watch.ts'
import { routeOf, upstreamHeaders } from './route.ts'
import type { ProxyContext } from './services.ts'
import { answerWithoutRoom } from './without-room.ts'

/** Guards one request. Settles when the reply is under way. @throws what even the last resort could not handle. */
export async function exchange(
  context: ProxyContext,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const route = routeOf(request.method ?? 'GET', request.url ?? '/', request.rawHeaders, context.upstreams)
  const overflow = route.dialect && createOverflowWatch(context, route)
  const watch =
    overflow ??
    (asksForModels(request.method ?? '', route.path) ? createListingWatch(context, route) : undefined)
  const trip = beginTrip(context, request, response, route, watch)
  /** What goes through unguarded should Governor fail at it. A limit that was reached stays reached. */
  let own: UpstreamCall | undefined
  try {
    const refusal = accessRefusal(context, route, request.rawHeaders)
    if (refusal) return refuse(trip, refusal)
    if (!route.dialect) return relay(context, trip, hasBody(request.rawHeaders) ? streamOf(request) : null)
    const lease = leaseFor(context.buffers, response)
    const body = await readBody(request, context.maxGuardedBody, lease)
    if (body.kind === 'rest') {
      lease.release()
      return await relayUnread(context, trip, route.dialect, body.stream, body.why)
    }
    trip.bodyRead()
    const judged = await judgeSafely(context, trip, route.dialect, body.bytes, lease)
    // What was unpacked stays beside what came until the response is over, and is as large as the client pleases.
    const isUnpacked = typeof judged === 'object' && judged.bytes !== body.bytes
    if (!isUnpacked) lease.release()
    if (typeof judged === 'string') return await relayUnread(context, trip, route.dialect, body.bytes, judged)
    if (!judged) return relay(context, trip, body.bytes)
    const { kind } = judged.judgement.verdict
    if (kind === 'allow' || kind === 'warn') own = judged.call
    overflow?.judged(judged.judgement)
    const { bound } = route.dialect
    await act(context, bound ? watchBound(context, trip, bound, judged) : trip, judged)
  } catch (error) {
    if (error instanceof ClientGone) return
    giveUp(context, trip, error as Error, own)
  }
}

function act(context: ProxyContext, trip: Trip, judged: Sent): Promise<void> | void {
  const { judgement, call, bytes } = judged
  const own = noteJudgement(trip, judgement)
  tellOfLoop(context, judgement)
  noteDelivery(context, trip, judgement)
  const { heed } = judgement.position
  if (heed) context.emit({ kind: 'warning_answered', heed })
  if (judgement.verdict.kind === 'repeat')
    return repeatAnswer(context, trip, judgement, judgement.verdict.answer, own)
  const { storm } = judgement.position
  if (storm) return replyInStorm(context, trip, judgement, storm, own)
  if (judgement.verdict.kind === 'stop' || judgement.endsItself) {
    return answerLast(context, trip, judgement, call, bytes, own)
  }
  if (judgement.position.ended && !judgement.position.isLate)
    judgement.remembered.goOn().catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
  if (judgement.mayRefuse) return guardCalls(context, trip, judgement, call, bytes, own)
  return forward(context, trip, judgement, call, bytes, own)
}

/** Remembers whether the client got all of its answer: bytes that are sent again and again in spite of it count. */
function noteDelivery(context: ProxyContext, { response }: Trip, { position, remembered }: Judgement): void {
  if (position.repeat !== undefined) context.emit({ kind: 'repeat_counted' })
  response.once('close', () => {
    const isWhole = response.statusCode === 200 && !isGone(response)
    remembered.delivered(isWhole).catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
  })
}

/** A request that is sent again closes no loop again. */
function tellOfLoop(context: ProxyContext, { position, verdict }: Judgement): void {
  const { loop, isRetry } = position
  if (!loop || isRetry) return
  const isTold = verdict.kind === 'warn' && verdict.notice.includes(loop.notice)
  context.emit({
    kind: 'loop',
    pattern: loop.pattern,
    tool: loop.tools.at(-1) ?? '',
    isTold,
    warnings: loop.warnings,
  })
}

/** Law 2: a fault of Governor's own never costs a request. */
async function judgeSafely(
  context: ProxyContext,
  trip: Trip,
  dialect: Dialect,
  body: Buffer,
  lease: Lease,
): Promise<Sent | Unread | undefined> {
  try {
    const coding = headerOf(trip.request.rawHeaders, 'content-encoding')
    const bytes = coding === undefined ? body : await unpacked(body, coding, context.maxGuardedBody, lease)
    return Buffer.isBuffer(bytes) ? await judgeBytes(context, trip, dialect, body, bytes) : bytes
  } catch (error) {
    countFault(context.emit, error as Error)
    return undefined
  }
}

/** `bytes`: the body without its content coding. */
async function judgeBytes(
  context: ProxyContext,
  trip: Trip,
  dialect: Dialect,
  body: Buffer,
  bytes: Buffer,
): Promise<Sent | undefined> {
  const judgement = await judge(context, trip.route.upstream, dialect, trip.request.rawHeaders, bytes)
  if (judgement === 'unreadable') context.emit({ kind: 'failed_open', reason: 'unreadable_body' })
  if (judgement === 'unreadable' || judgement === 'uncounted') return undefined
  const call = callFor(context, trip, body)
  // What goes with the client's own is plain JSON, like what it goes with.
  if (judgement.bytes)
    return { judgement, call: withEdits(call, judgement.bytes, []), bytes: judgement.bytes }
  return { judgement, call, bytes }
}

/** The request as it goes upstream when nothing is changed. */
function callFor(
  context: ProxyContext,
  { request, route }: Trip,
  body: Buffer | Readable | null,
): UpstreamCall {
  return {
    upstream: route.upstream,
    method: request.method ?? 'GET',
    path: route.path,
    headers: upstreamHeaders(route, request.rawHeaders, (key) => isAccessKey(context, key)),
    body,
  }
}

function relay(context: ProxyContext, trip: Trip, body: Buffer | Readable | null): void {
  send(trip, callFor(context, trip, body))
}

/** Passes a request on that could not be read; where there was no room for it, a run that was stopped gets its answer again. */
async function relayUnread(
  context: ProxyContext,
  trip: Trip,
  dialect: Dialect,
  body: Buffer | Readable,
  why: Unread,
): Promise<void> {
  if (why === 'no_room' && (await answerWithoutRoom(context, trip, dialect, body))) return
  context.emit({ kind: 'failed_open', reason: why })
  relay(context, trip, body)
}

function send(trip: Trip, call: UpstreamCall): void {
  trip.call(call, { ...relayTo(trip.response, {}), fail: (failure) => trip.fail(failure) })
}

function refuse(trip: Trip, refusal: AccessRefusal): void {
  const { request, response, route } = trip
  trip.refused()
  request.resume()
  reply(response, refusal.status, 'application/json', refusalBody(refusal, route))
}

/**
 * The last resort for a fault after the verdict: the client's own bytes, as long as it has got nothing yet; else an honest
 * error, never a hanging client.
 */
function giveUp(context: ProxyContext, trip: Trip, error: Error, own: UpstreamCall | undefined): void {
  context.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  if (own && !trip.response.headersSent && !trip.isClientGone()) return send(trip, own)
  trip.fail({
    status: 502,
    code: 'upstream_broken',
    message: 'Governor failed on this request. Its log names the fault.',
    cause: error,
  })
}
