/**
 * Hashes of results. Masking a result costs much, and most results need no masking: most calls are made once, and most
 * calls that are made again bring the same bytes. So a result is masked only if the same call had a different one.
 */

import type { Hash } from '../hash.ts'
import type { Work } from '../work.ts'
import { type CallHistory, renameResult } from './call-history.ts'
import { isMasked, type MaskMode, maskedHash } from './result-mask.ts'
import { exactResultHash, hasExactHash, type TranscriptResult } from './tool-result.ts'

/** Says whether the history has results of the call: none, the same one, or only different ones. */
function earlierResults(
  { window, repeats }: CallHistory,
  call: Hash,
  exact: Hash,
): 'none' | 'same' | 'different' {
  let earlier: 'none' | 'different' = 'none'
  if (repeats?.call === call) {
    if (repeats.resultHash === exact) return 'same'
    earlier = 'different'
  }
  for (const entry of window) {
    if (entry.call !== call) continue
    if (entry.resultHash === exact) return 'same'
    earlier = 'different'
  }
  return earlier
}

/** The hashes of all results of a call in the history. */
function hashesOf({ window, repeats }: CallHistory, call: Hash): Set<Hash | ''> {
  const hashes = new Set(window.filter((entry) => entry.call === call).map(({ resultHash }) => resultHash))
  if (repeats?.call === call) hashes.add(repeats.resultHash)
  return hashes
}

/**
 * Returns the hash of a call's result, and the history in which the call's results have equal hashes if they are equal
 * apart from times and ids. `findEarlier` finds an earlier result of the call in the transcript; one that is no longer
 * there counts as different. Throws `TooMuchToRead`.
 */
export function hashResult(
  history: CallHistory,
  call: Hash,
  result: TranscriptResult,
  volatile: MaskMode,
  findEarlier: (matches: (result: TranscriptResult) => boolean) => TranscriptResult | undefined,
  work?: Work,
): { readonly history: CallHistory; readonly resultHash: Hash } {
  const exact = exactResultHash(result, volatile)
  if (volatile === 'none' || earlierResults(history, call, exact) !== 'different')
    return { history, resultHash: exact }
  let masked = history
  for (const hash of hashesOf(history, call)) {
    if (hash === '' || isMasked(hash)) continue
    const earlier = findEarlier((candidate) => hasExactHash(candidate, hash))
    if (earlier) masked = renameResult(masked, call, hash, maskedHash(earlier.text(), volatile, work))
  }
  return { history: masked, resultHash: maskedHash(result.text(), volatile, work) }
}
