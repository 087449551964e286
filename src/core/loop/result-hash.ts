/**
 * Names for what came of calls, only as exact as it takes to compare them. Most calls are made once, and most that are
 * made again bring the same bytes: a result is only masked where one of the same call differs from it.
 */

import type { Hash } from '../hash.ts'
import type { Work } from '../work.ts'
import { renameOutcome, type Trail } from './call-history.ts'
import { isMasked, outcomeHash, type Volatile } from './result-mask.ts'
import { exactName, type Given, hasExactName } from './tool-result.ts'

/** Was the call made before, with results other than the one of this name? `'same'`: with this one. */
function earlierResults({ window, streak }: Trail, call: Hash, exact: Hash): 'none' | 'same' | 'others' {
  let found: 'none' | 'others' = 'none'
  if (streak?.call === call) {
    if (streak.outcome === exact) return 'same'
    found = 'others'
  }
  for (const trace of window) {
    if (trace.call !== call) continue
    if (trace.outcome === exact) return 'same'
    found = 'others'
  }
  return found
}

/** What the trail knows of earlier results of a call, by name. */
function knownNames({ window, streak }: Trail, call: Hash): Set<Hash | ''> {
  const names = new Set(window.filter((trace) => trace.call === call).map(({ outcome }) => outcome))
  if (streak?.call === call) names.add(streak.outcome)
  return names
}

/**
 * Names the result of a call so that two of its results in the trail have one name where they are the same, times and
 * ids aside. `earlier` finds the result that has an exact name; where it is no longer there, it is taken for different.
 */
export function nameOutcome(
  trail: Trail,
  call: Hash,
  result: Given,
  volatile: Volatile,
  earlier: (isIt: (result: Given) => boolean) => Given | undefined,
  work?: Work,
): { readonly trail: Trail; readonly outcome: Hash } {
  const exact = exactName(result, volatile)
  if (volatile === 'none' || earlierResults(trail, call, exact) !== 'others') return { trail, outcome: exact }
  let named = trail
  for (const name of knownNames(trail, call)) {
    if (name === '' || isMasked(name)) continue
    const same = earlier((candidate) => hasExactName(candidate, name))
    if (same) named = renameOutcome(named, call, name, outcomeHash(same.text, volatile, work))
  }
  return { trail: named, outcome: outcomeHash(result.text, volatile, work) }
}
