/** Bounded lists that keep their newest entries. */
import type { Hash } from './hash.ts'

/** So few hashes are compared with each other faster than they are put into a set. */
const FEW = 16

/**
 * Returns the hashes of both lists, those of `shown` last, each once and at most `bound`. The first one stays, because
 * it identifies the thread.
 */
export function merged(known: readonly Hash[], shown: readonly Hash[], bound: number): readonly Hash[] {
  // Nearly all requests bring nothing new, or one hash more at the end.
  const last = shown.at(-1)
  if (last === undefined) return known
  const isGrown = known.length < bound && known.length > 0 && !known.includes(last)
  if (isGrown && areKnown(known, shown, shown.length - 1)) return known.concat(last)
  if (!isGrown && known.at(-1) === last && areKnown(known, shown, shown.length)) return known
  if (known.length === 0 && shown.length <= FEW && areDistinct(shown)) return shown.slice()
  const newest = new Set(shown)
  const first = known[0] ?? shown[0]
  const others = [...known.filter((hash) => !newest.has(hash)), ...newest].filter((hash) => hash !== first)
  return first === undefined ? [] : [first, ...others.slice(-(bound - 1))]
}

function areDistinct(list: readonly Hash[]): boolean {
  for (let at = 1; at < list.length; at++) {
    const before = list[at - 1]
    if (before !== undefined && list.includes(before, at)) return false
  }
  return true
}

/** True if `known` contains the first `count` hashes of `shown`, in any order. */
function areKnown(known: readonly Hash[], shown: readonly Hash[], count: number): boolean {
  for (let at = 0; at < count; at++) {
    const hash = shown[at]
    if (hash !== undefined && hash !== known[at] && !known.includes(hash)) return false
  }
  return true
}

/** Returns the newest `bound` entries of the list with `entry` at its end. */
export function withNewest<T>(list: readonly T[], entry: T, bound: number): readonly T[] {
  if (list.length === 0) return [entry]
  if (list.length < bound) return list.concat(entry)
  const newest = list.slice(1 - bound)
  newest.push(entry)
  return newest
}
