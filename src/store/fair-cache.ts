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
function createTenants(max: number, maxBytes: number) {
  const tenants = new Map<string, Tenant>()
  /** Tenants by rank, so that those with the most are found without a look at the others. */
  const ranks = new Map<number, Set<Tenant>>()
  let top = 0
  const all = { bytes: 0 }
  const grow = (tenant: Tenant, bytes: number) => {
    tenant.bytes += bytes
    all.bytes += bytes
    const rank = Math.ceil(Math.max(tenant.keys.size, (tenant.bytes / maxBytes) * max))
    if (rank === tenant.rank) return
    const left = ranks.get(tenant.rank)
    left?.delete(tenant)
    if (left?.size === 0) ranks.delete(tenant.rank)
    if (rank > 0) ranks.set(rank, (ranks.get(rank) ?? new Set()).add(tenant))
    tenant.rank = rank
    top = Math.max(top, rank)
    while (top > 0 && !ranks.has(top)) top--
  }
  return {
    all,
    find: (name: string): Tenant =>
      tenants.get(name) ?? { name, keys: new Set(), newest: undefined, bytes: 0, rank: 0 },
    add(tenant: Tenant, key: SessionKey, bytes: number): void {
      tenants.set(tenant.name, tenant)
      touch(tenant, key)
      grow(tenant, bytes)
    },
    remove(tenant: Tenant, key: SessionKey, bytes: number): void {
      if (!tenant.keys.delete(key)) return
      if (tenant.newest === key) tenant.newest = undefined
      grow(tenant, -bytes)
      if (tenant.keys.size === 0) tenants.delete(tenant.name)
    },
    /** Returns the least recently used key of the tenant with most; of `preferred` if several have most. */
    oldestOfLargest(preferred: Tenant | undefined): SessionKey | undefined {
      const largest = preferred?.rank === top ? preferred : ranks.get(top)?.values().next().value
      return largest?.keys.values().next().value
    },
  }
}

/** Bytes by which a value may change before it is measured again. */
const SLACK = 1_024

const FRESH = { allowStale: false }

/**
 * Creates an empty cache. When it is full it drops expired entries, else the least recently used entry of the tenant that
 * has most, so that no tenant loses entries to a tenant that has more.
 */
export function createFairCache<V>({ max, ttl, maxBytes, sizeOf, now }: CacheLimits<V>) {
  const tenants = createTenants(max, maxBytes)
  const entries = new LRUCache<SessionKey, Entry<V>>({
    ttl,
    // This bound is never reached. With a `max`, lru-cache would allocate room for all entries at once.
    maxSize: max + 1,
    sizeCalculation: () => 1,
    updateAgeOnGet: true,
    // Only `makeRoom` sees expired entries.
    allowStale: true,
    dispose({ tenant, bytes }, key, reason) {
      if (reason !== 'set') tenants.remove(tenant, key, bytes)
    },
    perf: { now },
    ttlResolution: 0,
  })
  const makeRoom = () => {
    while (entries.size > max || tenants.all.bytes > maxBytes) {
      const oldest = entries.rkeys().next().value
      if (oldest === undefined) return
      const isExpired = entries.getRemainingTTL(oldest) < 0
      entries.delete((isExpired ? undefined : tenants.oldestOfLargest(entries.peek(oldest)?.tenant)) ?? oldest)
    }
  }
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
      } else if (bytes > maxBytes) {
        entries.delete(key)
      } else {
        const tenant = entry?.tenant ?? tenants.find(tenantOfKey(key))
        entries.set(key, { value, bytes, tenant }, valueTtl === undefined ? undefined : { ttl: valueTtl })
        tenants.add(tenant, key, bytes - (entry?.bytes ?? 0))
        makeRoom()
      }
    },
    delete: (key: SessionKey) => void entries.delete(key),
  }
}

/** A cache with values of one type. */
export type FairCache<V> = ReturnType<typeof createFairCache<V>>
