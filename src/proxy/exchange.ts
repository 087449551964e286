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
import { beginExchange, type Exchange, noteEvaluation } from './begin-exchange.ts'
import { type Sent, watchBound } from './bound-thinking.ts'
import { replyInStorm } from './error-streak.ts'
import { type Evaluation, evaluate } from './evaluate.ts'
import { countFault, faultOf } from './fault.ts'
import { filterCalls } from './filter-calls.ts'
import { finalAnswer, repeatAnswer } from './final-answer.ts'
import { forward, withEdits } from './forward.ts'
import { asksForModels, createListingWatch } from './model-list-watch.ts'
import { createOverflowWatch } from './overflow-watch.ts'
import { routeOf, upstreamHeaders } from './route.ts'
import type { Services } from './services.ts'
import { answerWithoutRoom } from './without-room.ts'

/** Guards one request. Settles when the reply is under way. @throws what even the last resort could not handle. */
export async function exchange(
  services: Services,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const route = routeOf(services, request.method ?? 'GET', request.url ?? '/', request.rawHeaders)
  const overflow = route.dialect && createOverflowWatch(services, route)
  const watch =
    overflow ??
    (asksForModels(request.method ?? '', route.path) ? createListingWatch(services, route) : undefined)
  const exchange = beginExchange(services, request, response, route, watch)
  /** What goes through unguarded should Governor fail at it. A limit that was reached stays reached. */
  let governorHeaders: UpstreamCall | undefined
  try {
    const refusal = accessRefusal(services, route, request.rawHeaders)
    if (refusal) return refuse(exchange, refusal)
    if (!route.dialect)
      return relay(services, exchange, hasBody(request.rawHeaders) ? streamOf(request) : null)
    const lease = leaseFor(services.buffers, response)
    const body = await readBody(request, services.maxGuardedBody, lease)
    if (body.kind === 'rest') {
      lease.release()
      return await relayUnread(services, exchange, route.dialect, body.stream, body.why)
    }
    exchange.noteBodyRead()
    const judged = await judgeSafely(services, exchange, route.dialect, body.bytes, lease)
    // What was unpacked stays beside what came until the response is over, and is as large as the client pleases.
    const isUnpacked = typeof judged === 'object' && judged.bytes !== body.bytes
    if (!isUnpacked) lease.release()
    if (typeof judged === 'string')
      return await relayUnread(services, exchange, route.dialect, body.bytes, judged)
    if (!judged) return relay(services, exchange, body.bytes)
    if (judged.evaluation.decision.verdict !== 'stop') governorHeaders = judged.call
    overflow?.evaluated(judged.evaluation)
    const { bound } = route.dialect
    await act(services, bound ? watchBound(services, exchange, bound, judged) : exchange, judged)
  } catch (error) {
    if (error instanceof ClientGone) return
    giveUp(services, exchange, error as Error, governorHeaders)
  }
}

function act(services: Services, exchange: Exchange, judged: Sent): Promise<void> | void {
  const { evaluation, call, bytes } = judged
  const { decision } = evaluation
  const governorHeaders = noteEvaluation(exchange, evaluation)
  tellOfLoop(services, evaluation)
  noteDelivery(services, exchange, evaluation)
  const { reaction } = evaluation.runState
  if (reaction) services.emit({ kind: 'warning_answered', reaction })
  if ('resumesRun' in decision && decision.resumesRun)
    evaluation.handle.resumeRun().catch(() => services.emit({ kind: 'failed_open', reason: 'store' }))
  switch (decision.kind) {
    case 'allow':
    case 'warn':
      return forward(services, exchange, evaluation, call, bytes, governorHeaders)
    case 'filter_calls':
      return filterCalls(services, exchange, evaluation, call, bytes, governorHeaders)
    case 'stop':
    case 'self_stop':
      return finalAnswer(services, exchange, evaluation, call, bytes, governorHeaders)
    case 'replay':
      return repeatAnswer(services, exchange, evaluation, decision.answer, governorHeaders)
    case 'wait':
      return replyInStorm(services, exchange, evaluation, decision.storm, governorHeaders)
  }
}

/** Remembers whether the client got all of its answer: bytes that are sent again and again in spite of it count. */
function noteDelivery(services: Services, { response }: Exchange, { runState, handle }: Evaluation): void {
  if (runState.resendCount !== undefined) services.emit({ kind: 'repeat_counted' })
  response.once('close', () => {
    const isWhole = response.statusCode === 200 && !isGone(response)
    handle.noteDelivery(isWhole).catch(() => services.emit({ kind: 'failed_open', reason: 'store' }))
  })
}

