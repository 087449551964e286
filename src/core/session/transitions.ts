/** How a session changes after a request was counted: by an answer, by a failure, or by the end of the run. */

import { NO_CONTEXTS, type SessionContexts } from '../context-window.ts'
import { noticeTold, recordCalls } from '../loop/observe.ts'
import type { PendingCall } from '../loop/tool-call.ts'
import { recordAnswer, recordFirst } from '../operator/record-request.ts'
import type { IterationFacts } from '../operator/session-record.ts'
import { type FinalAnswer, REASONS, type Terminal } from '../terminal.ts'
import { addCall, type CallUsage } from '../usage.ts'
import { isLate } from './demands.ts'
import {
  type Changed,
  type FirstAnswer,
  MAX_RESPONSES,
  type Run,
  type RunState,
  type Session,
  type Thread,
  usedBy,
  usedIn,
} from './session.ts'
import { NO_STOP_ATTEMPTS, type StopAttempts } from './stop-attempts.ts'
import { retryOf } from './thread.ts'

/** Identifies a request that was counted: by a hash of its bytes, and by the name of its thread. */
export interface CountedRequest {
  readonly fingerprint: string
  readonly thread: string
}

/** Returns the index of the thread that a request was counted in; -1 if the session has forgotten it. */
function placeOf({ threads }: Session, request: CountedRequest): number {
  for (let at = threads.length - 1; at >= 0; at--) {
    const thread = threads[at]
    if (thread && thread.name === request.thread && retryOf(thread.run, request)) return at
  }
  return -1
}

/** Returns the thread that a request was counted in; `undefined` where the session has forgotten it. */
export function threadOf(session: Session, request: CountedRequest): Thread | undefined {
  return session.threads[placeOf(session, request)]
}

function withThreadAt(threads: readonly Thread[], at: number, thread: Thread): readonly Thread[] {
  return threads.length === 1 ? [thread] : threads.with(at, thread)
}

/** Changes the thread that a request was counted in; a session that has forgotten it stays unchanged. */
export function changeThread(session: Session, request: CountedRequest, change: (thread: Thread) => Thread): Session {
  const at = placeOf(session, request)
  const thread = session.threads[at]
  return thread ? { ...session, threads: withThreadAt(session.threads, at, change(thread)) } : session
}

/** Changes the run that a request was counted in; a session that has forgotten it stays unchanged. */
export function changeRun(session: Session, request: CountedRequest, change: (run: Run) => Run): Session {
  return changeThread(session, request, (thread) => ({ ...thread, run: change(thread.run) }))
}

/** The facts about the answer to a counted request. */
export interface AnswerFacts {
  readonly usage: CallUsage
  /** Ids by which the client may continue from it. */
  readonly ids: readonly string[]
  /** Length of the request. */
  readonly requestBytes: number
  /** The answer calls no tool; unset if that is not known. */
  readonly callsNothing?: boolean | undefined
  /** Its outcome for the record; unset if it is not recorded. */
  readonly iteration?: IterationFacts | undefined
  /** The answer's calls, where their results will come without them. */
  readonly calls?: readonly PendingCall[] | undefined
}

/** Adds ids and keeps the newest, each once. */
function withIds(known: readonly string[] | undefined, ids: readonly string[]): readonly string[] | undefined {
  if (ids.length === 0) return known
  return [...new Set([...(known ?? []), ...ids])].slice(-MAX_RESPONSES)
}

/** Adds an answer to a thread. */
function withAnswer(thread: Thread, request: CountedRequest, facts: AnswerFacts): Thread {
  const { run, loopState } = thread
  const { usage, ids, requestBytes, calls, callsNothing } = facts
  // An answer to a request before the newest does not show whether the run has ended.
  const isNewest = run.recentRequests.at(-1)?.fingerprint === request.fingerprint
  return {
    ...thread,
    run: {
      ...run,
      quietSince: facts.iteration?.endedAt ?? run.quietSince,
      usage: addCall(run.usage, usage),
      isAnswered: isNewest ? (callsNothing ?? run.isAnswered) : run.isAnswered,
      failedAs: undefined,
    },
    responses: withIds(thread.responses, ids),
    // Estimated tokens say too little about the context window.
    context:
      usage.estimated || usage.input === 0 ? thread.context : { tokens: usage.input + usage.output, requestBytes },
    loopState: calls && loopState ? recordCalls(loopState, calls) : loopState,
  }
}

