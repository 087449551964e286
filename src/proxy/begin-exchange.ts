/** One request and its response: is the client connected, which call is in flight, what goes to the log. */

import type { Ask, Standing } from '../core/budget/ledger.ts'
import type { BudgetPolicy } from '../core/decide.ts'
import type { Pattern } from '../core/loop/patterns.ts'
import type { LaterAnswer } from '../core/session/later-answer.ts'
import type { Session } from '../core/session/session.ts'
import { ignore } from '../core/thrown.ts'
import type { TokenUsage } from '../core/usage.ts'
import type { Dialect, DialectRequest } from '../dialect/dialect.ts'
import { withReadableCodings } from '../http/body.ts'
import { type Client, type GovernorHeaders, reply } from '../http/client.ts'
import type { Failure, UpstreamCall } from '../http/upstream.ts'
import { type InFlight, relay, type UpstreamResponse } from '../http/upstream-response.ts'
import type { SessionKey } from '../store/store.ts'
import type { Outcome, ProxyEvent, RequestEnded, VerdictName } from '../telemetry/event.ts'
import { addToSpan, beginSpan, endSpan, type RequestSpan } from '../telemetry/tracing.ts'
import type { Place } from '../usage/ledger.ts'
import { type Route, upstreamHead } from './door/route.ts'
import type { AccessKey, Services } from './services.ts'
import type { FoundSession } from './session/find-session.ts'

/** A request that is no step of a run: a title, a summary. */
export interface AsideRequest {
  /** The session that pays for it; unset if it has none. */
  readonly found: FoundSession | undefined
  readonly asked: DialectRequest
  /** Reads it again, where it can't be read as a whole: more of it has come. */
  readonly readAgain?: () => DialectRequest | undefined
  readonly policy: BudgetPolicy
}

/** An answer that a client fetches by the id of its response. `link`: where that is linked to its session. */
export interface FetchedAnswer {
  readonly dialect: Dialect
  readonly response: string
  readonly link: SessionKey
  readonly found: FoundSession
  readonly key: SessionKey
  /** The first state of a session that the store does not contain yet. */
  readonly begun: Session | undefined
  readonly later: LaterAnswer
}

/** A request in the scopes of time that count it. */
export interface Charge {
  readonly places: readonly Place[]
  /** Names the model in estimates. */
  readonly model: string
  bytes: number
  ask: Ask
  /** Returns what it may use by what is known of its model now; `runs`: 1 if it begins a run. */
  readonly estimate: (runs: number) => Ask
  /** Returns US dollars; `undefined` while prices are loaded. */
  readonly priceOf: (of: TokenUsage) => number | undefined
  /** The newest question where it stands, in each place. */
  asked: Promise<readonly Standing[]>
  /** The newest answer. */
  known: readonly Standing[]
  /** Responses that are read for what they used. */
  open: number
  isCounted: boolean
  /** The id of the run that it is a step of; unset for other requests. */
  run?: string | undefined
  isOver: boolean
}

/** A request, its response, and what is known so far; times in ms of `performance.now()`, 0 for what is to come. */
export interface Exchange {
  readonly services: Services
  readonly client: Client
  readonly route: Route
  /** The access key that its client sent, with the key itself, and whether it allows the model, once that is known. */
  accessKey?: (AccessKey & { readonly key: string }) | undefined
  allowed?: { readonly model: string; readonly isAllowed: boolean }
  /** Unset if no SDK records spans, and for requests that are not guarded. */
  readonly span: RequestSpan | undefined
  /** Responses that are not yet read for its span; `endSpan`: what ends it after them, once the client has all. */
  unread: number
  endSpan?: () => void
  readonly beganAt: number
  /** When the last byte of the request was read, or a wait for others ended: Governor's overhead counts from here. */
  bodyReadAt: number
  calledAt: number
  upstreamMs: number | undefined
  /** How long it has waited, as its session is above a limit on its rate; unset if it has not. */
  slowedMs?: number
  inFlight: InFlight | undefined
  outcome: Outcome
  failure: Failure | undefined
  /** A hash of its bytes, without their content coding; unset until they are read. */
  fingerprint?: string
  /** What the log says of the decision. */
  decided: Partial<RequestEnded> | undefined
  /** Set if only its bill is counted. */
  aside?: AsideRequest
  /**
   * Set if it goes upstream with what the provider misses of the answer that it continues from. `taken`: the provider
   * has that.
   */
  continued?: { readonly call: UpstreamCall; readonly taken: () => Promise<void> }
  /** Set if scopes of time count it. */
  charge?: Charge
  /** Set if it fetches an answer that was made in the background. */
  fetched?: FetchedAnswer
}

