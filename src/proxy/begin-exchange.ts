/** One request and its response: is the client connected, which call is in flight, what goes to the log. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Pattern } from '../core/loop/patterns.ts'
import { type GovernorHeaders, isGone, relayInformational, replyFailure } from '../http/response.ts'
import type { Failure, UpstreamCall } from '../http/upstream.ts'
import { type InFlight, type SendOptions, send, type UpstreamResponse } from '../http/upstream-response.ts'
import type { Emit, Outcome, RequestEnded, VerdictName } from '../telemetry/event.ts'
import type { RequestSpan } from '../telemetry/tracing.ts'
import { type Route, upstreamHead } from './door/route.ts'
import type { Services } from './services.ts'

/** The facts for the log about the decision on a request. */
export type DecisionFacts = Pick<
  RequestEnded,
  | 'model'
  | 'observed'
  | 'session'
  | 'apiId'
  | 'iteration'
  | 'maxIterations'
  | 'verdict'
  | 'tier'
  | 'meter'
  | 'loop'
  | 'isRetry'
  | 'parameters'
>

export interface Exchange {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly route: Route
  /** An SDK records the span of this request. */
  readonly isTraced: boolean
  /** Emits an event of this request, also to its span. */
  readonly emit: Emit
  /** Returns true once the client has left: nothing needs to be sent any more. */
  isClientGone(): boolean
  /**
   * Sends a request to the upstream and returns its response, with its body still to come. It is aborted if the
   * client leaves. @throws {UpstreamFailed}
   */
  open(call: UpstreamCall, watching?: ResponseWatch): Promise<UpstreamResponse>
  /** The last byte of the request was read: the overhead that Governor adds is measured from here. */
  noteBodyRead(): void
  decided(facts: DecisionFacts): void
  /** Changes the verdict in the log, if a request ended in another way than the decision said. */
  noteVerdict(verdict: VerdictName, loop?: Pattern): void
  /** The client may not use the upstream. */
  noteRefused(): void
  /** Answers the client with an error, or breaks off a response. Does nothing once the client has left. */
  fail(failure: Failure, governorHeaders?: GovernorHeaders): void
}

/** The observer and the filter of a response's body. */
export type ResponseWatch = Pick<SendOptions, 'observerFor' | 'filterFor'>

type ExchangeServices = Pick<Services, 'transport' | 'emit' | 'isCut' | 'tracing'>

/** What is known so far; times in milliseconds of `performance.now()`, 0 for events still to come. */
interface ExchangeState {
  readonly services: ExchangeServices
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly route: Route
  /** Unset if no SDK records spans, and for requests that are not guarded. */
  readonly span: RequestSpan | undefined
  readonly beganAt: number
  bodyReadAt: number
  calledAt: number
  upstreamMs?: number
  overheadMs?: number
  inFlight?: InFlight | undefined
  isClientGone: boolean
  isOver: boolean
  outcome: Outcome
  failure?: Failure
  decided?: DecisionFacts
}

/** The log's account of a request that is over. */
function requestEnded(state: ExchangeState): RequestEnded {
  const { request, response, route, failure } = state
  return {
    kind: 'request_ended',
    upstream: route.upstream.name,
    dialect: route.dialect?.name ?? 'none',
    method: request.method ?? '',
    path: route.asked,
    status: response.headersSent ? response.statusCode : 0,
    outcome: state.outcome,
    totalMs: performance.now() - state.beganAt,
    upstreamMs: state.upstreamMs,
    overheadMs: state.overheadMs,
    failure: failure?.code,
    failureDetail: failure?.detail,
    ...state.decided,
  }
}

function end(state: ExchangeState): void {
  if (state.isOver) return
  state.isOver = true
  if (isGone(state.response)) {
    state.isClientGone = true
    if (state.outcome === 'completed') state.outcome = state.services.isCut ? 'drained' : 'client_gone'
    state.inFlight?.abort()
  }
  state.inFlight = undefined
  const ended = requestEnded(state)
  state.services.emit(ended)
  state.span?.end(ended)
}

function open(
  state: ExchangeState,
  call: UpstreamCall,
  { observerFor, filterFor }: ResponseWatch = {},
): Promise<UpstreamResponse> {
  if (state.calledAt === 0) {
    state.calledAt = performance.now()
    if (state.bodyReadAt > 0) state.overheadMs = state.calledAt - state.bodyReadAt
  }
  const traced = state.span ? { ...call, headers: state.span.inject(call.headers) } : call
  const inFlight = send(state.services.transport, traced, {
    onInformational: (head) => relayInformational(state.response, head),
    onHead() {
      state.upstreamMs = performance.now() - state.calledAt
    },
    observerFor,
    filterFor,
  })
  state.inFlight = inFlight
  if (state.isClientGone) inFlight.abort()
  return inFlight.response
}

function fail(state: ExchangeState, failure: Failure, governorHeaders?: GovernorHeaders): void {
  if (state.isClientGone) return
  state.outcome = 'upstream_failed'
  state.failure = failure
  const kind = failure.status === 503 ? 'overloaded' : 'no_response'
  const body = state.route.api.errorBody(kind, failure.message, failure.code)
  replyFailure(state.request, state.response, failure.status, body, governorHeaders)
}

/** Begins the record of a request. Its `request_ended` event is emitted when the response closes, finished or not. */
export function beginExchange(
  services: ExchangeServices,
  request: IncomingMessage,
  response: ServerResponse,
  route: Route,
): Exchange {
  const { dialect, upstream } = route
  const span = dialect && services.tracing.begin(request.rawHeaders, dialect.name, upstream.origin)
  const state: ExchangeState = {
    services,
    request,
    response,
    route,
    span,
    beganAt: performance.now(),
    bodyReadAt: 0,
    calledAt: 0,
    isClientGone: false,
    isOver: false,
    outcome: 'completed',
  }
  services.emit({ kind: 'request_began' })
  const close = () => end(state)
  response.on('close', close)
  if (!response.socket) {
    // Node emits no `close` for a response that waits behind others on its connection when that connection ends.
    const { socket } = request
    // A client chooses how many requests it sends at once.
    socket.setMaxListeners(0)
    socket.once('close', close)
    response.once('close', () => socket.off('close', close))
  }
  return {
    request,
    response,
    route,
    isTraced: span !== undefined,
    emit(event) {
      services.emit(event)
      span?.record(event)
    },
    isClientGone: () => state.isClientGone,
    open: (call, watching) => open(state, call, watching),
    noteBodyRead() {
      state.bodyReadAt = performance.now()
    },
    decided(facts) {
      state.decided = facts
    },
    noteVerdict(verdict, loop = state.decided?.loop) {
      state.decided = { ...state.decided, verdict, loop }
    },
    noteRefused() {
      state.outcome = 'refused'
    },
    fail: (failure, governorHeaders) => fail(state, failure, governorHeaders),
  }
}

/** Returns the request as it goes upstream when nothing is changed. */
export function callFor(
  services: Services,
  { request, route }: Pick<Exchange, 'request' | 'route'>,
  body: UpstreamCall['body'],
): UpstreamCall {
  const { upstream } = route
  const method = request.method ?? 'GET'
  return { upstream, method, ...upstreamHead(route, request.rawHeaders, services), body }
}
