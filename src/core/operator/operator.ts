/** What operators change in a session, and what they are asked. Pure: a store may run each change again. */
import { type Amounts, isExhausted, LIMITS, type LimitName, type Meter, metersOf } from '../budget/meters.ts'
import { minus } from '../counters.ts'
import { NO_LOOP } from '../loop/escalation.ts'
import { NO_NOTICE } from '../loop/loop-state.ts'
import type { LoopMode } from '../loop/patterns.ts'
import { limitsInForce, type Question, type Session, type Thread, usedSinceReset } from '../session/session.ts'
import { type CountedRequest, ONE_ITERATION, threadOf, withReleased, withThread } from '../session/transitions.ts'

/** How many idempotency keys a session remembers. */
const MAX_DONE = 16

/** The number of a thread; unset: all threads of the session. */
type ThreadNumber = number | undefined

function changeThreads(session: Session, only: ThreadNumber, change: (thread: Thread) => Partial<Thread>): Session {
  const threads = session.threads.map((thread) =>
    only === undefined || thread.number === only ? { ...thread, ...change(thread) } : thread,
  )
  return { ...session, threads }
}

/** Makes the next request of each run the last one; finished runs stay as they are. */
export function stopRuns(session: Session, only: ThreadNumber): Session {
  return changeThreads(session, only, ({ run }) =>
    run.finalAnswer ? {} : { run: { ...run, operator: { ...run.operator, isStopAsked: true } } },
  )
}

/** By how much limits are raised: a share of each, a number of iterations, or up to a number of iterations. */
export type Extension = { readonly share: number } | { readonly iterations: number } | { readonly to: number }

/** No extension raises a limit above this number: numbers stay exact, and finite in JSON. */
export const HIGHEST_LIMIT = 1e12

type Limits = Partial<Record<LimitName, number>>

/** Returns raised limits; an extension lowers no limit, and adds none where there was none. */
function raised(before: Readonly<Limits> | undefined, inForce: Amounts, by: Extension): Limits {
  const limits = { ...before }
  for (const name of LIMITS) {
    const limit = inForce[name]
    if (limit === 0 || !('share' in by || name === 'iterations')) continue
    const wanted = 'share' in by ? limit * (1 + by.share) : 'to' in by ? by.to : limit + by.iterations
    // Up to the unit of the meter; sums of fractions are never exact.
    const scale = name === 'cost' ? 1e6 : 1
    const to = Math.min(HIGHEST_LIMIT, Math.ceil(wanted * scale - 1e-6) / scale)
    if (to > limit) limits[name] = to
  }
  return limits
}

/** Raises the limits of current runs and of the session as a whole. Of requests with one `key` the first counts. */
export function extendRuns(session: Session, only: ThreadNumber, by: Extension, key: string | undefined): Session {
  const done = session.operator?.done ?? []
  if (key !== undefined && done.includes(key)) return session
  const after = changeThreads(session, only, (thread) => {
    const { run } = thread
    if (!run.limits) return {}
    const inForce = limitsInForce(run.limits, session, thread, run)
    const extended = raised(run.operator?.extended, inForce.run, by)
    return { run: { ...run, operator: { ...run.operator, extended } } }
  })
  // Those of the session as a whole are as its newest request had them.
  const limits = session.threads.findLast(({ run }) => run.limits)?.run.limits
  const { operator: before } = session
  const ofSession = limits && limitsInForce(limits, session).session
  const operator = ofSession ? { ...before, extended: raised(before?.extended, ofSession, by) } : before
  if (key === undefined) return { ...after, operator }
  return { ...after, operator: { ...operator, done: [...done, key].slice(-MAX_DONE) } }
}

/** Limits by name; `null` restores the configured limit. */
export type BudgetChange = Partial<Record<LimitName, number | null | undefined>>

function changed(before: Readonly<Limits> | undefined, change: BudgetChange): Limits {
  const limits = { ...before }
  for (const name of LIMITS) {
    const limit = change[name]
    if (limit === null) delete limits[name]
    else if (limit !== undefined) limits[name] = limit
  }
  return limits
}

