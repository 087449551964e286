/** A cache that is bounded in number, age and size, and whose room is shared fairly between tenants. */
import { LRUCache } from 'lru-cache'
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
  readonly name: string
  /** Keys of its entries, the least recently used first. */
  readonly keys: Set<SessionKey>
  /** The most recently used key; unset if that entry was removed. */
  newest: SessionKey | undefined
  bytes: number
  /** Its share of all entries or of all bytes, whichever is larger, counted in entries. */
  rank: number
}

interface Entry<V> {
  value: V
  readonly bytes: number
  readonly tenant: Tenant
}

function touch(tenant: Tenant, key: SessionKey): void {
  if (tenant.newest === key) return
  tenant.keys.delete(key)
  tenant.keys.add(key)
  tenant.newest = key
}

/** All tenants with entries in a cache. Each change takes the same time, however many tenants there are. */
interface Tenants {
  readonly byName: Map<string, Tenant>
  /** Tenants by rank, so that those with the most are found without a look at the others. */
  readonly byRank: Map<number, Set<Tenant>>
  top: number
  bytes: number
}

/** Adds bytes to a tenant, whose number of entries may have changed too, and ranks it anew. */
function grow(tenants: Tenants, tenant: Tenant, bytes: number, { max, maxBytes }: CacheLimits<never>): void {
  const { byRank } = tenants
  tenant.bytes += bytes
  tenants.bytes += bytes
  const rank = Math.ceil(Math.max(tenant.keys.size, (tenant.bytes / maxBytes) * max))
  if (rank === tenant.rank) return
  const left = byRank.get(tenant.rank)
  left?.delete(tenant)
  if (left?.size === 0) byRank.delete(tenant.rank)
  if (rank > 0) byRank.set(rank, (byRank.get(rank) ?? new Set()).add(tenant))
  tenant.rank = rank
  tenants.top = Math.max(tenants.top, rank)
  while (tenants.top > 0 && !byRank.has(tenants.top)) tenants.top--
}

/** Drops expired entries, else the least recently used one of the tenant that has most, while a bound is passed. */
function makeRoom<V>(entries: LRUCache<SessionKey, Entry<V>>, tenants: Tenants, limits: CacheLimits<V>): void {
  while (entries.size > limits.max || tenants.bytes > limits.maxBytes) {
    const oldest = entries.rkeys().next().value
    if (oldest === undefined) return
    let dropped: SessionKey | undefined
    if (entries.getRemainingTTL(oldest) >= 0) {
      let largest = entries.peek(oldest)?.tenant
      if (largest?.rank !== tenants.top) largest = tenants.byRank.get(tenants.top)?.values().next().value
      dropped = largest?.keys.values().next().value
    }
    entries.delete(dropped ?? oldest)
  }
}

/** Bytes by which a value may change before it is measured again. */
const SLACK = 1_024

const FRESH = { allowStale: false }

/**
 * Creates an empty cache. When it is full it drops expired entries, else the least recently used entry of the tenant that
 * has most, so that no tenant loses entries to a tenant that has more.
 */
export function createFairCache<V>(limits: CacheLimits<V>) {
  const { max, ttl, maxBytes, sizeOf, now } = limits
  const tenants: Tenants = { byName: new Map(), byRank: new Map(), top: 0, bytes: 0 }
  const entries = new LRUCache<SessionKey, Entry<V>>({
    ttl,
    // This bound is never reached. With a `max`, lru-cache would allocate room for all entries at once.
    maxSize: max + 1,
    sizeCalculation: () => 1,
    updateAgeOnGet: true,
    // Only `makeRoom` sees expired entries.
    allowStale: true,
    dispose({ tenant, bytes }, key, reason) {
      if (reason === 'set' || !tenant.keys.delete(key)) return
      if (tenant.newest === key) tenant.newest = undefined
      grow(tenants, tenant, -bytes, limits)
      if (tenant.keys.size === 0) tenants.byName.delete(tenant.name)
    },
    perf: { now },
    ttlResolution: 0,
  })
  return {
    count: () => entries.size,
    keys: () => [...entries.keys()],
    /** Returns a value and notes its use; `undefined` if there is none. */
    get(key: SessionKey): V | undefined {
      const entry = entries.get(key, FRESH)
      if (entry) touch(entry.tenant, key)
      return entry?.value
    },
    /** Returns a value without noting its use; `undefined` if there is none. */
    peek: (key: SessionKey) => entries.peek(key, FRESH)?.value,
    set(key: SessionKey, value: V, valueTtl?: number): void {
      const entry = entries.get(key, FRESH)
      const bytes = sizeOf(value)
      if (entry && Math.abs(bytes - entry.bytes) <= SLACK) {
        // A new entry costs as much again as all the rest of an update.
        entry.value = value
        return
      }
      if (bytes > maxBytes) {
        entries.delete(key)
        return
      }
      const name = tenantOfKey(key)
      const known = entry?.tenant ?? tenants.byName.get(name)
      const tenant = known ?? { name, keys: new Set(), newest: undefined, bytes: 0, rank: 0 }
      entries.set(key, { value, bytes, tenant }, valueTtl === undefined ? undefined : { ttl: valueTtl })
      tenants.byName.set(tenant.name, tenant)
      touch(tenant, key)
      grow(tenants, tenant, bytes - (entry?.bytes ?? 0), limits)
      makeRoom(entries, tenants, limits)
    },
    delete: (key: SessionKey) => void entries.delete(key),
  }
}

/** A cache with values of one type. */
export type FairCache<V> = ReturnType<typeof createFairCache<V>>
