/** One request's way through Governor: where its client is, what is under way for it, what will be told about it. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Dispatcher } from 'undici'
import type { Emit, Outcome, RequestEnded, VerdictName } from '../telemetry/event.ts'
import type { Judgement } from './judge.ts'
import { isGone, type OwnHeaders, replyFailure } from './reply.ts'
import { pathOf, type Route } from './route.ts'
import { type Failure, type Receiver, send, type UpstreamCall } from './upstream.ts'

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
  /** Notes what is told about the request when it is over. */
  note(facts: Partial<RequestEnded>): void
  /** Tells the client that there is no answer, and why. */
  fail(failure: Failure, own?: OwnHeaders): void
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

export function beginTrip(
  transport: Dispatcher,
  emit: Emit,
  request: IncomingMessage,
  response: ServerResponse,
  route: Route,
  watch?: Watch,
): Trip {
  const began = performance.now()
  let isClientGone = false
  let callOff: (() => void) | undefined
  let outcome: Outcome = 'completed'
  let bodyReadAt: number | undefined
  let calledAt: number | undefined
  const facts: Partial<RequestEnded> = {}
  emit({ kind: 'request_began' })
  response.once('close', () => {
    if (isGone(response)) {
      isClientGone = true
      if (outcome === 'completed') outcome = 'client_gone'
      callOff?.()
    }
    callOff = undefined
    emit({
      kind: 'request_ended',
      upstream: route.upstream.name,
      dialect: route.dialect?.name ?? 'none',
      method: request.method ?? '',
      path: pathOf(request.url ?? '').split('?', 1)[0] ?? '',
      status: response.headersSent ? response.statusCode : 0,
      outcome,
      totalMs: performance.now() - began,
      ...facts,
    })
  })
  const note = (more: Partial<RequestEnded>) => {
    Object.assign(facts, more)
  }
  return {
    request,
    response,
    route,
    isClientGone: () => isClientGone,
    bodyRead() {
      bodyReadAt = performance.now()
    },
    note,
    call(call, receiver) {
      const now = performance.now()
      if (calledAt === undefined && bodyReadAt !== undefined) note({ overheadMs: now - bodyReadAt })
      calledAt ??= now
      const since = calledAt
      let off = () => {}
      const sendTo = (one: UpstreamCall, to: Receiver): void => {
        off = send(transport, one, {
          inform: (head) => to.inform?.(head),
          start(head, flow) {
            note({ upstreamMs: performance.now() - since })
            to.start(head, flow)
          },
          data: (chunk) => to.data(chunk),
          end: (trailers) => to.end(trailers),
          fail: (failure) => to.fail(failure),
        })
        callOff = off
        if (isClientGone) off()
      }
      sendTo(call, watch ? watch.watch(call, receiver, sendTo) : receiver)
      return () => off()
    },
    fail(failure, own) {
      if (isClientGone) return
      outcome = 'upstream_failed'
      note({ failure: failure.code })
      replyFailure(request, response, failure, route.speaksAnthropic, own)
    },
  }
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
  trip.note({
    iteration,
    verdict: verdictName(judgement),
    isRetry: position.isRetry,
    ...(max > 0 ? { maxIterations: max } : {}),
    ...(sessionId === undefined ? {} : { session: sessionId }),
    ...(tier ? { tier } : {}),
    ...(loop ? { loop: loop.pattern } : {}),
  })
  return {
    'x-governor-iteration': max > 0 ? `${iteration}/${max}` : String(iteration),
    'x-governor-verdict': verdictName(judgement),
    ...(sessionId === undefined ? {} : { 'x-governor-session': sessionId }),
    ...(tier ? { 'x-governor-tier': tier } : {}),
    ...(loop ? { 'x-governor-loop': `${loop.pattern};count=${loop.count}` } : {}),
  }
}

/** The kind of an error and the place it came from, without its message. */
export function faultOf(error: Error): string {
  const place = error.stack?.split('\n').find((line) => line.trimStart().startsWith('at '))
  return `${error.name} ${place?.trim() ?? ''}`.trim()
}
