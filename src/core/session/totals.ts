/** Adds up the iterations and tool calls of all threads of a session. */
import type { RequestFacts } from './request-facts.ts'
import type { Run, Session, Thread, Totals, WarningReaction } from './session.ts'

/** How a request changes its run. */
interface RunChange {
  /** The thread of the request; unset if the request begins it. */
  readonly known: Thread | undefined
  readonly before: Run
  readonly after: Run
  readonly reaction: WarningReaction | undefined
  /** The run is over, but the request is relayed. */
  readonly isRelayedAfterEnd: boolean
}

/**
 * Returns the totals of a session after one more request. A new session counts what the transcript shows. In a session
 * that has counted before, a thread that begins adds one iteration: the session may have counted its history in
 * another thread. A stopped run adds only the requests that are relayed after its end.
 */
export function totalsAfter(
  { totals, threads }: Session,
  { now, facts }: { readonly now: number; readonly facts: RequestFacts },
  { known, before, after, reaction, isRelayedAfterEnd }: RunChange,
): Totals {
  const isBranch = totals !== undefined && !known
  const iterations = isBranch ? 1 : after.iteration - before.iteration
  const isCounted = threads.some(({ newest }) => newest === facts.newestAssistant)
  const toolCalls = isBranch ? (isCounted ? 0 : facts.newToolCalls) : Math.max(0, after.toolCalls - before.toolCalls)
  return {
    startedAt: totals ? totals.startedAt : now,
    iterations: (totals ? totals.iterations : 0) + (before.finalAnswer ? Number(isRelayedAfterEnd) : iterations),
    toolCalls: (totals ? totals.toolCalls : 0) + (before.finalAnswer ? 0 : toolCalls),
    acknowledged: (totals ? totals.acknowledged : 0) + (reaction === 'acknowledged' ? 1 : 0),
    ignored: (totals ? totals.ignored : 0) + (reaction === 'ignored' ? 1 : 0),
  }
}
