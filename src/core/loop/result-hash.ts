/**
 * Names for what came of calls, only as exact as it takes to compare them. Most calls are made once, and most that are
 * made again bring the same bytes: a result is only masked where one of the same call differs from it.
 */

import type { Hash } from '../hash.ts'
import type { Work } from '../work.ts'
import { type CallHistory, renameResult } from './call-history.ts'
import { isMasked, type MaskMode, maskedHash } from './result-mask.ts'
import { exactResultHash, hasExactHash, type TranscriptResult } from './tool-result.ts'

/** Was the call made before, with results other than the one of this name? `'same'`: with this one. */
function earlierResults(
  { window, repeats }: CallHistory,
  call: Hash,
  exact: Hash,
): 'none' | 'same' | 'others' {
  let found: 'none' | 'others' = 'none'
  if (repeats?.call === call) {
    if (repeats.resultHash === exact) return 'same'
    found = 'others'
  }
  for (const entry of window) {
    if (entry.call !== call) continue
    if (entry.resultHash === exact) return 'same'
    found = 'others'
  }
  return found
}

/** What the trail knows of earlier results of a call, by name. */
function knownNames({ window, repeats }: CallHistory, call: Hash): Set<Hash | ''> {
  const names = new Set(window.filter((entry) => entry.call === call).map(({ resultHash }) => resultHash))
  if (repeats?.call === call) names.add(repeats.resultHash)
  return names
}

/**
 * Names the result of a call so that two of its results in the trail have one name where they are the same, times and
 * ids aside. `earlier` finds the result that has an exact name; where it is no longer there, it is taken for different.
 */
export function hashResult(
  history: CallHistory,
  call: Hash,
  result: TranscriptResult,
  volatile: MaskMode,
  earlier: (isIt: (result: TranscriptResult) => boolean) => TranscriptResult | undefined,
  work?: Work,
): { readonly history: CallHistory; readonly resultHash: Hash } {
  const exact = exactResultHash(result, volatile)
  if (volatile === 'none' || earlierResults(history, call, exact) !== 'others')
    return { history, resultHash: exact }
  let named = history
  for (const name of knownNames(history, call)) {
    if (name === '' || isMasked(name)) continue
    const same = earlier((candidate) => hasExactHash(candidate, name))
    if (same) named = renameResult(named, call, name, maskedHash(same.text, volatile, work))
  }
  return { history: named, resultHash: maskedHash(result.text, volatile, work) }
}
