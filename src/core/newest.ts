/** Bounded lists that keep their newest entries. */

/** Returns the newest `bound` entries of the list with `entry` at its end. */
export function withNewest<T>(list: readonly T[], entry: T, bound: number): readonly T[] {
  if (list.length === 0) return [entry]
  if (list.length < bound) return list.concat(entry)
  const newest = list.slice(1 - bound)
  newest.push(entry)
  return newest
}
