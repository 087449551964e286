/** What becomes of a request after it was counted: an answer, none, or the last one of its run. */

import type { BlockDecision, LoopState } from '../loop/observe.ts'
import type { FinalAnswer } from '../terminal.ts'
import { addCall, type CallUsage } from '../usage.ts'
import { isLate } from './demands.ts'
import type { ErrorStreak } from './error-streak.ts'
import {
  type Changed,
  type FirstAnswer,
  type Run,
  type RunState,
  type Session,
  type Thread,
  usedBy,
  usedIn,
} from './session.ts'
import { NO_STOP_ATTEMPTS, type StopAttempts } from './stop-attempts.ts'
import { retryOf } from './thread.ts'

/** How many responses of a thread are remembered by id. */
const MAX_RESPONSES = 8

/** A request that was counted: its bytes, and the name of its thread. */
export interface CountedRequest {
  readonly fingerprint: string
  readonly thread: string
}

/** Where the thread is that a request was counted in; -1 where the session has forgotten it. */
function placeOf({ threads }: Session, request: CountedRequest): number {
  for (let at = threads.length - 1; at >= 0; at--) {
    const thread = threads[at]
    if (thread && thread.name === request.thread && retryOf(thread.run, request)) return at
  }
  return -1
}

function withThreadAt(threads: readonly Thread[], at: number, thread: Thread): readonly Thread[] {
  return threads.length === 1 ? [thread] : threads.with(at, thread)
}

/** Changes the thread that a request was counted in; a session that has forgotten it stays as it is. */
function changeThread(
  session: Session,
  request: CountedRequest,
  change: (thread: Thread) => Thread,
): Session {
  const at = placeOf(session, request)
  const thread = session.threads[at]
  return thread ? { ...session, threads: withThreadAt(session.threads, at, change(thread)) } : session
}

function changeRun(session: Session, request: CountedRequest, change: (run: Run) => Run): Session {
  return changeThread(session, request, (thread) => ({ ...thread, run: change(thread.run) }))
}

/** What the answer to a counted request brought. */
export interface AnswerFacts {
  readonly usage: CallUsage
  /** Ids by which the client may go on from it. */
  readonly ids: readonly string[]
  /** How long the request was. */
  readonly requestBytes: number
  /** Does it call nothing? Unset where that is not known. */
  readonly callsNothing?: boolean | undefined
  /** Takes in, for the loop guard, what it called. */
  readonly follow?: ((loopState: LoopState) => LoopState) | undefined
}

/** The newest names, each once. */
function withNames(
  known: readonly string[] | undefined,
  names: readonly string[],
): readonly string[] | undefined {
  if (names.length === 0) return known
  return [...new Set([...(known ?? []), ...names])].slice(-MAX_RESPONSES)
}

/** Of an answer that comes late, to a request before the newest, the run's end is not seen. */
function isAnsweredBy(run: Run, request: CountedRequest, callsNothing: boolean | undefined) {
  const isNewest = run.recentRequests.at(-1)?.fingerprint === request.fingerprint
  return callsNothing === undefined || !isNewest ? run.isAnswered : callsNothing
}

/** A thread with what an answer in it brought; written out, as every request comes by here. */
function withAnswer(thread: Thread, request: CountedRequest, facts: AnswerFacts): Thread {
  const { run, loopState } = thread
  const { usage, ids, requestBytes, follow, callsNothing } = facts
  return {
    name: thread.name,
    system: thread.system,
    userMessageHashes: thread.userMessageHashes,
    userMessageCount: thread.userMessageCount,
    assistantHashes: thread.assistantHashes,
    unansweredStarts: thread.unansweredStarts,
    run: {
      startedAt: run.startedAt,
      askedAt: run.askedAt,
      iteration: run.iteration,
      toolCalls: run.toolCalls,
      recentRequests: run.recentRequests,
      usage: addCall(run.usage, usage),
      isWarned: run.isWarned,
      wasIgnored: run.wasIgnored,
      isAnswered: isAnsweredBy(run, request, callsNothing),
      finalAnswer: run.finalAnswer,
      stopTries: run.stopTries,
      demands: run.demands,
    },
    responses: withNames(thread.responses, ids),
    // Of the window only what a provider states is said.
    context:
      usage.estimated || usage.input === 0
        ? thread.context
        : { tokens: usage.input + usage.output, requestBytes },
    continuedFrom: thread.continuedFrom,
    errors: thread.errors,
    loopState: follow && loopState ? follow(loopState) : loopState,
    noticeSent: thread.noticeSent,
    dropsThinking: thread.dropsThinking,
  }
}

/** Records what an answer took and how it is called; the session's sum also holds what came of runs that are over. */
export function noteAnswer(session: Session, request: CountedRequest, facts: AnswerFacts): Session {
  const { threads, usage, totals, forgotten, contexts } = session
  const at = placeOf(session, request)
  const before = threads[at]
  const thread = before && withAnswer(before, request, facts)
  // In its first run a session has used what the run has: one sum for both.
  const isOneSum = thread !== undefined && before?.run.usage === usage
  return {
    threads: thread ? withThreadAt(threads, at, thread) : threads,
    usage: isOneSum ? thread.run.usage : addCall(usage, facts.usage),
    totals,
    forgotten,
    contexts,
  }
}

/** The answer has begun and is known by these ids: a client may go on from it before it is over. */
export function responseBegan(session: Session, request: CountedRequest, ids: readonly string[]): Session {
  return changeThread(session, request, (thread) => ({
    ...thread,
    responses: withNames(thread.responses, ids),
  }))
}

