/** What becomes of a request after it was counted: an answer, none, or the last one of its run. */

import type { Guarded, Refused } from '../loop/observe.ts'
import type { FinalAnswer } from '../terminal.ts'
import { addCall, type CallUsage } from '../usage.ts'
import { isLate } from './demands.ts'
import type { ErrorStreak } from './error-streak.ts'
import {
  type FirstAnswer,
  type Position,
  type Run,
  type Session,
  type Thread,
  usedBy,
  usedIn,
} from './session.ts'
import { NO_TRIES, type StopTries } from './stop-attempts.ts'
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
  readonly follow?: ((guarded: Guarded) => Guarded) | undefined
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
  const isNewest = run.seen.at(-1)?.fingerprint === request.fingerprint
  return callsNothing === undefined || !isNewest ? run.isAnswered : callsNothing
}

/** A thread with what an answer in it brought; written out, as every request comes by here. */
function withAnswer(thread: Thread, request: CountedRequest, facts: AnswerFacts): Thread {
  const { run, guarded } = thread
  const { usage, ids, requestBytes, follow, callsNothing } = facts
  return {
    name: thread.name,
    system: thread.system,
    humans: thread.humans,
    humanCount: thread.humanCount,
    ancestry: thread.ancestry,
    starts: thread.starts,
    run: {
      startedAt: run.startedAt,
      askedAt: run.askedAt,
      iteration: run.iteration,
      toolCalls: run.toolCalls,
      seen: run.seen,
      usage: addCall(run.usage, usage),
      isWarned: run.isWarned,
      wasIgnored: run.wasIgnored,
      isAnswered: isAnsweredBy(run, request, callsNothing),
      ended: run.ended,
      stopTries: run.stopTries,
      demands: run.demands,
    },
    responses: withNames(thread.responses, ids),
    // Of the window only what a provider states is said.
    context:
      usage.estimated || usage.input === 0
        ? thread.context
        : { tokens: usage.input + usage.output, requestBytes },
    wentOnFrom: thread.wentOnFrom,
    errors: thread.errors,
    guarded: follow && guarded ? follow(guarded) : guarded,
    hasSaid: thread.hasSaid,
    isLoose: thread.isLoose,
  }
}

/** Records what an answer took and how it is called; the session's sum also holds what came of runs that are over. */
export function answered(session: Session, request: CountedRequest, facts: AnswerFacts): Session {
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
export function begun(session: Session, request: CountedRequest, ids: readonly string[]): Session {
  return changeThread(session, request, (thread) => ({
    ...thread,
    responses: withNames(thread.responses, ids),
  }))
}

/** A sending of a request's bytes was answered to the end; where not `isWhole`, the first one was not. */
export function delivered(session: Session, request: CountedRequest, isWhole: boolean): Session {
  return changeRun(session, request, (run) => ({
    ...run,
    seen: run.seen.map((one) =>
      one.fingerprint === request.fingerprint
        ? { ...one, answered: isWhole ? (one.answered ?? 1) + 1 : 0 }
        : one,
    ),
  }))
}

/** The model was told that its budget is nearly used up. */
export function warned(session: Session, request: CountedRequest): Session {
  return changeRun(session, request, (run) => ({ ...run, isWarned: true }))
}

/** Governor has said or taken out something that the client's history does not show. */
export function said(session: Session, request: CountedRequest): Session {
  return changeThread(session, request, (thread) => ({ ...thread, hasSaid: true }))
}

/** From here on the provider is to leave out reasoning that was made for another prompt. */
export function loosen(session: Session, request: CountedRequest): Session {
  return changeThread(session, request, (thread) => ({ ...thread, isLoose: true }))
}

/** The model called nothing after it was warned; the next request need not be looked at for it. */
export function acknowledged(session: Session, request: CountedRequest): Session {
  const after = changeRun(session, request, (run) => ({ ...run, isWarned: false, wasIgnored: false }))
  const { totals } = after
  return totals ? { ...after, totals: { ...totals, acknowledged: totals.acknowledged + 1 } } : after
}

/** Nothing is refused where nothing is known. */
const NONE: Refused = { refusals: [], endsRun: false }

/** Lets `judge` see what the loop guard knows of the thread that a request was counted in, and change it. */
export function refuseIn(
  session: Session,
  request: CountedRequest,
  judge: (guarded: Guarded) => { readonly guarded: Guarded; readonly refused: Refused },
): { session: Session; refused: Refused } {
  const at = placeOf(session, request)
  const thread = session.threads[at]
  if (!thread?.guarded) return { session, refused: NONE }
  const { guarded, refused } = judge(thread.guarded)
  return {
    session: { ...session, threads: withThreadAt(session.threads, at, { ...thread, guarded }) },
    refused,
  }
}

/**
 * The provider did not answer: the iteration was not used, and whatever the agent sends next takes its number.
 */
export function giveBack(session: Session, request: CountedRequest): Session {
  let isGiven = false
  const after = changeThread(session, request, (thread) => {
    const { run, starts = 0 } = thread
    const given = retryOf(run, request)?.iteration
    isGiven = given === run.iteration && (!run.ended || isLate(run.demands, request.fingerprint))
    const isStart = starts > 0 && thread.ancestry.length === 0
    return {
      ...thread,
      starts: isStart ? starts - 1 : starts,
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
export function end(session: Session, request: CountedRequest, answer: FinalAnswer): Session {
  let isFirst = false
  const after = changeRun(session, request, (run) => {
    isFirst = run.ended === undefined
    return { ...run, ended: answer }
  })
  // The request for it was one more than there may be, and is none of the session's iterations.
  return isFirst ? uncounted(after) : after
}

/** Takes note of what became of the request for a run's last answer, where that is not recorded. */
export function triedToStop(
  session: Session,
  request: CountedRequest,
  change: (tries: StopTries | undefined) => StopTries,
): { session: Session; tries: StopTries } {
  let tries = NO_TRIES
  const after = changeRun(session, request, (run) => {
    tries = change(run.stopTries)
    return { ...run, stopTries: tries }
  })
  return { session: after, tries }
}

/**
 * A run that was over goes on with its newest request, as the limit was raised since. From here on it counts again; what
 * is sent again from before its end changes nothing.
 */
export function goOn(session: Session, request: CountedRequest): Session {
  let wasOver = false
  const after = changeRun(session, request, (run) => {
    wasOver = run.ended !== undefined && retryOf(run, request)?.iteration === run.iteration
    return wasOver ? { ...run, ended: undefined } : run
  })
  return wasOver ? withIterations(after, 1) : after
}

/** Gives a session that has just got its name the answer that it began with. */
export function adoptFirst(
  session: Session,
  request: CountedRequest,
  position: Position,
  { askedAt, usage }: FirstAnswer,
  now: number,
): { session: Session; position: Position } {
  let { run } = position
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
  return { session: after, position: { ...position, run, session: usedIn(after, now) } }
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
