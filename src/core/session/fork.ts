/** Conversations that the provider keeps: requests continue from the id of a response, and several may continue from one. */

import type { RequestFacts } from './request-facts.ts'
import type { Thread } from './session.ts'

/** How many responses that requests continued from a thread remembers. */
const MAX_CONTINUED = 8

/**
 * Returns whether a request forks its conversation: a user message continues from a response that the thread has continued from
 * already. The fork is a separate conversation, which may run at the same time. Without a user message the request is one
 * more step of the same run: an agent that goes back and tries again does not get its budget back.
 */
export function isFork(
  { continuedFrom }: Thread,
  { previous, mayFork, userMessageHashes }: RequestFacts,
): boolean {
  if (previous === undefined || !mayFork || userMessageHashes.length === 0) return false
  return continuedFrom?.includes(previous) === true
}

/** Returns the responses that requests of a thread continued from, this request included; `undefined` if there are none. */
export function addContinuation(
  known: Thread | undefined,
  { previous, mayFork }: RequestFacts,
): readonly string[] | undefined {
  const before = known?.continuedFrom
  if (previous === undefined || !mayFork) return before
  return [...new Set([...(before ?? []), previous])].slice(-MAX_CONTINUED)
}