/** Records what an answer used and its ids, in its run and in the session. */
export function noteAnswer(session: Session, request: CountedRequest, facts: AnswerFacts): Session {
  const { threads, usage, record } = session
  const at = placeOf(session, request)
  const before = threads[at]
  const thread = before && withAnswer(before, request, facts)
  // In its first run a session has used what the run has used: both share one sum.
  const isOneSum = thread !== undefined && before?.run.usage === usage
  return {
    ...session,
    threads: thread ? withThreadAt(threads, at, thread) : threads,
    usage: isOneSum ? thread.run.usage : addCall(usage, facts.usage),
    record: recordAnswer(
      record,
      before,
      before && retryOf(before.run, request)?.iteration,
      facts.iteration,
      facts.usage,
    ),
  }
}

/** Records the ids of an answer that has begun: a client may continue from it before it is over. */
export function responseBegan(session: Session, request: CountedRequest, ids: readonly string[]): Session {
  return changeThread(session, request, (thread) => ({
    ...thread,
    responses: withIds(thread.responses, ids),
  }))
}

/** What became of one sending of a request: the client got the whole answer, an error, or left before the end. */
export type Delivery = 'whole' | 'failed' | 'client_left'

/** Records what became of one sending of a request. */
export function noteDelivery(session: Session, request: CountedRequest, delivery: Delivery, isRetry: boolean): Session {
  const isWhole = delivery === 'whole'
  return changeRun(session, request, (run) => ({
    ...run,
    recentRequests: run.recentRequests.map((one) => {
      if (one.fingerprint !== request.fingerprint) return one
      // The first sending counts as answered until it is known not to be.
      const { answered = 1 } = one
      return { ...one, answered: isRetry ? answered + Number(isWhole) : isWhole ? answered : 0 }
    }),
  }))
}

/**
 * Records that the model got the notice of a request. Only then it is a warning that can be ignored; one about a loop
 * counts if no newer request was counted meanwhile. `isWarning`: it warned of the end of the budget.
 */
export function noteTold(session: Session, request: CountedRequest, isWarning: boolean): Session {
  return changeThread(session, request, (thread) => {
    const { run, loopState } = thread
    const isNewest = run.recentRequests.at(-1)?.fingerprint === request.fingerprint
    return {
      ...thread,
      run: isWarning ? { ...run, isWarned: true } : run,
      loopState: loopState && isNewest ? noticeTold(loopState) : loopState,
    }
  })
}

/** Records that Governor injected or removed content that the client's history does not contain. */
export function noteInjected(session: Session, request: CountedRequest): Session {
  return changeThread(session, request, (thread) => ({ ...thread, noticeSent: true }))
}

/** Records that from now on the provider is asked to drop reasoning that belongs to another prompt. */
export function dropBoundThinking(session: Session, request: CountedRequest): Session {
  return changeThread(session, request, (thread) => ({ ...thread, dropsThinking: true }))
}

/** Records that the model called no tool after a warning; the next request is not checked for its reaction. */
export function noteAcknowledged(session: Session, request: CountedRequest): Session {
  const after = changeRun(session, request, (run) => ({ ...run, isWarned: false, wasIgnored: false }))
  const { totals } = after
  return totals ? { ...after, totals: { ...totals, acknowledged: totals.acknowledged + 1 } } : after
}

/** Releases the iteration of a request that the provider did not answer: the agent's next request gets its number. */
export function releaseIteration(
  session: Session,
  request: CountedRequest,
  facts?: IterationFacts,
  failedAs?: Run['failedAs'],
): Session {
  let isGiven = false
  const after = changeThread(session, request, (thread) => {
    const { run } = thread
    const given = retryOf(run, request)?.iteration
    isGiven = given === run.iteration && (!run.finalAnswer || isLate(run.demands, request.fingerprint))
    return {
      ...thread,
      run:
        given === run.iteration
          ? { ...run, failedAs, quietSince: facts?.endedAt ?? run.quietSince, iteration: given - 1 }
          : run,
    }
  })
  const thread = session.threads[placeOf(session, request)]
  const given = thread && retryOf(thread.run, request)?.iteration
  const recorded = { ...after, record: recordAnswer(session.record, thread, given, facts, undefined) }
  return isGiven ? uncounted(recorded) : recorded
}

