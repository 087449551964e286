/** One request, from its bytes to its response. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Readable } from 'node:stream'
import { ClientGone, hasBody, leaseFor, readBody, streamOf, type Unread, unpacked } from '../http/body.ts'
import { headerOf } from '../http/headers.ts'
import { reply } from '../http/response.ts'
import { shareStop } from './answer/shared-stop.ts'
import { beginExchange, callFor, type Exchange } from './begin-exchange.ts'
import { type AccessRefusal, accessRefusal, refusalBody } from './door/access.ts'
import { routeOf } from './door/route.ts'
import { evaluate } from './evaluate.ts'
import { failOpen, noteFault } from './fault.ts'
import { filterCalls } from './filter-calls.ts'
import { finalAnswer, replayAnswer } from './final-answer.ts'
import { forward, forwardUnguarded } from './forward.ts'
import { holdStop } from './hold-stop.ts'
import { noteDecision } from './note-decision.ts'
import type { Services } from './services.ts'
import { replyInStorm } from './storm.ts'
import type { Turn } from './turn.ts'

/** Answers one request. Settles when the response has begun. @throws what the last resort cannot handle. */
export async function exchange(services: Services, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { emit, buffers, maxGuardedBody } = services
  const { rawHeaders } = request
  const route = routeOf(services, request.method ?? 'GET', request.url ?? '/', rawHeaders)
  const { dialect } = route
  const x = beginExchange(services, request, response, route)
  let turn: Turn | Unread | undefined
  try {
    const refusal = accessRefusal(services, route, rawHeaders)
    if (refusal) return replyRefused(x, refusal)
    if (!dialect) return await relay(services, x, hasBody(rawHeaders) ? streamOf(request) : null)
    // The body is held for as long as its response may need it sent again.
    const lease = leaseFor(buffers, response)
    const body = await readBody(request, maxGuardedBody, lease)
    if (body.kind === 'rest') {
      body.stream.once('close', () => lease.release())
      return await relayUnguarded(services, x, body.stream, body.why)
    }
    x.noteBodyRead()
    const { bytes } = body
    const coding = headerOf(rawHeaders, 'content-encoding')
    const json = await failOpen(emit, () => unpacked(bytes, coding, maxGuardedBody, lease))
    if (!Buffer.isBuffer(json)) return await relayUnguarded(services, x, bytes, json)
    turn = await failOpen(emit, () => evaluate(services, x, dialect, bytes, json, lease))
    if (typeof turn !== 'object') return await relayUnguarded(services, x, bytes, turn)
    if (turn.decision.kind === 'stop') {
      const again = async () => {
        const next = await failOpen(emit, () => evaluate(services, x, dialect, bytes, json))
        return typeof next === 'object' ? next : undefined
      }
      const held = await holdStop(turn, again)
      turn = held && (await shareStop(held, again))
      if (!turn) return
    }
    noteDecision(turn)
    const { decision } = turn
    switch (decision.kind) {
      case 'allow':
      case 'warn':
        return await forward(turn)
      case 'filter_calls':
        return await filterCalls(turn)
      case 'stop':
      case 'self_stop':
        return await finalAnswer(turn)
      case 'replay':
        return replayAnswer(turn, decision.answer)
      case 'wait':
        return replyInStorm(turn, decision.storm)
    }
  } catch (error) {
    if (error instanceof ClientGone) return
    await lastResort(services, x, turn, error as Error)
  }
}

function relay(services: Services, x: Exchange, body: Buffer | Readable | null): Promise<void> {
  return forwardUnguarded(services, x, callFor(services, x, body))
}

/** Relays a request without a decision. `why`: why it could not be read; unset after a counted fault. */
async function relayUnguarded(
  services: Services,
  x: Exchange,
  body: Buffer | Readable,
  why: Unread | undefined,
): Promise<void> {
  if (why) services.emit({ kind: 'failed_open', reason: why })
  await relay(services, x, body)
}

function replyRefused(x: Exchange, refusal: AccessRefusal): void {
  x.noteRefused()
  x.request.resume()
  reply(x.response, refusal.status, 'application/json', refusalBody(refusal, x.route))
}

/**
 * Handles a fault after the decision: sends the client's own bytes, unless the run is over or the client has got a
 * part of a response; else answers with an error, so that no client is left waiting.
 */
async function lastResort(
  services: Services,
  x: Exchange,
  turn: Turn | Unread | undefined,
  error: Error,
): Promise<void> {
  noteFault(services.emit, error)
  const mayRelay = typeof turn === 'object' && turn.decision.verdict !== 'stop'
  if (mayRelay && !x.response.headersSent && !x.isClientGone()) {
    x.noteVerdict('allow')
    return forwardUnguarded(services, x, turn.call)
  }
  x.fail({
    status: 502,
    code: 'upstream_broken',
    message: 'Governor failed on this request. Its log names the fault.',
    cause: error,
  })
}
