/** One request's way through Governor: where its client is, what is under way for it, what will be told about it. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Tier } from '../core/budget/tiers.ts'
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
import type { Outcome, VerdictName } from '../telemetry/event.ts'
import type { Evaluation } from './evaluate.ts'
import type { Route } from './route.ts'
import type { Services } from './services.ts'

/** What a request was judged to be, as it is told when it is over. */
export interface DecisionFacts {
  readonly session: string | undefined
  readonly iteration: number | undefined
  readonly maxIterations: number | undefined
  readonly decision: VerdictName | undefined
  readonly tier: Tier | undefined
  readonly loop: Pattern | undefined
  readonly isRetry: boolean | undefined
}

const NOT_DECIDED: DecisionFacts = {
  session: undefined,
  iteration: undefined,
  maxIterations: undefined,
  decision: undefined,
  tier: undefined,
  loop: undefined,
  isRetry: undefined,
}

export interface Exchange {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly route: Route
  /** The client has left: nothing needs to be sent any more. */
  isClientGone(): boolean
  /** Calls the upstream; returns the way to call it off, which the client's leaving does as well. */
  call(call: UpstreamCall, receiver: Receiver): () => void
  /** The last byte of the request was read: from here on time is Governor's own. */
  noteBodyRead(): void
  decided(facts: DecisionFacts): void
  /** What became of the request in the end is another verdict than it was judged to. */
  noteOutcome(decision: VerdictName, loop?: Pattern): void
  /** The client may not use the upstream. */
  noteRefused(): void
  /** Tells the client that there is no answer, and why. */
  fail(failure: Failure, governorHeaders?: GovernorHeaders): void
  /** The same trip whose calls go another way. */
  sendingBy(call: Exchange['call']): Exchange
}

/** Stands before whatever takes the responses of the upstream. */
export interface Watch {
  /** Puts itself before a receiver. `send` calls the upstream again. */
  watch(
    call: UpstreamCall,
    receiver: Receiver,
    send: (call: UpstreamCall, receiver: Receiver) => void,
  ): Receiver
}

/** A response that waits for those before it on its connection is told nothing by Node when that ends. */
function closeWithConnection({ socket }: IncomingMessage, response: ServerResponse, close: () => void): void {
  // As many wait as the client chose to send at once.
  socket.setMaxListeners(0)
  socket.once('close', close)
  response.once('close', () => socket.off('close', close))
}

type ExchangeServices = Pick<Services, 'transport' | 'emit' | 'isCut'>

class RequestExchange implements Exchange, AnswerClock {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly route: Route
  readonly #services: ExchangeServices
  readonly #watch: Watch | undefined
  readonly #began = performance.now()
  #bodyReadAt = 0
  #calledAt = 0
  #upstreamMs: number | undefined
  #overheadMs: number | undefined
  #underWay: InFlight | undefined
  #isClientGone = false
  #isOver = false
  #outcome: Outcome = 'completed'
  #failure: Failure | undefined
  #decided: DecisionFacts = NOT_DECIDED

  constructor(
    services: ExchangeServices,
    request: IncomingMessage,
    response: ServerResponse,
    route: Route,
    watch: Watch | undefined,
  ) {
    this.request = request
    this.response = response
    this.route = route
    this.#services = services
    this.#watch = watch
    services.emit({ kind: 'request_began' })
    const close = () => this.#close()
    response.on('close', close)
    if (!response.socket) closeWithConnection(request, response, close)
  }

