/** How a run ends, and what it has used by then. */
import { type Amounts, amountsOf } from '../budget/meters.ts'
import { type Counts, frozen } from '../counters.ts'
import type { EndedRun, RunRecord } from '../operator/session-record.ts'
import type { EndState, Terminal } from '../terminal.ts'
import type { RequestFacts } from './request-facts.ts'
import { type Changed, countsSinceReset, type Run, type Session, type StopAttempts, usedSinceReset } from './session.ts'

export const NO_STOP_ATTEMPTS: StopAttempts = { failedForms: [], failures: 0, failingSince: 0, truncated: 0 }

/** After this many failures over this many milliseconds the provider counts as down. */
const MAX_FAILURES = 3
const PASSING_MS = 10_000
/** How many incomplete answers are asked for again; the next one is recorded, as the limit stays reached. */
const MAX_TRUNCATED = 3

/** Returns whether the provider failed so often, and for so long, that the run has to end without its answer. */
export function isHopeless({ failures, failingSince }: StopAttempts, now: number): boolean {
  return failures >= MAX_FAILURES && now - failingSince >= PASSING_MS
}

/** Returns whether an incomplete answer is recorded, instead of asking for it again. */
export function isLastTry({ truncated }: StopAttempts): boolean {
  return truncated > MAX_TRUNCATED
}

/** After an answer that calls no tool, or a failure, a run without requests for so many milliseconds has ended. */
export const QUIET_MS = 300_000

/** Returns when a request or its answer came last, in milliseconds since the epoch. */
export function lastTime({ askedAt, quietSince = 0 }: Run): number {
  return Math.max(askedAt, quietSince)
}

/**
 * Returns the terminal state that the client got at the end of a run; `undefined` if it got none, or the run went on.
 */
export function terminalIn({ finalAnswer, ownEnd }: Run): Terminal | undefined {
  return finalAnswer?.terminal ?? ownEnd
}

/** Returns how a run has ended because nothing came any more; `undefined` if it goes on or was left unfinished. */
export function quietEnd(run: Run, now: number): Exclude<EndState, Terminal['terminal_state']> | undefined {
  if (now - lastTime(run) < QUIET_MS) return undefined
  return run.failedAs ?? (run.isAnswered ? 'completed' : undefined)
}

/** Returns how a run has ended by `now`; `undefined` where it goes on, or was left in the middle. */
export function endOf(run: Run, now: number): EndState | undefined {
  return terminalIn(run)?.terminal_state ?? quietEnd(run, now)
}

/** Returns how a run ended when a request began another one; `undefined` if it was left unfinished. */
export function endBefore(run: Run, { callCounts }: RequestFacts): EndState | undefined {
  const hasAnswered = run.isAnswered ?? callCounts.at(-1) === 0
  return terminalIn(run)?.terminal_state ?? run.failedAs ?? (hasAnswered ? 'completed' : undefined)
}

/** Returns when the clock of a run stopped, in milliseconds since the epoch: `now` while its agent works. */
export function clockOf(run: Run, now: number): number {
  const { finalAnswer, ownEnd, isAnswered, failedAs } = run
  if (finalAnswer?.ended) return finalAnswer.ended.at
  return ownEnd || isAnswered || failedAs ? lastTime(run) : now
}

/** Returns what a run has counted since its reset, its frozen counters as they were when it ended. */
function countsUntilEnd(run: Run): Counts {
  const ended = run.finalAnswer?.ended
  return ended ? frozen(countsSinceReset(run), ended.counts) : countsSinceReset(run)
}

/** Returns what a run has used by `now`, its clock and its frozen counters as they were when it ended. */
export function usedUntilEnd(run: Run, now: number): Amounts {
  return amountsOf(countsUntilEnd(run), usedSinceReset(run, clockOf(run, now)).seconds)
}

/** Returns what is kept of a run that is over. `thread`: the number of its thread. */
export function recordOf(run: Run, thread: number, state: EndState | undefined): RunRecord {
  const { startedAt, model, agent } = run
  const endedAt = lastTime(run)
  return { thread, startedAt, endedAt, counts: countsUntilEnd(run), model, agent, state, terminal: terminalIn(run) }
}

/** Returns when (milliseconds since the epoch) the next unreported run will have ended if nothing comes, if any. */
export function nextQuietEnd({ threads }: Session): number | undefined {
  let next: number | undefined
  for (const { run } of threads) {
    if (run.isReported || terminalIn(run) || !quietEnd(run, Number.POSITIVE_INFINITY)) continue
    const end = lastTime(run) + QUIET_MS
    next = Math.min(next ?? end, end)
  }
  return next
}

/** Marks the current runs that have ended by `now` as reported, and returns those that were not. */
export function reportEnds(session: Session, now: number): Changed<readonly EndedRun[]> {
  const ended: EndedRun[] = []
  const threads = session.threads.map((thread) => {
    const { run, number } = thread
    const state = endOf(run, now)
    if (run.isReported || state === undefined) return thread
    ended.push({ ...recordOf(run, number, state), state })
    return { ...thread, run: { ...run, isReported: true } }
  })
  return { session: ended.length === 0 ? session : { ...session, threads }, result: ended }
}