/** Begins the record of a request. Its `request_ended` event is emitted when the response closes, finished or not. */
export function beginExchange(services: Services, client: Client, route: Route): Exchange {
  const { dialect, upstream } = route
  const { tracing } = services
  const x: Exchange = {
    services,
    client,
    route,
    span: dialect && tracing && beginSpan(tracing, client.head.headers, dialect.api.upstream, upstream.origin),
    unread: 0,
    beganAt: performance.now(),
    bodyReadAt: 0,
    calledAt: 0,
    upstreamMs: undefined,
    inFlight: undefined,
    outcome: 'completed',
    failure: undefined,
    decided: undefined,
  }
  services.emit({ kind: 'request_began' })
  client.onClose(() => end(x))
  return x
}

function end(x: Exchange): void {
  const { services, client, route, failure } = x
  if (client.isGone()) {
    if (x.outcome === 'completed') x.outcome = services.isCut ? 'drained' : 'client_gone'
    x.inFlight?.abort()
  }
  const ended: RequestEnded = {
    kind: 'request_ended',
    upstream: route.upstream.name,
    dialect: route.dialect?.name ?? 'none',
    key: x.accessKey?.name,
    method: client.head.method,
    path: route.asked,
    status: client.status(),
    outcome: x.outcome,
    totalMs: performance.now() - x.beganAt,
    upstreamMs: x.upstreamMs,
    overheadMs: x.bodyReadAt > 0 && x.calledAt > 0 ? x.calledAt - x.bodyReadAt : undefined,
    slowedMs: x.slowedMs,
    failure: failure?.code,
    failureDetail: failure?.detail,
    ...x.decided,
  }
  services.emit(ended)
  const { span } = x
  if (!span) return
  // What the last response used is read in this turn, or once its content coding is undone.
  services.tick.later(() => {
    if (x.unread === 0) endSpan(span, ended)
    else x.endSpan = () => endSpan(span, ended)
  })
}

/** Returns what calls `completed`, and ends the span after the last response that is read for it. */
export function readForSpan<Answer>(x: Exchange, completed: (answer: Answer) => void): (answer: Answer) => void {
  if (!x.span) return completed
  x.unread++
  return (answer) => {
    try {
      completed(answer)
    } finally {
      x.unread--
      if (x.unread === 0) x.endSpan?.()
    }
  }
}

/** Returns the request as it goes upstream when nothing is changed. */
export function callFor(x: Exchange, body: UpstreamCall['body']): UpstreamCall {
  const { services, client, route, accessKey } = x
  const { upstream } = route
  const { method } = client.head
  const { path, headers } = upstreamHead(route, client.head.headers, services, accessKey?.key)
  const isRead = route.dialect !== undefined || x.fetched !== undefined
  return { upstream, method, path, headers: isRead ? withReadableCodings(headers) : headers, body }
}

/** Emits an event of a request, also to its span. */
export function emitFor({ services, span }: Exchange, event: ProxyEvent): void {
  services.emit(event)
  if (span) addToSpan(span, event)
}

/** Changes the verdict in the log, if a request ended in another way than the decision said. */
export function noteVerdict(x: Exchange, verdict: VerdictName, loop: Pattern | undefined = x.decided?.loop): void {
  x.decided = { ...x.decided, verdict, loop }
}

/** Answers the client with an error, or breaks off a response. Does nothing once the client has left. */
export function failExchange(x: Exchange, failure: Failure, governorHeaders?: GovernorHeaders): void {
  const { client, route } = x
  if (client.isGone()) return
  x.outcome = 'upstream_failed'
  x.failure = failure
  if (client.fail(failure.cause)) return
  // If the connection closed while the client still sends, it might never read the error (RFC 9112, section 9.6).
  client.body.resume()
  const { status, message, code } = failure
  const body = route.api.errorBody(status === 503 ? 'overloaded' : 'no_response', message, code, status)
  reply(client, status, 'application/json', body, governorHeaders)
}

/** Gives the client a response as it comes; calls `failed` if it breaks off. */
export function relayTo(
  x: Exchange,
  response: UpstreamResponse,
  governorHeaders: GovernorHeaders,
  failed = (failure: Failure) => failExchange(x, failure, governorHeaders),
): void {
  relay(response, { client: x.client, failed, later: x.services.tick.later }, governorHeaders)
}

/**
 * Waits so many milliseconds, or until the client leaves, Governor ends, or what `listen` gets is called; it returns
 * its end.
 */
export async function pause(
  { services, client }: Exchange,
  ms: number,
  listen: (wake: () => void) => () => void = () => () => {},
): Promise<void> {
  const { draining, delay } = services
  const waiting = new AbortController()
  const { signal } = waiting
  const wake = () => waiting.abort()
  const unlisten = listen(wake)
  const takeBack = client.onClose(wake)
  draining.addEventListener('abort', wake, { signal })
  if (draining.aborted) wake()
  await delay(ms, signal).catch(ignore)
  wake()
  takeBack()
  unlisten()
}
