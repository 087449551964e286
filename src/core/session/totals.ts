/** What all threads of a session did together. */
import type { Hash } from '../hash.ts'
import type { RequestFacts } from './request-facts.ts'
import type { Run, Session, Thread, Totals, WarningReaction } from './session.ts'

/** How many threads are remembered by a message of theirs after they were forgotten. */
const MAX_FORGOTTEN = 1_024

/** Iterations and tool calls. */
interface Steps {
  readonly iterations: number
  readonly toolCalls: number
}

/**
 * What a transcript holds beyond what the session has seen, its own iteration included. One answer more than what was
 * shown is that to a request that was counted. `grown`: what its run grew by, which is as much as that at most.
 */
function unseen(session: Session, facts: RequestFacts, grown: Steps): Steps {
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
  // Of a long run that nobody knows the newest answers of, there are more than were looked at.
  if (at < 0 && answers < ofRun) return grown
  const isAskedFor = at >= 0 ? isShown(assistantHashes[at]) : isBegun(session, facts)
  const iterations = 1 + answers - (isAskedFor && answers > 0 ? 1 : 0)
  return {
    iterations: Math.min(grown.iterations, iterations),
    toolCalls: Math.min(grown.toolCalls, toolCalls),
  }
}

function knows({ threads, forgotten }: Session, hash: Hash): boolean {
  return (
    threads.some(({ assistantHashes }) => assistantHashes.includes(hash)) ||
    forgotten?.includes(hash) === true
  )
}

/** Was the session asked what the transcript begins with? */
function isBegun({ threads, forgotten }: Session, { userMessageHashes: [first] }: RequestFacts): boolean {
  if (threads.some(({ userMessageHashes }) => userMessageHashes[0] === first)) return true
  return first !== undefined && forgotten?.includes(first) === true
}

/**
 * What a request adds to the sum of its session. Of a run that was stopped nothing counts any more, unless it is `isExtra`: relayed
 * all the same.
 */
export function counted(
  session: Session,
  facts: RequestFacts,
  before: Run,
  after: Run,
  reaction: WarningReaction | undefined,
  now: number,
  isExtra: boolean,
): Totals {
  const { totals } = session
  const more = unseen(session, facts, {
    iterations: after.iteration - before.iteration,
    toolCalls: Math.max(0, after.toolCalls - before.toolCalls),
  })
  return {
    startedAt: totals ? totals.startedAt : now,
    iterations: (totals ? totals.iterations : 0) + (before.finalAnswer ? Number(isExtra) : more.iterations),
    toolCalls: (totals ? totals.toolCalls : 0) + more.toolCalls,
    acknowledged: (totals ? totals.acknowledged : 0) + (reaction === 'acknowledged' ? 1 : 0),
    ignored: (totals ? totals.ignored : 0) + (reaction === 'ignored' ? 1 : 0),
  }
}

/** What stays of a thread that is forgotten: the newest answer that it has shown, or what it was asked. */
export function withForgotten(
  forgotten: readonly Hash[] | undefined,
  { assistantHashes, userMessageHashes }: Thread,
): readonly Hash[] | undefined {
  const message = assistantHashes.at(-1) ?? userMessageHashes[0]
  if (message === undefined || forgotten?.includes(message)) return forgotten
  return [...(forgotten ?? []), message].slice(-MAX_FORGOTTEN)
}
