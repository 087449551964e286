/** One request's way through Governor: where its client is, what is under way for it, what will be told about it. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Tier } from '../core/budget/tiers.ts'
import type { Pattern } from '../core/loop/patterns.ts'
import { isGone, type OwnHeaders, replyFailure } from '../http/response.ts'
import {
  type AnswerClock,
  type Failure,
  type Receiver,
  send,
  type UnderWay,
  type UpstreamCall,
} from '../http/upstream.ts'
import type { Outcome, VerdictName } from '../telemetry/event.ts'
import type { Judgement } from './evaluate.ts'
import type { Route } from './route.ts'
import type { ProxyContext } from './services.ts'

/** What a request was judged to be, as it is told when it is over. */
export interface JudgedFacts {
  readonly session: string | undefined
  readonly iteration: number | undefined
  readonly maxIterations: number | undefined
  readonly verdict: VerdictName | undefined
  readonly tier: Tier | undefined
  readonly loop: Pattern | undefined
  readonly isRetry: boolean | undefined
}

const UNJUDGED: JudgedFacts = {
  session: undefined,
  iteration: undefined,
  maxIterations: undefined,
  verdict: undefined,
  tier: undefined,
  loop: undefined,
  isRetry: undefined,
}

export interface Trip {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly route: Route
  /** The client has left: nothing needs to be sent any more. */
  isClientGone(): boolean
  /** Calls the upstream; returns the way to call it off, which the client's leaving does as well. */
  call(call: UpstreamCall, receiver: Receiver): () => void
  /** The last byte of the request was read: from here on time is Governor's own. */
  bodyRead(): void
  judged(facts: JudgedFacts): void
  /** What became of the request in the end is another verdict than it was judged to. */
  ended(verdict: VerdictName, loop?: Pattern): void
  /** The client may not use the upstream. */
  refused(): void
  /** Tells the client that there is no answer, and why. */
  fail(failure: Failure, own?: OwnHeaders): void
  /** The same trip whose calls go another way. */
  sendingBy(call: Trip['call']): Trip
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

type TripContext = Pick<ProxyContext, 'transport' | 'emit' | 'isCut'>

class RequestTrip implements Trip, AnswerClock {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly route: Route
  readonly #context: TripContext
  readonly #watch: Watch | undefined
  readonly #began = performance.now()
  #bodyReadAt = 0
  #calledAt = 0
  #upstreamMs: number | undefined
  #overheadMs: number | undefined
  #underWay: UnderWay | undefined
  #isClientGone = false
  #isOver = false
  #outcome: Outcome = 'completed'
  #failure: Failure | undefined
  #judged: JudgedFacts = UNJUDGED

  constructor(
    context: TripContext,
    request: IncomingMessage,
    response: ServerResponse,
    route: Route,
    watch: Watch | undefined,
  ) {
    this.request = request
    this.response = response
    this.route = route
    this.#context = context
    this.#watch = watch
    context.emit({ kind: 'request_began' })
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
      if (this.#outcome === 'completed') this.#outcome = this.#context.isCut() ? 'drained' : 'client_gone'
      this.#underWay?.callOff()
    }
    this.#underWay = undefined
    const judged = this.#judged
    this.#context.emit({
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
      verdict: judged.verdict,
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

  bodyRead(): void {
    this.#bodyReadAt = performance.now()
  }

  judged(facts: JudgedFacts): void {
    this.#judged = facts
  }

  ended(verdict: VerdictName, loop = this.#judged.loop): void {
    this.#judged = { ...this.#judged, verdict, loop }
  }

  call(call: UpstreamCall, receiver: Receiver): () => void {
    if (this.#calledAt === 0) {
      this.#calledAt = performance.now()
      if (this.#bodyReadAt > 0) this.#overheadMs = this.#calledAt - this.#bodyReadAt
    }
    let underWay: UnderWay | undefined
    const sendTo = (one: UpstreamCall, to: Receiver): void => {
      underWay = send(this.#context.transport, one, to, this)
      this.#underWay = underWay
      if (this.#isClientGone) underWay.callOff()
    }
    sendTo(call, this.#watch ? this.#watch.watch(call, receiver, sendTo) : receiver)
    return () => underWay?.callOff()
  }

  answerBegins(): void {
    this.#upstreamMs = performance.now() - this.#calledAt
  }

  refused(): void {
    this.#outcome = 'refused'
  }

  fail(failure: Failure, own?: OwnHeaders): void {
    if (this.#isClientGone) return
    this.#outcome = 'upstream_failed'
    this.#failure = failure
    replyFailure(this.request, this.response, failure, this.route.speaksAnthropic, own)
  }

  sendingBy(call: Trip['call']): Trip {
    return {
      request: this.request,
      response: this.response,
      route: this.route,
      isClientGone: () => this.isClientGone(),
      bodyRead: () => this.bodyRead(),
      judged: (facts) => this.judged(facts),
      ended: (verdict, loop) => this.ended(verdict, loop),
      refused: () => this.refused(),
      fail: (failure, own) => this.fail(failure, own),
      sendingBy: (by) => this.sendingBy(by),
      call,
    }
  }
}

export function beginTrip(
  context: TripContext,
  request: IncomingMessage,
  response: ServerResponse,
  route: Route,
  watch?: Watch,
): Trip {
  return new RequestTrip(context, request, response, route, watch)
}

/** The verdict as clients are told it. */
function verdictName(judgement: Judgement): VerdictName {
  const { kind } = judgement.verdict
  // An agent that asks for its last answer itself is told nothing.
  if (kind === 'warn' && judgement.endsItself) return 'allow'
  return kind === 'repeat' ? 'stop' : kind
}

/** What a judgement adds to the response headers and to the log. */
export function noteJudgement(trip: Trip, judgement: Judgement): OwnHeaders {
  const { position, policy, verdict, sessionId } = judgement
  const { loop } = position
  const max = policy.enabled ? policy.run.iterations : 0
  const iteration = max > 0 ? Math.min(position.iteration, max) : position.iteration
  const tier = verdict.kind === 'warn' && !judgement.endsItself ? verdict.tier : undefined
  const name = verdictName(judgement)
  trip.judged({
    session: sessionId,
    iteration,
    maxIterations: max > 0 ? max : undefined,
    verdict: name,
    tier,
    loop: loop?.pattern,
    isRetry: position.isRetry,
  })
  return {
    'x-governor-iteration': max > 0 ? `${iteration}/${max}` : String(iteration),
    'x-governor-verdict': name,
    'x-governor-session': sessionId,
    'x-governor-tier': tier,
    'x-governor-repeat': position.repeat === undefined ? undefined : String(position.repeat),
    'x-governor-loop': loop ? `${loop.pattern};count=${loop.count}` : undefined,
  }
}
