/** The changes that an operator makes to a session. Pure: a store may run each change again. */
import { type Amounts, LIMITS, type LimitName } from '../budget/meters.ts'
import { NO_LOOP } from '../loop/escalation.ts'
import type { LoopMode } from '../loop/policy.ts'
import { type Run, type Session, type Thread, usedBy, usedIn } from '../session/session.ts'
import type { LimitPair, RunSettings, ThreadSettings } from './operator-settings.ts'

/** How many idempotency keys a session remembers. */
const MAX_DONE = 16

/** Returns the limits with an operator's changes; `configured` itself if nothing was changed. */
export function limitsInForce(
  configured: LimitPair,
  session: Session,
  thread: Thread | undefined,
  run: Run | undefined,
): LimitPair {
  const forAll = session.operator
  const forThread = thread?.operator
  const forRun = run?.operator
  if (!forAll && !forThread && !forRun) return configured
  return {
    run: { ...configured.run, ...forAll?.budget, ...forThread?.budget, ...forRun?.extended },
    session: { ...configured.session, ...forAll?.extended },
  }
}

/** Returns the mode of the loop guard that an operator has set; `undefined` if none has. */
export function loopModeInForce(session: Session, thread: Thread | undefined): LoopMode | undefined {
  return thread?.operator?.loopMode ?? session.operator?.loopMode
}

/** The number of a thread; unset: all threads of the session. */
export type ThreadNumber = number | undefined

function changeThreads(session: Session, only: ThreadNumber, change: (thread: Thread) => Thread): Session {
  const threads = session.threads.map((thread) =>
    only === undefined || thread.number === only ? change(thread) : thread,
  )
  return { ...session, threads }
}

function changeRuns(session: Session, only: ThreadNumber, change: (run: Run) => Run): Session {
  return changeThreads(session, only, (thread) => ({ ...thread, run: change(thread.run) }))
}

/** Makes the next request of each run the last one; finished runs stay as they are. */
export function stopRuns(session: Session, only: ThreadNumber): Session {
  return changeRuns(session, only, (run) =>
    run.finalAnswer ? run : { ...run, operator: { ...run.operator, isStopAsked: true } },
  )
}

/** By how much limits are raised: a share of each, a number of iterations, or up to a number of iterations. */
export type Extension = { readonly share: number } | { readonly iterations: number } | { readonly to: number }

/** No extension raises a limit above this number: numbers stay exact, and finite in JSON. */
export const HIGHEST_LIMIT = 1e12

/** Rounds up to the unit of the meter; sums of fractions are never exact. */
function roundedUp(name: LimitName, amount: number): number {
  const scale = name === 'cost' ? 1e6 : 1
  return Math.min(HIGHEST_LIMIT, Math.ceil(amount * scale - 1e-6) / scale)
}

/** Returns the limits that an extension raises; it lowers no limit, and adds none where there was none. */
function raisedLimits(limits: Amounts, by: Extension): Partial<Amounts> {
  if ('share' in by) {
    const set = LIMITS.filter((name) => limits[name] > 0)
    return Object.fromEntries(
      set.map((name) => [name, Math.max(limits[name], roundedUp(name, limits[name] * (1 + by.share)))]),
    )
  }
  if (limits.iterations === 0) return {}
  const to = roundedUp('iterations', 'to' in by ? by.to : limits.iterations + by.iterations)
  return to > limits.iterations ? { iterations: to } : {}
}

/** Returns settings of a run or a session whose limits are raised. */
function extended<Settings extends Pick<RunSettings, 'extended'>>(
  settings: Settings | undefined,
  limits: Amounts,
  by: Extension,
) {
  const raised = raisedLimits({ ...limits, ...settings?.extended }, by)
  return { ...settings, extended: { ...settings?.extended, ...raised } }
}

/**
 * Raises the limits of current runs and of the session as a whole. A request with a `key` that was executed before
 * changes nothing.
 */
export function extendRuns(session: Session, only: ThreadNumber, by: Extension, key: string | undefined): Session {
  const done = session.operator?.done ?? []
  if (key !== undefined && done.includes(key)) return session
  const after = changeRuns(session, only, (run) =>
    run.limits ? { ...run, operator: extended(run.operator, run.limits.run, by) } : run,
  )
  // Those of the session as a whole are as its newest request had them.
  const limits = session.threads.findLast(({ run }) => run.limits)?.run.limits?.session
  const operator = limits ? extended(session.operator, limits, by) : session.operator
  if (key === undefined) return { ...after, operator }
  return { ...after, operator: { ...operator, done: [...done, key].slice(-MAX_DONE) } }
}

/** Limits by name; `null` restores the configured limit. */
export type BudgetChange = Partial<Readonly<Record<LimitName, number | null | undefined>>>

function withBudget<Settings extends ThreadSettings>(settings: Settings | undefined, change: BudgetChange) {
  const budget: Partial<Record<LimitName, number>> = { ...settings?.budget }
  for (const name of LIMITS) {
    const limit = change[name]
    if (limit === null) delete budget[name]
    else if (limit !== undefined) budget[name] = limit
  }
  return { ...settings, budget }
}

/** Setting a limit ends its extension. */
function withoutExtension(run: Run, change: BudgetChange): Run {
  const { extended } = run.operator ?? {}
  if (!extended) return run
  const left = LIMITS.filter((name) => extended[name] !== undefined && change[name] === undefined)
  const kept = Object.fromEntries(left.map((name) => [name, extended[name]]))
  return { ...run, operator: { ...run.operator, extended: kept } }
}

/** Sets limits of runs; without a thread also of later runs. */
export function setBudget(session: Session, only: ThreadNumber, change: BudgetChange): Session {
  const after = changeRuns(session, only, (run) => withoutExtension(run, change))
  if (only === undefined) return { ...after, operator: withBudget(session.operator, change) }
  return changeThreads(after, only, (thread) => ({
    ...thread,
    operator: withBudget(thread.operator, change),
  }))
}

/** Sets the mode of the loop guard; `null` restores the configured mode. */
export function setLoopMode(session: Session, only: ThreadNumber, mode: LoopMode | null): Session {
  const loopMode = mode ?? undefined
  if (only === undefined) return { ...session, operator: { ...session.operator, loopMode } }
  return changeThreads(session, only, (thread) => ({
    ...thread,
    operator: { ...thread.operator, loopMode },
  }))
}

function resetThread(thread: Thread, now: number): Thread {
  const { loopState, run } = thread
  return {
    ...thread,
    run: {
      ...run,
      isWarned: undefined,
      wasIgnored: undefined,
      finalAnswer: undefined,
      ownEnd: undefined,
      stopTries: undefined,
      question: undefined,
      operator: { base: usedBy({ ...run, operator: undefined }, now) },
    },
    loopState: loopState && {
      ...loopState,
      memory: NO_LOOP,
      finding: undefined,
      isWarned: false,
      pendingNotice: undefined,
      currentNotice: undefined,
      lastBlock: undefined,
    },
  }
}

/**
 * Resets current runs: they get a new budget, an empty window of the loop guard, and, if the whole session is reset,
 * the models' own context windows. Limits and modes that an operator has set stay.
 */
export function resetRuns(session: Session, only: ThreadNumber, now: number): Session {
  const after = changeThreads(session, only, (thread) => resetThread(thread, now))
  if (only !== undefined) return after
  const base = usedIn({ ...session, operator: undefined }, now)
  return { ...after, contexts: undefined, operator: { ...session.operator, extended: undefined, base } }
}
