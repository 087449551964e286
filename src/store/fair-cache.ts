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
  /** Returns the bytes of a value, roughly. */
  readonly sizeOf: (value: V) => number
  /** Returns milliseconds that only grow and are never 0. */
  readonly now: () => number
}

/** What one tenant has in a cache. */
interface Tenant {
  readonly name: string
  /** Keys of its entries, the least recently used first. */
  readonly keys: Set<SessionKey>
  /** The most recently used key; unset if that entry was removed. */
  newest: SessionKey | undefined
  bytes: number
}

/** An entry of a cache, with its bytes when it was last measured. */
export interface Entry<V> {
  value: V
  readonly bytes: number
  readonly tenant: Tenant
}

/**
 * A full cache drops expired entries, else the least recently used entry of the tenant that has most, so that no tenant
 * loses entries to a tenant that has more.
 */
export interface FairCache<V> {
  readonly size: number
  keys(): SessionKey[]
  /** Returns an entry and notes its use; `undefined` if there is none. */
  get(key: SessionKey): Entry<V> | undefined
  /** Returns a value without noting its use; `undefined` if there is none. */
  peek(key: SessionKey): V | undefined
  /**
   * Sets a value. `entry`: the current entry of this key, whose value is replaced in place if its size hardly changed,
   * because a new entry costs as much again. `ttl`: milliseconds, if they differ from those of the cache.
   */
  set(key: SessionKey, value: V, entry: Entry<V> | undefined, ttl?: number): void
  delete(key: SessionKey): void
}

/** Tenants by an amount, in steps, so that those with the most are found without a look at the others. */
function createRanking(step: number) {
  const ranks = new Map<number, Set<Tenant>>()
  let top = 0
  return {
    move(tenant: Tenant, before: number, after: number): void {
      const from = Math.ceil(before / step)
      const to = Math.ceil(after / step)
      if (from === to) return
      const left = ranks.get(from)
      left?.delete(tenant)
      if (left?.size === 0) ranks.delete(from)
      if (to > 0) ranks.set(to, (ranks.get(to) ?? new Set()).add(tenant))
      top = Math.max(top, to)
      while (top > 0 && !ranks.has(top)) top--
    },
    /** Returns the tenant with the most; `preferred` if several have most. */
    largest(preferred: Tenant | undefined): Tenant | undefined {
      const tenants = ranks.get(top)
      return preferred && tenants?.has(preferred) ? preferred : tenants?.values().next().value
    },
  }
}

/** Tenants whose bytes differ by less than this share of the cache's bytes rank the same. */
const SHARE_OF_A_STEP = 1 / 1_024

/** All tenants with entries in a cache. Each change takes the same time, however many tenants there are. */
function createTenants(maxBytes: number) {
  const tenants = new Map<string, Tenant>()
  const byCount = createRanking(1)
  const byBytes = createRanking(Math.max(1, maxBytes * SHARE_OF_A_STEP))
  const all = { bytes: 0 }
  const rank = (tenant: Tenant, countBefore: number, more: number) => {
    byCount.move(tenant, countBefore, tenant.keys.size)
    byBytes.move(tenant, tenant.bytes, tenant.bytes + more)
    tenant.bytes += more
    all.bytes += more
  }
  const touch = (tenant: Tenant, key: SessionKey) => {
    if (tenant.newest === key) return
    tenant.keys.delete(key)
    tenant.keys.add(key)
    tenant.newest = key
  }
  return {
    all,
    touch,
    /** Returns a tenant, without entries if it is unknown. */
    find: (name: string): Tenant => tenants.get(name) ?? { name, keys: new Set(), newest: undefined, bytes: 0 },
    /** Notes that an entry was added or replaced; `more`: by how many bytes it grew. */
    add(tenant: Tenant, key: SessionKey, more: number): void {
      const count = tenant.keys.size
      if (count === 0) tenants.set(tenant.name, tenant)
      touch(tenant, key)
      rank(tenant, count, more)
    },
    /** Notes that an entry of so many bytes was removed. */
    remove(tenant: Tenant, key: SessionKey, bytes: number): void {
      const count = tenant.keys.size
      if (!tenant.keys.delete(key)) return
      if (tenant.newest === key) tenant.newest = undefined
      rank(tenant, count, -bytes)
      if (tenant.keys.size === 0) tenants.delete(tenant.name)
    },
    /** Returns the least recently used key of the tenant with most; of `preferred` if several have most. */
    oldestOfLargest(amount: 'bytes' | 'count', preferred: Tenant | undefined): SessionKey | undefined {
      const largest = (amount === 'bytes' ? byBytes : byCount).largest(preferred)
      return largest?.keys.values().next().value
    },
  }
}

/** Bytes by which a value may change before it is measured again. */
const SLACK = 1_024

const FRESH = { allowStale: false }

/** Creates an empty cache. */
export function createFairCache<V>({ max, ttl, maxBytes, sizeOf, now }: CacheLimits<V>): FairCache<V> {
  const tenants = createTenants(maxBytes)
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
    for (;;) {
      const isTooLarge = tenants.all.bytes > maxBytes
      const oldest = isTooLarge || entries.size > max ? entries.rkeys().next().value : undefined
      if (oldest === undefined) return
      const isExpired = entries.getRemainingTTL(oldest) < 0
      const preferred = entries.peek(oldest)?.tenant
      const next = isExpired ? oldest : tenants.oldestOfLargest(isTooLarge ? 'bytes' : 'count', preferred)
      entries.delete(next ?? oldest)
    }
  }
  return {
    get size() {
      return entries.size
    },
    keys: () => [...entries.keys()],
    get(key) {
      const entry = entries.get(key, FRESH)
      if (entry) tenants.touch(entry.tenant, key)
      return entry
    },
    peek: (key) => entries.peek(key, FRESH)?.value,
    set(key, value, entry, valueTtl) {
      const bytes = sizeOf(value)
      if (entry && Math.abs(bytes - entry.bytes) <= SLACK) {
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
    delete: (key) => void entries.delete(key),
  }
}