  #close(): void {
    if (this.#isOver) return
    this.#isOver = true
    const { request, response, route } = this
    if (isGone(response)) {
      this.#isClientGone = true
      if (this.#outcome === 'completed') this.#outcome = this.#services.isCut() ? 'drained' : 'client_gone'
      this.#underWay?.abort()
    }
    this.#underWay = undefined
    const judged = this.#decided
    this.#services.emit({
      kind: 'request_ended',
      upstream: route.upstream.name,
      dialect: route.dialect?.name ?? 'none',
      method: request.method ?? '',
      path: route.asked,
      status: response.headersSent ? response.statusCode : 0,
      outcome: this.#outcome,
      totalMs: performance.now() - this.#began,
      upstreamMs: this.#upstreamMs,
      overheadMs: this.#overheadMs,
      session: judged.session,
      iteration: judged.iteration,
      maxIterations: judged.maxIterations,
      verdict: judged.decision,
      tier: judged.tier,
      loop: judged.loop,
      isRetry: judged.isRetry,
      failure: this.#failure?.code,
      failureDetail: this.#failure?.detail,
    })
  }

  isClientGone(): boolean {
    return this.#isClientGone
  }

  noteBodyRead(): void {
    this.#bodyReadAt = performance.now()
  }

  decided(facts: DecisionFacts): void {
    this.#decided = facts
  }

  noteOutcome(decision: VerdictName, loop = this.#decided.loop): void {
    this.#decided = { ...this.#decided, decision, loop }
  }

  call(call: UpstreamCall, receiver: Receiver): () => void {
    if (this.#calledAt === 0) {
      this.#calledAt = performance.now()
      if (this.#bodyReadAt > 0) this.#overheadMs = this.#calledAt - this.#bodyReadAt
    }
    let underWay: InFlight | undefined
    const sendTo = (one: UpstreamCall, to: Receiver): void => {
      underWay = send(this.#services.transport, one, to, this)
      this.#underWay = underWay
      if (this.#isClientGone) underWay.abort()
    }
    sendTo(call, this.#watch ? this.#watch.watch(call, receiver, sendTo) : receiver)
    return () => underWay?.abort()
  }

  answerBegins(): void {
    this.#upstreamMs = performance.now() - this.#calledAt
  }

  noteRefused(): void {
    this.#outcome = 'refused'
  }

  fail(failure: Failure, governorHeaders?: GovernorHeaders): void {
    if (this.#isClientGone) return
    this.#outcome = 'upstream_failed'
    this.#failure = failure
    const body = this.route.api.errorBody('no_response', failure.message, failure.code)
    replyFailure(this.request, this.response, failure.status, body, governorHeaders)
  }

  sendingBy(call: Exchange['call']): Exchange {
    return {
      request: this.request,
      response: this.response,
      route: this.route,
      isClientGone: () => this.isClientGone(),
      noteBodyRead: () => this.noteBodyRead(),
      decided: (facts) => this.decided(facts),
      noteOutcome: (decision, loop) => this.noteOutcome(decision, loop),
      noteRefused: () => this.noteRefused(),
      fail: (failure, governorHeaders) => this.fail(failure, governorHeaders),
      sendingBy: (by) => this.sendingBy(by),
      call,
    }
  }
}

export function beginExchange(
  services: ExchangeServices,
  request: IncomingMessage,
  response: ServerResponse,
  route: Route,
  watch?: Watch,
): Exchange {
  return new RequestExchange(services, request, response, route, watch)
}

/** What a judgement adds to the response headers and to the log. */
export function noteEvaluation(exchange: Exchange, evaluation: Evaluation): GovernorHeaders {
  const { runState, policy, decision, sessionId } = evaluation
  const { loop } = runState
  const max = policy.enabled ? policy.run.iterations : 0
  const iteration = max > 0 ? Math.min(runState.iteration, max) : runState.iteration
  const { verdict, speech } = decision
  const tier = verdict === 'warn' ? speech?.tier : undefined
  exchange.decided({
    session: sessionId,
    iteration,
    maxIterations: max > 0 ? max : undefined,
    decision: verdict,
    tier,
    loop: loop?.pattern,
    isRetry: runState.isRetry,
  })
  return {
    'x-governor-iteration': max > 0 ? `${iteration}/${max}` : String(iteration),
    'x-governor-verdict': verdict,
    'x-governor-session': sessionId,
    'x-governor-tier': tier,
    'x-governor-repeat': runState.resendCount === undefined ? undefined : String(runState.resendCount),
    'x-governor-loop': loop ? `${loop.pattern};count=${loop.count}` : undefined,
  }
}