/** A request that is sent again closes no loop again. */
function tellOfLoop(services: Services, { runState, decision }: Evaluation): void {
  const { loop, isRetry } = runState
  if (!loop || isRetry) return
  const isTold = decision.verdict !== 'stop' && decision.speech?.notice?.includes(loop.notice) === true
  services.emit({
    kind: 'loop',
    pattern: loop.pattern,
    tool: loop.tools.at(-1) ?? '',
    isTold,
    warnings: loop.warnings,
  })
}

/** Law 2: a fault of Governor's own never costs a request. */
async function judgeSafely(
  services: Services,
  exchange: Exchange,
  dialect: Dialect,
  body: Buffer,
  lease: Lease,
): Promise<Sent | Unread | undefined> {
  try {
    const coding = headerOf(exchange.request.rawHeaders, 'content-encoding')
    const bytes = coding === undefined ? body : await unpacked(body, coding, services.maxGuardedBody, lease)
    return Buffer.isBuffer(bytes) ? await judgeBytes(services, exchange, dialect, body, bytes) : bytes
  } catch (error) {
    countFault(services.emit, error as Error)
    return undefined
  }
}

/** `bytes`: the body without its content coding. */
async function judgeBytes(
  services: Services,
  exchange: Exchange,
  dialect: Dialect,
  body: Buffer,
  bytes: Buffer,
): Promise<Sent | undefined> {
  const { upstream, asked: path } = exchange.route
  const { rawHeaders } = exchange.request
  const evaluation = await evaluate(services, upstream, dialect, rawHeaders, { path, body: bytes })
  if (evaluation === 'unreadable') services.emit({ kind: 'failed_open', reason: 'unreadable_body' })
  if (evaluation === 'unreadable' || evaluation === 'uncounted') return undefined
  const call = callFor(services, exchange, body)
  // What goes with the client's own is plain JSON, like what it goes with.
  if (evaluation.bytes)
    return { evaluation, call: withEdits(call, evaluation.bytes, []), bytes: evaluation.bytes }
  return { evaluation, call, bytes }
}

/** The request as it goes upstream when nothing is changed. */
function callFor(
  services: Services,
  { request, route }: Exchange,
  body: Buffer | Readable | null,
): UpstreamCall {
  return {
    upstream: route.upstream,
    method: request.method ?? 'GET',
    path: route.path,
    headers: upstreamHeaders(route, request.rawHeaders, services.credentialHeaders, (key) =>
      isAccessKey(services, key),
    ),
    body,
  }
}

function relay(services: Services, exchange: Exchange, body: Buffer | Readable | null): void {
  send(exchange, callFor(services, exchange, body))
}

/** Passes a request on that could not be read; where there was no room for it, a run that was stopped gets its answer again. */
async function relayUnread(
  services: Services,
  exchange: Exchange,
  dialect: Dialect,
  body: Buffer | Readable,
  why: Unread,
): Promise<void> {
  if (why === 'no_room' && (await answerWithoutRoom(services, exchange, dialect, body))) return
  services.emit({ kind: 'failed_open', reason: why })
  relay(services, exchange, body)
}

function send(exchange: Exchange, call: UpstreamCall): void {
  exchange.call(call, { ...relayTo(exchange.response, {}), fail: (failure) => exchange.fail(failure) })
}

function refuse(exchange: Exchange, refusal: AccessRefusal): void {
  const { request, response, route } = exchange
  exchange.noteRefused()
  request.resume()
  reply(response, refusal.status, 'application/json', refusalBody(refusal, route))
}

/**
 * The last resort for a fault after the verdict: the client's own bytes, as long as it has got nothing yet; else an honest
 * error, never a hanging client.
 */
function giveUp(
  services: Services,
  exchange: Exchange,
  error: Error,
  governorHeaders: UpstreamCall | undefined,
): void {
  services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  if (governorHeaders && !exchange.response.headersSent && !exchange.isClientGone())
    return send(exchange, governorHeaders)
  exchange.fail({
    status: 502,
    code: 'upstream_broken',
    message: 'Governor failed on this request. Its log names the fault.',
    cause: error,
  })
}