/** Sets limits of runs; without a thread also of later runs. */
export function setBudget(session: Session, only: ThreadNumber, change: BudgetChange): Session {
  const after = changeThreads(session, only, ({ run, operator: before }) => {
    const operator = only === undefined ? before : { ...before, budget: changed(before?.budget, change) }
    if (!run.operator?.extended) return { operator }
    // Setting a limit ends its extension.
    const extended: Limits = { ...run.operator.extended }
    for (const name of LIMITS) if (change[name] !== undefined) delete extended[name]
    return { operator, run: { ...run, operator: { ...run.operator, extended } } }
  })
  if (only !== undefined) return after
  const { operator } = session
  return { ...after, operator: { ...operator, budget: changed(operator?.budget, change) } }
}

/** Sets the mode of the loop guard; `null` restores the configured mode. */
export function setLoopMode(session: Session, only: ThreadNumber, mode: LoopMode | null): Session {
  const loopMode = mode ?? undefined
  if (only === undefined) return { ...session, operator: { ...session.operator, loopMode } }
  return changeThreads(session, only, ({ operator }) => ({ operator: { ...operator, loopMode } }))
}

/**
 * Resets current runs: they get a new budget, an empty window of the loop guard, and, if the whole session is reset,
 * the models' own context windows and an empty memory of all guards. Limits and modes that an operator has set stay.
 */
export function resetRuns(session: Session, only: ThreadNumber, now: number): Session {
  let waiting = 0
  const after = changeThreads(session, only, (thread) => {
    const { loopState, run: before } = thread
    const waits = openQuestion(session, thread, now) !== undefined || (before.slowedUntil ?? 0) > now
    // The request that ended a run is taken back already.
    if (waits && !before.finalAnswer) waiting++
    // A newest request that has brought the end of the run, or waits, is no iteration; if it is sent again, it is one.
    const run =
      waits || before.finalAnswer
        ? { ...before, counts: minus(before.counts, ONE_ITERATION), recentRequests: withReleased(before) }
        : before
    return {
      run: {
        ...run,
        isWarned: undefined,
        wasIgnored: undefined,
        finalAnswer: undefined,
        ownEnd: undefined,
        stopTries: undefined,
        question: undefined,
        operator: { base: { at: now, counts: run.counts } },
      },
      loopState: loopState && { ...loopState, memory: NO_LOOP, ...NO_NOTICE },
      blockNotice: undefined,
    }
  })
  const counts = minus(session.counts, { iterations: waiting })
  if (only !== undefined) return { ...after, counts }
  return {
    ...after,
    counts,
    reductions: undefined,
    guards: undefined,
    operator: { ...session.operator, extended: undefined, base: { at: now, counts } },
  }
}

/** Asks whether a run at a limit may go on, or joins that question. `isNew`: the first time; `undefined`: forgotten. */
export function askOperator(session: Session, request: CountedRequest, limit: Meter<LimitName>, until: number) {
  const { name: meter, max } = limit
  const thread = threadOf(session, request)
  if (!thread) return { session, result: undefined }
  const { question } = thread.run
  if (question?.meter === meter && question.max === max)
    return { session, result: { until: question.until, isNew: false } }
  const after = withThread(session, thread, {}, { question: { meter, max, until } })
  return { session: after, result: { until, isNew: true } }
}

/** Returns true while a thread is at the limit on a meter, its own or the session's, and was not stopped for that. */
function isUnanswered(session: Session, thread: Thread, now: number, meter: LimitName): boolean {
  const { run } = thread
  const { finalAnswer, operator } = run
  if (!run.limits || operator?.isStopAsked) return false
  const limits = limitsInForce(run.limits, session, thread, run)
  const meters = [
    ...metersOf(usedSinceReset(run, now), limits.run),
    ...metersOf(usedSinceReset(session, now), limits.session),
  ]
  const reached = meters.find((one) => one.name === meter && isExhausted(one))
  // A run whose limit was raised keeps the answer of its earlier end until it goes on.
  return reached !== undefined && (finalAnswer === undefined || finalAnswer.terminal.budget_max < reached.max)
}

/**
 * Returns true if the run of a request that waits at the limit on a meter is below that, or was stopped; false if it is
 * forgotten. It may have reached another limit: that is another question.
 */
export function isAnswered(
  session: Session | undefined,
  request: CountedRequest,
  now: number,
  meter: LimitName,
): boolean {
  const thread = session && threadOf(session, request)
  return session !== undefined && thread !== undefined && !isUnanswered(session, thread, now, meter)
}

/** Returns the question about a thread if an operator may still answer it at `now`, else `undefined`. */
export function openQuestion(session: Session, thread: Thread, now: number): Question | undefined {
  const { question } = thread.run
  return question && question.until > now && isUnanswered(session, thread, now, question.meter) ? question : undefined
}
