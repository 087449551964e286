/** How runs end, and what is kept of a run that has ended. */
import type { Amounts } from '../budget/meters.ts'
import type { EndedRun, RunRecord } from '../operator/session-record.ts'
import type { EndState, Terminal } from '../terminal.ts'
import type { RequestFacts } from './request-facts.ts'
import { type Changed, type Run, type Session, usedBy } from './session.ts'

/** After an answer that calls no tool, or a failure, a run without requests for so many milliseconds has ended. */
export const QUIET_MS = 300_000

/** How a run ended that Governor did not end. */
export type QuietEnd = Exclude<EndState, Terminal['terminal_state']>

/** Returns when a request or its answer came last, in milliseconds since the epoch. */
export function lastTime({ askedAt, quietSince = 0 }: Run): number {
  return Math.max(askedAt, quietSince)
}

/** Returns what the client was told at the end of a run; `undefined` where it was told of none, or the run went on. */
export function terminalIn({ finalAnswer, ownEnd }: Run): Terminal | undefined {
  return finalAnswer?.terminal ?? ownEnd
}

/** Returns how a run has ended because nothing came any more; `undefined` if it goes on or was left unfinished. */
export function quietEnd(run: Run, now: number): QuietEnd | undefined {
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

/** Returns what a run has used by `now`. What it had used when it ended changes no more, whatever its agent sends. */
export function spentBy(run: Run, now: number): Amounts {
  const used = usedBy(run, clockOf(run, now))
  const ended = run.finalAnswer?.ended
  return ended ? { ...used, iterations: ended.iterations, tool_calls: ended.toolCalls } : used
}

/** Returns what is kept of a run that is over. `thread`: the number of its thread. */
export function recordOf(run: Run, thread: number, state: EndState | undefined): RunRecord {
  const endedAt = lastTime(run)
  const used = spentBy(run, endedAt)
  return {
    thread,
    startedAt: run.startedAt,
    endedAt,
    iterations: used.iterations,
    toolCalls: used.tool_calls,
    tokens: used.tokens,
    cost: used.cost,
    costGap: run.usage?.costGap,
    model: run.model,
    agent: run.agent,
    state,
    terminal: terminalIn(run),
  }
}

/**
 * Returns when the first of the current runs will have ended if nothing comes until then, in milliseconds since the
 * epoch; `undefined` where none will, or their ends were reported.
 */
export function nextQuietEnd({ threads }: Session): number | undefined {
  const ends = threads.flatMap(({ run }) => {
    const isOpen = !run.isReported && terminalIn(run) === undefined
    return isOpen && quietEnd(run, Number.POSITIVE_INFINITY) ? [lastTime(run) + QUIET_MS] : []
  })
  return ends.length === 0 ? undefined : Math.min(...ends)
}

/** Marks the current runs that have ended by `now` as reported, and returns those that were not. */
export function reportEnds(session: Session, now: number): Changed<readonly EndedRun[]> {
  const ended: EndedRun[] = []
  const threads = session.threads.map((thread) => {
    const { run, number = 0 } = thread
    const state = endOf(run, now)
    if (run.isReported || state === undefined) return thread
    ended.push({ ...recordOf(run, number, state), state })
    return { ...thread, run: { ...run, isReported: true } }
  })
  return { session: ended.length === 0 ? session : { ...session, threads }, result: ended }
}
