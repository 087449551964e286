/** Things by name, the most recently used of them: bounded in number, age and size, and shared between tenants. */
import { LRUCache } from 'lru-cache'
import { type Holder, Holders } from './holders.ts'
import { type SessionKey, tenantOfKey } from './store.ts'

export interface ShelfLimits<V> {
  readonly max: number
  /** Milliseconds since something was last used. */
  readonly ttl: number
  /** Bytes that all of them together may take, roughly; what alone takes more is not kept. */
  readonly maxBytes: number
  readonly sizeOf: (value: V) => number
  /** Milliseconds that only grow, from any point on but 0. */
  readonly now: () => number
}

/** What is kept, whose it is, and what it took when it was weighed, in bytes. */
export interface Kept<V> {
  value: V
  readonly bytes: number
  readonly holder: Holder
}

/** So many bytes something may grow by before it is weighed anew. */
const SLACK = 1_024

const FRESH = { allowStale: false }

/**
 * What is there is changed in its place: to put it back costs as much again. A full shelf gives up what has expired; else
 * the least recently used thing of the tenant that has most, so that nobody loses what is theirs to somebody who has more.
 */
export class Shelf<V> {
  readonly #sizeOf: (value: V) => number
  readonly #max: number
  readonly #maxBytes: number
  readonly #holders: Holders
  readonly #kept: LRUCache<SessionKey, Kept<V>>

  constructor({ max, ttl, maxBytes, sizeOf, now }: ShelfLimits<V>) {
    this.#sizeOf = sizeOf
    this.#max = max
    this.#maxBytes = maxBytes
    const holders = new Holders(maxBytes)
    this.#holders = holders
    this.#kept = new LRUCache({
      ttl,
      // Its own bound is never reached. Not as a `max`, for which lru-cache takes the room of all things at once.
      maxSize: max + 1,
      sizeCalculation: () => 1,
      updateAgeOnGet: true,
      // What has expired is seen by `#makeRoom`, and by nobody else.
      allowStale: true,
      dispose({ holder, bytes }, name, reason) {
        if (reason !== 'set') holders.remove(holder, name, bytes)
      },
      perf: { now },
      ttlResolution: 0,
    })
  }

  get size(): number {
    return this.#kept.size
  }

  get(name: SessionKey): Kept<V> | undefined {
    const kept = this.#kept.get(name, FRESH)
    if (kept) this.#holders.touch(kept.holder, name)
    return kept
  }

  /** What is there, without a use of it. */
  peek(name: SessionKey): V | undefined {
    return this.#kept.peek(name, FRESH)?.value
  }

  /** All names, the most recently used first; what has expired may be among them. */
  keys(): SessionKey[] {
    return [...this.#kept.keys()]
  }

  /** `known`: what is there under this name. `ttl`: milliseconds, where it is another than that of the shelf. */
  put(name: SessionKey, value: V, known: Kept<V> | undefined, ttl?: number): void {
    const bytes = this.#sizeOf(value)
    if (known && Math.abs(bytes - known.bytes) <= SLACK) {
      known.value = value
      return
    }
    if (bytes > this.#maxBytes) {
      this.#kept.delete(name)
      return
    }
    const holder = known?.holder ?? this.#holders.holderOf(tenantOfKey(name))
    this.#kept.set(name, { value, bytes, holder }, ttl === undefined ? undefined : { ttl })
    this.#holders.put(holder, name, bytes - (known?.bytes ?? 0))
    this.#makeRoom()
  }

  delete(name: SessionKey): void {
    this.#kept.delete(name)
  }

  #makeRoom(): void {
    for (;;) {
      const isTooMuch = this.#holders.bytes > this.#maxBytes
      if (!isTooMuch && this.#kept.size <= this.#max) return
      const oldest = this.#kept.rkeys().next().value
      if (oldest === undefined) return
      const isExpired = this.#kept.getRemainingTTL(oldest) < 0
      const holder = this.#kept.peek(oldest)?.holder
      const next = isExpired ? oldest : this.#holders.oldestOfMost(isTooMuch ? 'bytes' : 'count', holder)
      this.#kept.delete(next ?? oldest)
    }
  }
}
