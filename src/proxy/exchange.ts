/** One request, from its bytes to its response. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Readable } from 'node:stream'
import type { Dialect } from '../dialect/dialect.ts'
import { ClientGone, hasBody, readBody, streamOf, type Unread, unpacked } from '../http/body.ts'
import { type Lease, leaseFor } from '../http/buffer-budget.ts'
import { headerOf, type RawHeaders } from '../http/headers.ts'
import { reply } from '../http/response.ts'
import type { UpstreamCall } from '../http/upstream.ts'
import { replyInStorm } from './answer/storm-reply.ts'
import { beginExchange, type Exchange } from './begin-exchange.ts'
import { type AccessRefusal, accessRefusal, refusalBody } from './door/access.ts'
import { routeOf, upstreamHead } from './door/route.ts'
import { evaluate } from './evaluate.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import { countFault, noteFault } from './fault.ts'
import { filterCalls } from './filter-calls.ts'
import { finalAnswer, replayAnswer } from './final-answer.ts'
import { forward, forwardUnguarded } from './forward.ts'
import { holdStop } from './hold-stop.ts'
import { noteDecision } from './note-decision.ts'
import { withEdits } from './request-edits.ts'
import type { Services } from './services.ts'
import { tenantOf } from './session/identity.ts'
import { shareStop } from './shared-stop.ts'

/** Answers one request. Settles when the response has begun. @throws errors that even the last resort could not handle. */
export async function exchange(
  services: Services,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const route = routeOf(services, request.method ?? 'GET', request.url ?? '/', request.rawHeaders)
  const { dialect } = route
  const begun = beginExchange(services, request, response, route)
  let evaluated: Evaluated | Unread | undefined
  try {
    const refusal = accessRefusal(services, route, request.rawHeaders)
    if (refusal) return replyRefused(begun, refusal)
    if (!dialect) return await relay(services, begun, hasBody(request.rawHeaders) ? streamOf(request) : null)
    // The body is held for as long as its response may need it sent again.
    const lease = leaseFor(services.buffers, response)
    const body = await readBody(request, services.maxGuardedBody, lease)
    if (body.kind === 'rest') {
      body.stream.once('close', () => lease.release())
      return await relayUnguarded(services, begun, body.stream, body.why)
    }
    begun.noteBodyRead()
    const { bytes } = body
    const json = await plainBody(services, request.rawHeaders, bytes, lease)
    if (!Buffer.isBuffer(json)) return await relayUnguarded(services, begun, bytes, json)
    evaluated = await evaluateSafely(services, begun, dialect, bytes, json, lease)
    if (typeof evaluated !== 'object') return await relayUnguarded(services, begun, bytes, evaluated)
    if (evaluated.evaluation.decision.kind === 'stop') {
      const again = async () => {
        const next = await evaluateSafely(services, begun, dialect, bytes, json)
        return typeof next === 'object' ? next : undefined
      }
      const held = await holdStop(services, begun, evaluated, again)
      evaluated = held && (await shareStop(services, begun, held, again))
      if (!evaluated) return
    }
    const { evaluation } = evaluated
    const governorHeaders = noteDecision(services, begun, evaluation)
    const thinking = { isDropped: evaluation.runState.dropsThinking === true }
    const x = { services, exchange: begun, governorHeaders, thinking, ...evaluated }
    const { decision } = evaluation
    switch (decision.kind) {
      case 'allow':
      case 'warn':
        return await forward(x)
      case 'filter_calls':
        return await filterCalls(x)
      case 'stop':
      case 'self_stop':
        return await finalAnswer(x)
      case 'replay':
        return replayAnswer(x, decision.answer)
      case 'wait':
        return replyInStorm(x, decision.storm)
    }
  } catch (error) {
    if (error instanceof ClientGone) return
    await lastResort(services, begun, evaluated, error as Error)
  }
}

/** A request with its evaluation, as it goes upstream when nothing is changed. */
type Evaluated = Pick<EvaluatedRequest, 'evaluation' | 'call' | 'bytes'>

/** Returns a body without its content coding; or why there is none, `undefined` after a fault of Governor's own. */
async function plainBody(
  services: Services,
  headers: RawHeaders,
  body: Buffer,
  lease: Lease,
): Promise<Buffer | Unread | undefined> {
  try {
    return await unpacked(body, headerOf(headers, 'content-encoding'), services.maxGuardedBody, lease)
  } catch (error) {
    countFault(services.emit, error as Error)
    return undefined
  }
}

/**
 * Evaluates a body; returns why it could not be read, or `undefined` if it is relayed unguarded without being counted for that. Never
 * throws: a fault of Governor's own never costs a request. `json`: the body without its content coding. `lease`: for the first time.
 */
async function evaluateSafely(
  services: Services,
  exchange: Exchange,
  dialect: Dialect,
  body: Buffer,
  json: Buffer,
  lease?: Lease,
): Promise<Evaluated | Unread | undefined> {
  const { route, request } = exchange
  const { rawHeaders } = request
  try {
    const tenant = tenantOf(rawHeaders, route.path, services.credentialPlaces)
    const input = { path: route.asked, body: json, tenant }
    const evaluation = await evaluate(services, route.upstream, dialect, rawHeaders, input, lease)
    if (typeof evaluation !== 'object') return evaluation
    const { bytes = json } = evaluation
    const call = callFor(services, exchange, body)
    return { evaluation, call: bytes === json ? call : withEdits(call, bytes, []), bytes }
  } catch (error) {
    countFault(services.emit, error as Error)
    return undefined
  }
}

/** Returns the request as it goes upstream when nothing is changed. */
function callFor(
  services: Services,
  { request, route }: Exchange,
  body: Buffer | Readable | null,
): UpstreamCall {
  return {
    upstream: route.upstream,
    method: request.method ?? 'GET',
    ...upstreamHead(route, request.rawHeaders, services),
    body,
  }
}

function relay(services: Services, exchange: Exchange, body: Buffer | Readable | null): Promise<void> {
  return forwardUnguarded(services, exchange, callFor(services, exchange, body))
}

/** Relays a request without a decision. `why`: the reason why Governor could not read it. */
async function relayUnguarded(
  services: Services,
  exchange: Exchange,
  body: Buffer | Readable,
  why: Unread | undefined,
): Promise<void> {
  if (why) services.emit({ kind: 'failed_open', reason: why })
  await relay(services, exchange, body)
}

function replyRefused(exchange: Exchange, refusal: AccessRefusal): void {
  const { request, response, route } = exchange
  exchange.noteRefused()
  request.resume()
  reply(response, refusal.status, 'application/json', refusalBody(refusal, route))
}

/**
 * Handles a fault after the decision: sends the client's own bytes, unless the run is over or the client has got a part of a
 * response; else answers with an error, so that no client is left waiting.
 */
async function lastResort(
  services: Services,
  exchange: Exchange,
  evaluated: Evaluated | Unread | undefined,
  error: Error,
): Promise<void> {
  noteFault(services.emit, error)
  const mayRelay = typeof evaluated === 'object' && evaluated.evaluation.decision.verdict !== 'stop'
  if (mayRelay && !exchange.response.headersSent && !exchange.isClientGone()) {
    exchange.noteVerdict('allow')
    return forwardUnguarded(services, exchange, evaluated.call)
  }
  exchange.fail({
    status: 502,
    code: 'upstream_broken',
    message: 'Governor failed on this request. Its log names the fault.',
    cause: error,
  })
}
