/** How one more request, and its answer, change the record of a session that operators can read. */

import type { Request } from '../request.ts'
import type { Session, Thread } from '../session/session.ts'
import type { CallUsage } from '../usage.ts'
import {
  EMPTY_RECORD,
  type IterationFacts,
  type RunRecord,
  type SessionRecord,
  withIteration,
  withRun,
  withTools,
} from './session-record.ts'

/** Returns the number of the thread that a request is counted in. `known`: unset if it begins a thread. */
export function threadNumber({ record, threads }: Session, known: Thread | undefined): number {
  return known?.number ?? (record?.threads ?? threads.length) + 1
}

/**
 * Returns the record after one more request. `number`: of its thread; `ended`: the run that it ends by beginning
 * another one; `isOver`: its run has ended, and the calls that it shows belong to no iteration.
 */
export function recordRequest(
  { record = EMPTY_RECORD }: Session,
  { name, tools }: Request,
  number: number,
  ended: RunRecord | undefined,
  isOver: boolean,
): SessionRecord {
  const begun = { ...record, name: record.name ?? name, threads: Math.max(record.threads, number) }
  const shown = isOver ? begun : withTools(begun, number, tools)
  return ended ? withRun(shown, ended) : shown
}

/** Returns the record with the outcome of a request of a thread. `given`: its number in its run. */
export function recordAnswer(
  record: SessionRecord | undefined,
  thread: Thread | undefined,
  given: number | undefined,
  facts: IterationFacts | undefined,
  usage: CallUsage | undefined,
): SessionRecord | undefined {
  if (!record || !facts || thread?.number === undefined) return record
  const { run } = thread
  const made = (given ?? run.iteration) - (run.operator?.base?.iterations ?? 0)
  // The request for a final answer is no iteration: it stands beside the last one.
  const iteration = Math.max(1, facts.verdict === 'stop' ? made - 1 : made)
  return withIteration(record, thread.number, iteration, facts, usage)
}

/** Returns the record with the first iteration of a conversation, which had no id before its second request. */
export function recordFirst(
  record: SessionRecord | undefined,
  number: number,
  times: { readonly askedAt: number; readonly endedAt?: number | undefined },
  usage: CallUsage,
  tools: readonly string[],
): SessionRecord | undefined {
  if (!record) return record
  const { askedAt, endedAt = askedAt } = times
  const went = {
    askedAt,
    endedAt,
    status: 200,
    verdict: 'allow',
    tier: undefined,
    loop: undefined,
    overflow: undefined,
  } as const
  return withTools(withIteration(record, number, 1, went, usage), number, tools)
}