/** A sending of a request's bytes was answered to the end; where not `isWhole`, the first one was not. */
export function noteDelivery(session: Session, request: CountedRequest, isWhole: boolean): Session {
  return changeRun(session, request, (run) => ({
    ...run,
    recentRequests: run.recentRequests.map((one) =>
      one.fingerprint === request.fingerprint
        ? { ...one, answered: isWhole ? (one.answered ?? 1) + 1 : 0 }
        : one,
    ),
  }))
}

/** The model was told that its budget is nearly used up. */
export function noteWarning(session: Session, request: CountedRequest): Session {
  return changeRun(session, request, (run) => ({ ...run, isWarned: true }))
}

/** Governor has said or taken out something that the client's history does not show. */
export function noteInjected(session: Session, request: CountedRequest): Session {
  return changeThread(session, request, (thread) => ({ ...thread, noticeSent: true }))
}

/** From here on the provider is to leave out reasoning that was made for another prompt. */
export function dropBoundThinking(session: Session, request: CountedRequest): Session {
  return changeThread(session, request, (thread) => ({ ...thread, dropsThinking: true }))
}

/** The model called nothing after it was warned; the next request need not be looked at for it. */
export function noteAcknowledged(session: Session, request: CountedRequest): Session {
  const after = changeRun(session, request, (run) => ({ ...run, isWarned: false, wasIgnored: false }))
  const { totals } = after
  return totals ? { ...after, totals: { ...totals, acknowledged: totals.acknowledged + 1 } } : after
}

/** Nothing is refused where nothing is known. */
const NONE: BlockDecision = { blocked: [], endsRun: false }

/** Lets `judge` see what the loop guard knows of the thread that a request was counted in, and change it. */
export function blockIn(
  session: Session,
  request: CountedRequest,
  decide: (loopState: LoopState) => { readonly loopState: LoopState; readonly decision: BlockDecision },
): Changed<BlockDecision> {
  const at = placeOf(session, request)
  const thread = session.threads[at]
  if (!thread?.loopState) return { session, result: NONE }
  const { loopState, decision } = decide(thread.loopState)
  return {
    session: { ...session, threads: withThreadAt(session.threads, at, { ...thread, loopState }) },
    result: decision,
  }
}

/**
 * The provider did not answer: the iteration was not used, and whatever the agent sends next takes its number.
 */
export function releaseIteration(session: Session, request: CountedRequest): Session {
  let isGiven = false
  const after = changeThread(session, request, (thread) => {
    const { run, unansweredStarts = 0 } = thread
    const given = retryOf(run, request)?.iteration
    isGiven = given === run.iteration && (!run.finalAnswer || isLate(run.demands, request.fingerprint))
    const isStart = unansweredStarts > 0 && thread.assistantHashes.length === 0
    return {
      ...thread,
      unansweredStarts: isStart ? unansweredStarts - 1 : unansweredStarts,
      run: given === run.iteration ? { ...run, iteration: run.iteration - 1 } : run,
    }
  })
  return isGiven ? uncounted(after) : after
}

/** Takes one iteration out of the session's sum. */
function uncounted(session: Session): Session {
  return session.totals?.iterations === 0 ? session : withIterations(session, -1)
}

function withIterations(session: Session, more: number): Session {
  const { totals } = session
  return totals ? { ...session, totals: { ...totals, iterations: totals.iterations + more } } : session
}

/** Records the answer that ended the run of a request; until a human speaks, the run gets it again. */
export function endRun(session: Session, request: CountedRequest, answer: FinalAnswer): Session {
  let isFirst = false
  const after = changeRun(session, request, (run) => {
    isFirst = run.finalAnswer === undefined
    return { ...run, finalAnswer: answer }
  })
  // The request for it was one more than there may be, and is none of the session's iterations.
  return isFirst ? uncounted(after) : after
}

/** Takes note of what became of the request for a run's last answer, where that is not recorded. */
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
 * A run that was over goes on with its newest request, as the limit was raised since. From here on it counts again; what
 * is sent again from before its end changes nothing.
 */
export function resumeRun(session: Session, request: CountedRequest): Session {
  let wasOver = false
  const after = changeRun(session, request, (run) => {
    wasOver = run.finalAnswer !== undefined && retryOf(run, request)?.iteration === run.iteration
    return wasOver ? { ...run, finalAnswer: undefined } : run
  })
  return wasOver ? withIterations(after, 1) : after
}

/** Gives a session that has just got its name the answer that it began with. */
export function adoptFirst(
  session: Session,
  request: CountedRequest,
  runState: RunState,
  { askedAt, usage }: FirstAnswer,
  now: number,
): Changed<RunState> {
  let { run } = runState
  const changed = changeRun(session, request, (before) => {
    const after: Run = { ...before, startedAt: askedAt, usage: addCall(before.usage, usage) }
    run = usedBy(after, now, run.iterations)
    return after
  })
  const { totals } = changed
  const after: Session = {
    ...changed,
    usage: addCall(session.usage, usage),
    ...(totals ? { totals: { ...totals, startedAt: askedAt } } : {}),
  }
  return { session: after, result: { ...runState, run, session: usedIn(after, now) } }
}

/** Changes the errors in a row of the thread that a request was counted in. */
export function changeErrors(
  session: Session,
  request: CountedRequest,
  change: (errors: readonly ErrorStreak[]) => readonly ErrorStreak[],
): Session {
  return changeThread(session, request, (thread) => {
    const errors = change(thread.errors ?? [])
    return { ...thread, errors: errors.length === 0 ? undefined : errors }
  })
}
