/** Adds up the iterations and tool calls of all threads of a session. */
import type { Hash } from '../hash.ts'
import type { RequestFacts } from './request-facts.ts'
import {
  MAX_FORGOTTEN,
  type Run,
  type Session,
  type Thread,
  type Totals,
  type WarningReaction,
} from './session.ts'

/** Iterations and tool calls. */
interface Steps {
  readonly iterations: number
  readonly toolCalls: number
}

/**
 * Returns how many steps of a transcript the session has not counted yet, the request's own iteration included. One answer
 * that follows the messages it knows belongs to a request that was counted. `grown`: the steps that the run grew by, which
 * bound the result.
 */
function uncountedSteps(session: Session, facts: RequestFacts, grown: Steps): Steps {
  if (grown.iterations <= 1) return grown
  const { assistantHashes, callCounts, iteration } = facts
  const ofRun = iteration - 1
  const isShown = (hash: Hash | undefined) => hash !== undefined && knows(session, hash)
  let answers = 0
  let toolCalls = 0
  let at = assistantHashes.length - 1
  for (; at >= 0 && answers < ofRun && !isShown(assistantHashes[at]); at--) {
    answers++
    toolCalls += callCounts[at] ?? 0
  }
  // None of the newest answers is known: a long run has more of them than the facts hold.
  if (at < 0 && answers < ofRun) return grown
  const isAskedFor = at >= 0 ? isShown(assistantHashes[at]) : isBegun(session, facts)
  const iterations = 1 + answers - (isAskedFor && answers > 0 ? 1 : 0)
  return {
    iterations: Math.min(grown.iterations, iterations),
    toolCalls: Math.min(grown.toolCalls, toolCalls),
  }
}

/** Returns whether a thread of the session, forgotten or not, contains an assistant message. */
function knows({ threads, forgotten }: Session, hash: Hash): boolean {
  return (
    threads.some(({ assistantHashes }) => assistantHashes.includes(hash)) ||
    forgotten?.includes(hash) === true
  )
}

/** Returns whether a thread of the session began with the transcript's first user message. */
function isBegun({ threads, forgotten }: Session, { userMessageHashes: [first] }: RequestFacts): boolean {
  if (threads.some(({ userMessageHashes }) => userMessageHashes[0] === first)) return true
  return first !== undefined && forgotten?.includes(first) === true
}

/** How a request changes its run. */
interface RunChange {
  readonly before: Run
  readonly after: Run
  readonly reaction: WarningReaction | undefined
  /** The run is over, but the request is relayed. */
  readonly isRelayedAfterEnd: boolean
}

/** Returns the totals of a session after one more request. A stopped run adds only the requests that are relayed after its end. */
export function totalsAfter(
  session: Session,
  { facts, now }: { readonly facts: RequestFacts; readonly now: number },
  { before, after, reaction, isRelayedAfterEnd }: RunChange,
): Totals {
  const { totals } = session
  const more = uncountedSteps(session, facts, {
    iterations: after.iteration - before.iteration,
    toolCalls: Math.max(0, after.toolCalls - before.toolCalls),
  })
  return {
    startedAt: totals ? totals.startedAt : now,
    iterations:
      (totals ? totals.iterations : 0) + (before.finalAnswer ? Number(isRelayedAfterEnd) : more.iterations),
    toolCalls: (totals ? totals.toolCalls : 0) + (before.finalAnswer ? 0 : more.toolCalls),
    acknowledged: (totals ? totals.acknowledged : 0) + (reaction === 'acknowledged' ? 1 : 0),
    ignored: (totals ? totals.ignored : 0) + (reaction === 'ignored' ? 1 : 0),
  }
}

/** Adds the message by which a forgotten thread is still recognised: its newest answer, or its first user message. */
export function withForgotten(
  forgotten: readonly Hash[] | undefined,
  { assistantHashes, userMessageHashes }: Thread,
): readonly Hash[] | undefined {
  const message = assistantHashes.at(-1) ?? userMessageHashes[0]
  if (message === undefined || forgotten?.includes(message)) return forgotten
  return [...(forgotten ?? []), message].slice(-MAX_FORGOTTEN)
}
