/**
 * Options of `lru-cache` for at most so many entries. With its own `max` it would allocate room for all of them at
 * once.
 */
export function atMost(entries: number) {
  return { maxSize: entries, sizeCalculation: () => 1 }
}