/** Takes one iteration out of the session's totals. */
function uncounted(session: Session): Session {
  return session.totals?.iterations === 0 ? session : withIterations(session, -1)
}

function withIterations(session: Session, more: number): Session {
  const { totals } = session
  return totals ? { ...session, totals: { ...totals, iterations: totals.iterations + more } } : session
}

/** Records the answer that ended a run; every further request of the run gets it, until the user speaks. */
export function endRun(session: Session, request: CountedRequest, answer: FinalAnswer): Session {
  // A request beyond a limit is no iteration; the loop guard ends a run within one.
  const isBeyond = !REASONS[answer.terminal.terminal_reason].countsLast
  let isFirst = false
  const after = changeRun(session, request, (run) => {
    isFirst = run.finalAnswer === undefined
    const used = usedBy(run, run.askedAt)
    const iterations = Math.max(0, used.iterations - Number(isBeyond))
    const ended = { at: run.askedAt, iterations, toolCalls: used.tool_calls }
    return { ...run, finalAnswer: { ...answer, ended: run.finalAnswer?.ended ?? ended } }
  })
  return isFirst && isBeyond ? uncounted(after) : after
}

/** Records the terminal state that the client got at the end of a run whose answer is not recorded. */
export function noteOwnEnd(session: Session, request: CountedRequest, terminal: Terminal): Session {
  return changeRun(session, request, (run) => ({ ...run, ownEnd: terminal }))
}

/** Records a request for a run's final answer that brought no answer to record; returns all such attempts. */
export function noteStopAttempt(
  session: Session,
  request: CountedRequest,
  change: (tries: StopAttempts | undefined) => StopAttempts,
): Changed<StopAttempts> {
  let tries = NO_STOP_ATTEMPTS
  const after = changeRun(session, request, (run) => {
    tries = change(run.stopTries)
    return { ...run, stopTries: tries }
  })
  return { session: after, result: tries }
}

/**
 * Resumes a run that was over, because its limit was raised: its newest request counts again. A repeated request from
 * before the end changes nothing.
 */
export function resumeRun(session: Session, request: CountedRequest): Session {
  let wasOver = false
  const after = changeRun(session, request, (run) => {
    wasOver = run.finalAnswer !== undefined && retryOf(run, request)?.iteration === run.iteration
    return wasOver ? { ...run, finalAnswer: undefined } : run
  })
  return wasOver ? withIterations(after, 1) : after
}

/** Adds the first answer to a session that has just got its id. */
export function adoptFirst(
  session: Session,
  request: CountedRequest,
  runState: RunState,
  { askedAt, usage, endedAt }: FirstAnswer,
  now: number,
  tools: readonly string[] = [],
): Changed<RunState> {
  let { run, thread } = runState
  const changed = changeThread(session, request, (before) => {
    run = { ...before.run, startedAt: askedAt, usage: addCall(before.run.usage, usage) }
    thread = { ...before, run }
    return thread
  })
  const { totals, record } = changed
  const after: Session = {
    ...changed,
    record: recordFirst(record, thread.number ?? 1, { askedAt, endedAt }, usage, tools),
    usage: addCall(session.usage, usage),
    ...(totals ? { totals: { ...totals, startedAt: askedAt } } : {}),
  }
  const used = usedBy(run, now, runState.used.iterations)
  return { session: after, result: { ...runState, run, thread, used, usedBySession: usedIn(after, now) } }
}

/** Changes the known context windows of the session's models. */
export function changeContexts(
  session: Session,
  _request: CountedRequest,
  change: (contexts: SessionContexts) => SessionContexts,
): Session {
  return { ...session, contexts: change(session.contexts ?? NO_CONTEXTS) }
}
