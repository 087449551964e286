/** A cache that is bounded in number, age and size, and whose room is shared fairly between tenants. */
import { LRUCache } from 'lru-cache'
import { atMost } from '../core/bounds/cache-bound.ts'
import { type SessionKey, tenantOfKey } from './store.ts'

/** The bounds of a cache. */
export interface CacheLimits<V> {
  readonly max: number
  /** Milliseconds since the last use of an entry. */
  readonly ttl: number
  /** Bytes of all entries, roughly; a single entry with more is not kept. */
  readonly maxBytes: number
  readonly sizeOf: (value: V) => number
  /** Returns milliseconds that only grow and are never 0. */
  readonly now: () => number
}

interface Tenant {
  /** Keys of its entries, the least recently used first. */
  readonly keys: Set<SessionKey>
  bytes: number
}

interface Entry<V> {
  value: V
  readonly bytes: number
  readonly tenant: Tenant
}

/**
 * Returns the oldest entry if it is expired, else the least recently used one of the tenant with the largest share of
 * all entries, or of all bytes: `room` bytes count as one entry.
 */
function nextToDrop<V>(entries: LRUCache<SessionKey, Entry<V>>, tenants: Iterable<Tenant>, room: number) {
  const [oldest] = entries.rkeys()
  if (oldest === undefined || entries.getRemainingTTL(oldest) < 0) return oldest
  let most = 0
  let fullest: Tenant | undefined
  for (const tenant of tenants) {
    const share = Math.max(tenant.keys.size, tenant.bytes / room)
    if (share <= most) continue
    most = share
    fullest = tenant
  }
  return fullest?.keys.values().next().value
}

/** What all entries take. */
interface Room {
  readonly tenants: Map<string, Tenant>
  bytes: number
}

/** Gives an entry its room; returns whose it is. */
function enter(room: Room, key: SessionKey, bytes: number): Tenant {
  const name = tenantOfKey(key)
  const tenant = room.tenants.get(name) ?? { keys: new Set(), bytes: 0 }
  room.tenants.set(name, tenant)
  tenant.keys.add(key)
  tenant.bytes += bytes
  room.bytes += bytes
  return tenant
}

/** Takes the room of an entry back. */
function leave(room: Room, { bytes, tenant }: Entry<unknown>, key: SessionKey): void {
  tenant.keys.delete(key)
  tenant.bytes -= bytes
  room.bytes -= bytes
  if (tenant.keys.size === 0) room.tenants.delete(tenantOfKey(key))
}

/** Bytes by which a value may change before it is measured again. */
const SLACK = 1_024

const FRESH = { allowStale: false }

/**
 * Creates an empty cache. When it is full it drops expired entries, else the least recently used entry of the tenant
 * that has most, so that no tenant loses entries to a tenant that has more.
 */
export function createFairCache<V>({ max, ttl, maxBytes, sizeOf, now }: CacheLimits<V>) {
  const room: Room = { tenants: new Map(), bytes: 0 }
  const entries = new LRUCache<SessionKey, Entry<V>>({
    ttl,
    // This bound is never reached.
    ...atMost(max + 1),
    updateAgeOnGet: true,
    // Only `nextToDrop` sees expired entries.
    allowStale: true,
    dispose: (entry, key) => leave(room, entry, key),
    perf: { now },
    ttlResolution: 0,
  })
  return {
    count: () => entries.size,
    keys: () => [...entries.keys()],
    /** Returns a value and notes its use; `undefined` if there is none. */
    get(key: SessionKey): V | undefined {
      const entry = entries.get(key, FRESH)
      const keys = entry?.tenant.keys
      // The keys of a set stand in the order in which they were added.
      if (keys?.delete(key)) keys.add(key)
      return entry?.value
    },
    /** Returns a value without noting its use; `undefined` if there is none. */
    peek: (key: SessionKey) => entries.peek(key, FRESH)?.value,
    set(key: SessionKey, value: V, valueTtl = ttl): void {
      const entry = entries.get(key, FRESH)
      const bytes = sizeOf(value)
      if (entry && Math.abs(bytes - entry.bytes) <= SLACK) {
        // A new entry costs as much again as all the rest of an update.
        entry.value = value
        return
      }
      entries.delete(key)
      if (bytes > maxBytes) return
      entries.set(key, { value, bytes, tenant: enter(room, key, bytes) }, { ttl: valueTtl })
      while (entries.size > max || room.bytes > maxBytes) {
        const dropped = nextToDrop(entries, room.tenants.values(), maxBytes / max)
        if (dropped === undefined) break
        entries.delete(dropped)
      }
    },
    delete: (key: SessionKey) => void entries.delete(key),
  }
}
