/** How conversations go on that a provider keeps: by the id of a response, from which several may go on. */

import type { Sighting } from './request-facts.ts'
import type { Thread } from './session.ts'

/** How many responses are remembered that were gone on from. */
const MAX_TAKEN = 8

/**
 * Does a human ask from a response that the thread has gone on from already? Then this is another conversation with the
 * same beginning, which may run at the same time. Without a human it is one more step of the same run: an agent that
 * goes back and tries again does not get its budget back.
 */
export function branchesOff({ wentOnFrom }: Thread, { previous, mayFork, humans }: Sighting): boolean {
  if (previous === undefined || !mayFork || humans.length === 0) return false
  return wentOnFrom?.includes(previous) === true
}

/** The responses that requests of a thread went on from, this one included; `undefined` where there were none. */
export function wentOn(
  known: Thread | undefined,
  { previous, mayFork }: Sighting,
): readonly string[] | undefined {
  const before = known?.wentOnFrom
  if (previous === undefined || !mayFork) return before
  return [...new Set([...(before ?? []), previous])].slice(-MAX_TAKEN)
}
