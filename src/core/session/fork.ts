/** How conversations go on that a provider keeps: by the id of a response, from which several may go on. */

import type { RequestFacts } from './request-facts.ts'
import type { Thread } from './session.ts'

/** How many responses are remembered that were gone on from. */
const MAX_TAKEN = 8

/**
 * Does a human ask from a response that the thread has gone on from already? Then this is another conversation with the
 * same beginning, which may run at the same time. Without a human it is one more step of the same run: an agent that
 * goes back and tries again does not get its budget back.
 */
export function isFork(
  { continuedFrom }: Thread,
  { previous, mayFork, userMessageHashes }: RequestFacts,
): boolean {
  if (previous === undefined || !mayFork || userMessageHashes.length === 0) return false
  return continuedFrom?.includes(previous) === true
}

/** The responses that requests of a thread went on from, this one included; `undefined` where there were none. */
export function addContinuation(
  known: Thread | undefined,
  { previous, mayFork }: RequestFacts,
): readonly string[] | undefined {
  const before = known?.continuedFrom
  if (previous === undefined || !mayFork) return before
  return [...new Set([...(before ?? []), previous])].slice(-MAX_TAKEN)
}
