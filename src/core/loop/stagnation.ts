/** Whether a run gets anywhere. */
import type { CallHistory } from './call-history.ts'

/** How many calls without anything new make a run that stagnates. */
const STAGNATION_CALLS = 5

/** Did none of the last calls, with what came of it, bring anything that was not known before? */
export function isStagnating({ window }: CallHistory): boolean {
  if (window.length < STAGNATION_CALLS) return false
  for (let at = window.length - STAGNATION_CALLS; at < window.length; at++) {
    if (window[at]?.isNew) return false
  }
  return true
}
