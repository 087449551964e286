/** One request, from its bytes to its response. */

import { errorOf } from '../core/thrown.ts'
import type { Dialect } from '../dialect/dialect.ts'
import { AGENT_KEYS } from '../dialect/index.ts'
import {
  ClientGone,
  hasBody,
  leaseFor,
  readBody,
  streamOf,
  type Unread,
  type UnreadBody,
  watchFor,
} from '../http/body.ts'
import { type Client, reply } from '../http/client.ts'
import { headerOf } from '../http/headers.ts'
import type { Failure, UpstreamCall } from '../http/upstream.ts'
import { UpstreamFailed } from '../http/upstream-response.ts'
import { refuseAtLimit } from './at-limit.ts'
import { beginExchange, callFor, type Exchange, failExchange, noteVerdict, relayTo } from './begin-exchange.ts'
import { accessKeyOf, allowedBody, allowsSome, refuseModel } from './door/access-key.ts'
import { accessRefusal, routeOf } from './door/route.ts'
import { evaluate } from './evaluate.ts'
import { noteFault } from './fault.ts'
import { filterCalls } from './filter-calls.ts'
import { finalAnswer, replayAnswer } from './final-answer.ts'
import { noteDecision } from './note-decision.ts'
import { noteGap } from './note-gap.ts'
import { sendOnce, sendSpoken } from './send-model.ts'
import type { Services } from './services.ts'
import { placeInHeaders } from './session/find-session.ts'
import { failRequest, relayResponse, type Turn } from './turn.ts'
import { refuseUnjudged } from './unread.ts'
import { fetchedBy } from './usage/later-answer.ts'
import { awaitStop, resend } from './waiting/await-stop.ts'
import { holdInStorm, replyInStorm } from './waiting/error-streaks.ts'
import { answerAsidePaused, evaluateUnpaused, pauseFor, refuseUnread } from './waiting/paused.ts'
import { slowDown } from './waiting/slow-down.ts'

/** Answers one request. Settles when the response has begun. @throws what the last resort cannot handle. */
export async function exchange(services: Services, client: Client, route = routeOf(services, client.head)) {
  const x = beginExchange(services, client, route)
  const { headers } = client.head
  const { dialect } = x.route
  let turn: Turn | undefined
  try {
    x.accessKey = accessKeyOf(services, x.route, headers)
    const refusal = accessRefusal(services, x.route, headers, x.accessKey)
    if (refusal) {
      x.outcome = 'refused'
      client.body.resume()
      return reply(client, refusal.status, 'application/json', refusal.body)
    }
    if (!dialect) return await relayUnknown(x)
    // The body is held for as long as its response may need it sent again.
    const lease = leaseFor(services.buffers, client)
    const body = await readBody(client, services.maxGuardedBody, lease)
    if (!Buffer.isBuffer(body)) {
      body.stream.once('close', lease.release)
      return await relayUnread(x, dialect, body, body.why)
    }
    x.bodyReadAt = performance.now()
    await services.tick.next()
    const found = await evaluateUnpaused(x, dialect, () => evaluate(x, dialect, body, lease))
    if (found === 'answered') return
    if (typeof found !== 'object') return await relayUnread(x, dialect, body, found)
    turn = services.streaks.size > 0 ? await holdInStorm(found) : found
    const again = () => evaluateUnpaused(x, dialect, () => evaluate(x, dialect, body))
    if (turn.request.budget.velocity) turn = await slowDown(turn, again)
    if (turn?.decision.kind === 'stop') turn = await awaitStop(turn, again)
    // It may have waited for an operator, or for others in flight.
    if (turn && pauseFor(x, turn.found)) {
      turn.release?.()
      turn = await resend(turn, again)
    }
    if (!turn) return
    noteDecision(turn)
    const { decision } = turn
    switch (decision.kind) {
      case 'allow':
      case 'warn':
        return relayResponse(turn, (await sendSpoken(turn)).response)
      case 'filter_calls':
        return await filterCalls(turn)
      case 'stop':
      case 'self_stop':
        return await finalAnswer(turn, decision)
      case 'replay':
        return replayAnswer(turn, decision.answer)
      case 'wait':
        return await replyInStorm(turn, decision.storm)
    }
  } catch (error) {
    await lastResort(x, turn, errorOf(error))
  } finally {
    turn?.release?.()
  }
}

/** Relays a request without a decision. */
async function relayUnguarded(x: Exchange, call: UpstreamCall): Promise<void> {
  const response = await sendOnce(x, call)
  relayTo(x, response, {})
}

/** Relays a request to a path that is not guarded, and counts it if an agent has sent it, or the answer it fetches. */
async function relayUnknown(x: Exchange): Promise<void> {
  const { services, client, route } = x
  const { headers } = client.head
  const fetched = await fetchedBy(services, headers, route)
  if (fetched) x.fetched = fetched
  const sent = !hasBody(headers) ? null : allowsSome(x) ? await allowedBody(x) : streamOf(client.body)
  if (sent === undefined) return
  const call = callFor(x, sent)
  // A form uploads files, which may hold any text.
  const isForm = headerOf(headers, 'content-type')?.startsWith('multipart/') === true
  const isAgent = route.isUnknown && call.body && !isForm ? watchFor(client.body, AGENT_KEYS) : () => false
  await relayUnguarded(x, call)
  // Its session is known by its headers alone.
  if (isAgent() && client.status() < 400) await noteGap(services, 'path', placeInHeaders(headers, route, services))
}

/** Relays a request that is not judged, unless that is refused. `why`: it is unreadable; a fault is counted already. */
async function relayUnread(
  x: Exchange,
  dialect: Dialect,
  body: Buffer | UnreadBody,
  why: Unread | 'fault' | undefined,
) {
  const sent = Buffer.isBuffer(body) ? body : body.stream
  if (refuseModel(x) || refuseUnread(x)) return void (Buffer.isBuffer(sent) || sent.resume())
  if (why === 'fault' && Buffer.isBuffer(body) && refuseAtLimit(x, dialect, body)) return
  if (await refuseUnjudged(x, dialect, body)) return
  if (Buffer.isBuffer(body) && (await answerAsidePaused(x, dialect))) return
  if (why && why !== 'fault') x.services.emit({ kind: 'failed_open', reason: why })
  const { continued } = x
  await relayUnguarded(x, continued?.call ?? callFor(x, sent))
  if (continued && x.client.status() < 400) await continued.taken()
}

/**
 * Tells the client that the upstream did not answer. After a fault of Governor's own it sends the client's own bytes,
 * unless the run is over, a call was blocked, or the client has got a part of a response; else no client is left
 * waiting either.
 */
async function lastResort(x: Exchange, turn: Turn | undefined, error: Error): Promise<void> {
  if (error instanceof ClientGone || x.client.isGone()) return
  let failure: Failure | undefined = error instanceof UpstreamFailed ? error.failure : undefined
  // Without Governor the client would get the bytes that it could not decode.
  if (!failure || (failure.code === 'upstream_undecodable' && turn?.decision.kind === 'filter_calls')) {
    noteFault(x.services.emit, error)
    const isJudged = turn?.decision.verdict === 'stop' || turn?.state.decided.verdict === 'block'
    if (turn && !isJudged && x.client.status() === 0) {
      noteVerdict(x, 'allow')
      return relayUnguarded(x, turn.call).catch((other) => lastResort(x, undefined, other))
    }
    const message = 'Governor failed on this request. Its log names the fault.'
    failure = { status: 502, code: 'upstream_broken', message, cause: error }
  }
  if (turn) failRequest(turn, failure)
  else failExchange(x, failure)
}
