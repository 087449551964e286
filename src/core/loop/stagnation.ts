/** Tells whether a run makes progress. */
import type { CallHistory } from './call-history.ts'

/** A run stagnates after so many calls without anything new. */
const STAGNATION_CALLS = 5

/** True if none of the last calls, with its result, was new. */
export function isStagnating({ window }: CallHistory): boolean {
  if (window.length < STAGNATION_CALLS) return false
  for (let at = window.length - STAGNATION_CALLS; at < window.length; at++) {
    if (window[at]?.isNew) return false
  }
  return true
}
