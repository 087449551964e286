/** Values by name, bounded in number, age and size; the bounds are shared fairly between tenants. */
import { LRUCache } from 'lru-cache'
import {
  addEntry,
  createHolders,
  type Holder,
  type Holders,
  holderOf,
  oldestOfLargest,
  removeEntry,
  touchEntry,
} from './holders.ts'
import { type SessionKey, tenantOfKey } from './store.ts'

/** The bounds of a shelf. */
export interface ShelfLimits<V> {
  readonly max: number
  /** Milliseconds since the last use of an entry. */
  readonly ttl: number
  /** Bytes of all entries, roughly; a single entry with more is not kept. */
  readonly maxBytes: number
  /** Returns the bytes of a value, roughly. */
  readonly sizeOf: (value: V) => number
  /** Returns milliseconds that only grow and are never 0. */
  readonly now: () => number
}

/** An entry of a shelf, with its bytes when it was last weighed. */
export interface Entry<V> {
  value: V
  readonly bytes: number
  readonly holder: Holder
}

/**
 * The entries of a shelf. A full shelf drops expired entries, else the least recently used entry of the tenant that holds
 * most, so that no tenant loses entries to a tenant that holds more.
 */
export interface Shelf<V> {
  readonly limits: ShelfLimits<V>
  readonly holders: Holders
  readonly entries: LRUCache<SessionKey, Entry<V>>
}

/** Bytes by which a value may change before it is weighed anew. */
const SLACK = 1_024

const FRESH = { allowStale: false }

/** Creates an empty shelf. */
export function createShelf<V>(limits: ShelfLimits<V>): Shelf<V> {
  const holders = createHolders(limits.maxBytes)
  const entries = new LRUCache<SessionKey, Entry<V>>({
    ttl: limits.ttl,
    // This bound is never reached. With a `max`, lru-cache would allocate room for all entries at once.
    maxSize: limits.max + 1,
    sizeCalculation: () => 1,
    updateAgeOnGet: true,
    // Only `makeRoom` sees expired entries.
    allowStale: true,
    dispose({ holder, bytes }, name, reason) {
      if (reason !== 'set') removeEntry(holders, holder, name, bytes)
    },
    perf: { now: limits.now },
    ttlResolution: 0,
  })
  return { limits, holders, entries }
}

/** Returns an entry and notes its use; `undefined` if there is none. */
export function entryOf<V>({ entries }: Shelf<V>, name: SessionKey): Entry<V> | undefined {
  const entry = entries.get(name, FRESH)
  if (entry) touchEntry(entry.holder, name)
  return entry
}

/** Returns a value without noting its use; `undefined` if there is none. */
export function peekValue<V>({ entries }: Shelf<V>, name: SessionKey): V | undefined {
  return entries.peek(name, FRESH)?.value
}

/**
 * Sets a value. `entry`: the current entry of this name, whose value is replaced in place if its size hardly changed,
 * because a new entry costs as much again. `ttl`: milliseconds, if they differ from those of the shelf.
 */
export function setValue<V>(
  shelf: Shelf<V>,
  name: SessionKey,
  value: V,
  entry: Entry<V> | undefined,
  ttl?: number,
): void {
  const { limits, holders, entries } = shelf
  const bytes = limits.sizeOf(value)
  if (entry && Math.abs(bytes - entry.bytes) <= SLACK) {
    entry.value = value
    return
  }
  if (bytes > limits.maxBytes) {
    entries.delete(name)
    return
  }
  const holder = entry?.holder ?? holderOf(holders, tenantOfKey(name))
  entries.set(name, { value, bytes, holder }, ttl === undefined ? undefined : { ttl })
  addEntry(holders, holder, name, bytes - (entry?.bytes ?? 0))
  makeRoom(shelf)
}

function makeRoom<V>({ limits, holders, entries }: Shelf<V>): void {
  for (;;) {
    const isTooLarge = holders.bytes > limits.maxBytes
    if (!isTooLarge && entries.size <= limits.max) return
    const oldest = entries.rkeys().next().value
    if (oldest === undefined) return
    const isExpired = entries.getRemainingTTL(oldest) < 0
    const holder = entries.peek(oldest)?.holder
    const next = isExpired ? oldest : oldestOfLargest(holders, isTooLarge ? 'bytes' : 'count', holder)
    entries.delete(next ?? oldest)
  }
}
