/** One request and its response: whether the client is still there, what is in flight for it, and what the log will say. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Pattern } from '../core/loop/patterns.ts'
import { type GovernorHeaders, isGone, replyFailure } from '../http/response.ts'
import {
  type AnswerClock,
  type Failure,
  type InFlight,
  type Receiver,
  send,
  type UpstreamCall,
} from '../http/upstream.ts'
import type { Outcome, RequestEnded, VerdictName } from '../telemetry/event.ts'
import type { Route } from './route.ts'
import type { Services } from './services.ts'

/** What the log says of the decision on a request. */
export type DecisionFacts = Pick<
  RequestEnded,
  'observed' | 'session' | 'iteration' | 'maxIterations' | 'verdict' | 'tier' | 'loop' | 'isRetry'
>

export interface Exchange {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly route: Route
  /** Returns true once the client has left: nothing needs to be sent any more. */
  isClientGone(): boolean
  /** Calls the upstream; returns a function that aborts the call. The client's leaving aborts it too. */
  call(call: UpstreamCall, receiver: Receiver): () => void
  /** The last byte of the request was read: the overhead that Governor adds is measured from here. */
  noteBodyRead(): void
  decided(facts: DecisionFacts): void
  /** Changes the verdict in the log, where a request ended otherwise than it was decided on. */
  noteOutcome(verdict: VerdictName, loop?: Pattern): void
  /** The client may not use the upstream. */
  noteRefused(): void
  /** Answers the client with an error, or breaks off a response that has begun. Does nothing once the client has left. */
  fail(failure: Failure, governorHeaders?: GovernorHeaders): void
  /** Returns the same exchange with another way to call the upstream. */
  sendingBy(call: Exchange['call']): Exchange
}

/** Sees every response of the upstream first. */
export interface Watch {
  /** Returns a receiver that stands in front of another. `send` calls the upstream again. */
  watch(
    call: UpstreamCall,
    receiver: Receiver,
    send: (call: UpstreamCall, receiver: Receiver) => void,
  ): Receiver
}

type ExchangeServices = Pick<Services, 'transport' | 'emit' | 'isCut'>

/** What is known of an exchange so far; times in milliseconds of `performance.now()`, 0 for what has not happened. */
interface ExchangeState {
  readonly services: ExchangeServices
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly route: Route
  readonly watch: Watch | undefined
  readonly beganAt: number
  bodyReadAt: number
  calledAt: number
  upstreamMs: number | undefined
  overheadMs: number | undefined
  inFlight: InFlight | undefined
  isClientGone: boolean
  isOver: boolean
  outcome: Outcome
  failure: Failure | undefined
  decided: DecisionFacts | undefined
}

/** Node does not tell a response that waits behind others on its connection when that connection ends. */
function closeWithConnection({ socket }: IncomingMessage, response: ServerResponse, close: () => void): void {
  // A client chooses how many requests it sends at once.
  socket.setMaxListeners(0)
  socket.once('close', close)
  response.once('close', () => socket.off('close', close))
}

/** The log's account of a request that is over. */
function requestEnded(state: ExchangeState): RequestEnded {
  const { request, response, route, decided, failure } = state
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
    observed: decided?.observed,
    session: decided?.session,
    iteration: decided?.iteration,
    maxIterations: decided?.maxIterations,
    verdict: decided?.verdict,
    tier: decided?.tier,
    loop: decided?.loop,
    isRetry: decided?.isRetry,
    failure: failure?.code,
    failureDetail: failure?.detail,
  }
}

function end(state: ExchangeState): void {
  if (state.isOver) return
  state.isOver = true
  if (isGone(state.response)) {
    state.isClientGone = true
    if (state.outcome === 'completed') state.outcome = state.services.isCut() ? 'drained' : 'client_gone'
    state.inFlight?.abort()
  }
  state.inFlight = undefined
  state.services.emit(requestEnded(state))
}

function callUpstream(
  state: ExchangeState,
  clock: AnswerClock,
  call: UpstreamCall,
  receiver: Receiver,
): () => void {
  if (state.calledAt === 0) {
    state.calledAt = performance.now()
    if (state.bodyReadAt > 0) state.overheadMs = state.calledAt - state.bodyReadAt
  }
  let inFlight: InFlight | undefined
  const sendTo = (one: UpstreamCall, to: Receiver): void => {
    inFlight = send(state.services.transport, one, to, clock)
    state.inFlight = inFlight
    if (state.isClientGone) inFlight.abort()
  }
  sendTo(call, state.watch ? state.watch.watch(call, receiver, sendTo) : receiver)
  return () => inFlight?.abort()
}

function fail(state: ExchangeState, failure: Failure, governorHeaders?: GovernorHeaders): void {
  if (state.isClientGone) return
  state.outcome = 'upstream_failed'
  state.failure = failure
  const body = state.route.api.errorBody('no_response', failure.message, failure.code)
  replyFailure(state.request, state.response, failure.status, body, governorHeaders)
}

/** Begins the account of a request. Its `request_ended` event is emitted when the response closes, finished or not. */
export function beginExchange(
  services: ExchangeServices,
  request: IncomingMessage,
  response: ServerResponse,
  route: Route,
  watch?: Watch,
): Exchange {
  const state: ExchangeState = {
    services,
    request,
    response,
    route,
    watch,
    beganAt: performance.now(),
    bodyReadAt: 0,
    calledAt: 0,
    upstreamMs: undefined,
    overheadMs: undefined,
    inFlight: undefined,
    isClientGone: false,
    isOver: false,
    outcome: 'completed',
    failure: undefined,
    decided: undefined,
  }
  services.emit({ kind: 'request_began' })
  const close = () => end(state)
  response.on('close', close)
  if (!response.socket) closeWithConnection(request, response, close)
  const clock: AnswerClock = {
    answerBegins() {
      state.upstreamMs = performance.now() - state.calledAt
    },
  }
  const exchange: Exchange = {
    request,
    response,
    route,
    isClientGone: () => state.isClientGone,
    call: (call, receiver) => callUpstream(state, clock, call, receiver),
    noteBodyRead() {
      state.bodyReadAt = performance.now()
    },
    decided(facts) {
      state.decided = facts
    },
    noteOutcome(verdict, loop = state.decided?.loop) {
      state.decided = { ...state.decided, verdict, loop }
    },
    noteRefused() {
      state.outcome = 'refused'
    },
    fail: (failure, governorHeaders) => fail(state, failure, governorHeaders),
    sendingBy: (call) => ({ ...exchange, call }),
  }
  return exchange
}
