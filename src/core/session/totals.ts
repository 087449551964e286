/** What all threads of a session did together. */
import type { Hash } from '../hash.ts'
import type { Sighting } from './request-facts.ts'
import type { Heed, Run, Session, Thread, Totals } from './session.ts'

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
function unseen(session: Session, sighting: Sighting, grown: Steps): Steps {
  if (grown.iterations <= 1) return grown
  const { ancestry, calls, iteration } = sighting
  const ofRun = iteration - 1
  const isShown = (hash: Hash | undefined) => hash !== undefined && knows(session, hash)
  let answers = 0
  let toolCalls = 0
  let at = ancestry.length - 1
  for (; at >= 0 && answers < ofRun && !isShown(ancestry[at]); at--) {
    answers++
    toolCalls += calls[at] ?? 0
  }
  // Of a long run that nobody knows the newest answers of, there are more than were looked at.
  if (at < 0 && answers < ofRun) return grown
  const isAskedFor = at >= 0 ? isShown(ancestry[at]) : isBegun(session, sighting)
  const iterations = 1 + answers - (isAskedFor && answers > 0 ? 1 : 0)
  return {
    iterations: Math.min(grown.iterations, iterations),
    toolCalls: Math.min(grown.toolCalls, toolCalls),
  }
}

function knows({ threads, forgotten }: Session, hash: Hash): boolean {
  return threads.some(({ ancestry }) => ancestry.includes(hash)) || forgotten?.includes(hash) === true
}

/** Was the session asked what the transcript begins with? */
function isBegun({ threads, forgotten }: Session, { humans: [first] }: Sighting): boolean {
  if (threads.some(({ humans }) => humans[0] === first)) return true
  return first !== undefined && forgotten?.includes(first) === true
}

/**
 * What a request adds to the sum of its session. Of a run that was stopped nothing counts any more, unless it is `isExtra`: relayed
 * all the same.
 */
export function counted(
  session: Session,
  sighting: Sighting,
  before: Run,
  after: Run,
  heed: Heed | undefined,
  now: number,
  isExtra: boolean,
): Totals {
  const { totals } = session
  const more = unseen(session, sighting, {
    iterations: after.iteration - before.iteration,
    toolCalls: Math.max(0, after.toolCalls - before.toolCalls),
  })
  return {
    startedAt: totals ? totals.startedAt : now,
    iterations: (totals ? totals.iterations : 0) + (before.ended ? Number(isExtra) : more.iterations),
    toolCalls: (totals ? totals.toolCalls : 0) + more.toolCalls,
    acknowledged: (totals ? totals.acknowledged : 0) + (heed === 'acknowledged' ? 1 : 0),
    ignored: (totals ? totals.ignored : 0) + (heed === 'ignored' ? 1 : 0),
  }
}

/** What stays of a thread that is forgotten: the newest answer that it has shown, or what it was asked. */
export function withForgotten(
  forgotten: readonly Hash[] | undefined,
  { ancestry, humans }: Thread,
): readonly Hash[] | undefined {
  const message = ancestry.at(-1) ?? humans[0]
  if (message === undefined || forgotten?.includes(message)) return forgotten
  return [...(forgotten ?? []), message].slice(-MAX_FORGOTTEN)
}
