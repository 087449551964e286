/** The list with one more item at its end, of which at most the newest `max` are kept. No longer than it must be. */
export function withNewest<Item>(list: readonly Item[], item: Item, max: number): readonly Item[] {
  const from = Math.max(0, list.length + 1 - max)
  const length = list.length - from
  // A list that something is pushed onto, or spread into, keeps room for as many again.
  const kept = new Array<Item>(length + 1)
  for (let at = 0; at < length; at++) kept[at] = list[from + at] as Item
  kept[length] = item
  return kept
}
