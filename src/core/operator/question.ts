/** Asks an operator, before a limit stops a run, whether the run may go on. Pure: a store may run each change again. */
import type { LimitName, Meter } from '../budget/meters.ts'
import { addMeters, exhausted } from '../budget/tiers.ts'
import { type Changed, type Session, type Thread, usedBy, usedIn } from '../session/session.ts'
import { type CountedRequest, changeRun, threadOf } from '../session/transitions.ts'
import { limitsInForce } from './operator.ts'
import type { Question } from './operator-settings.ts'

/** A question that a request waits for. */
export interface AskedOperator {
  readonly until: number
  /** Nobody was asked about this limit before. */
  readonly isNew: boolean
}

/** Asks about the limit that a request has reached, or joins that question; `undefined` if the request is forgotten. */
export function askOperator(
  session: Session,
  request: CountedRequest,
  { name: meter, max }: Meter<LimitName>,
  until: number,
): Changed<AskedOperator | undefined> {
  const thread = threadOf(session, request)
  if (!thread) return { session, result: undefined }
  const { question } = thread.run
  if (question?.meter === meter && question.max === max)
    return { session, result: { until: question.until, isNew: false } }
  const after = changeRun(session, request, (run) => ({ ...run, question: { meter, max, until } }))
  return { session: after, result: { until, isNew: true } }
}

/** Returns the first limit that a thread's run has used up, the session's own included, as they are now. */
function reachedLimit(session: Session, thread: Thread, now: number): Meter<LimitName> | undefined {
  const { run } = thread
  if (!run.limits) return undefined
  const limits = limitsInForce(run.limits, session, thread, run)
  const meters: Meter[] = []
  addMeters(meters, usedBy(run, now), limits.run)
  addMeters(meters, usedIn(session, now), limits.session)
  return exhausted(meters)
}

/** Returns true while a thread is at a limit and its run was not stopped for that. */
function isUnanswered(session: Session, thread: Thread, now: number): boolean {
  const { finalAnswer, operator } = thread.run
  const reached = reachedLimit(session, thread, now)
  if (!reached || operator?.isStopAsked) return false
  // A run whose limit was raised keeps the answer of its earlier end until it goes on.
  return finalAnswer === undefined || finalAnswer.terminal.budget_max !== reached.max
}

/** Returns true if the run of a waiting request may go on or was stopped; false if it is forgotten. */
export function isAnswered(session: Session | undefined, request: CountedRequest, now: number): boolean {
  const thread = session && threadOf(session, request)
  return session !== undefined && thread !== undefined && !isUnanswered(session, thread, now)
}

/** Returns the question about a thread that an operator may still answer at `now`; `undefined` if there is none. */
export function openQuestion(session: Session, thread: Thread, now: number): Question | undefined {
  const { question } = thread.run
  return question && question.until > now && isUnanswered(session, thread, now) ? question : undefined
}
