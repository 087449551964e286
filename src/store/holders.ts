/** What each tenant has on a shelf, so that a full shelf takes from the one that has most. */
import type { SessionKey } from './store.ts'

/** What one tenant has. */
export interface Holder {
  readonly tenant: string
  /** Names of its things, the least recently used first. */
  readonly names: Set<SessionKey>
  /** The one that was used last. */
  newest: SessionKey | undefined
  bytes: number
}

/** Holders by an amount, in steps: those with the most are found without looking at the others. */
class Ranking {
  readonly #step: number
  readonly #ranks = new Map<number, Set<Holder>>()
  #top = 0

  constructor(step: number) {
    this.#step = step
  }

  move(holder: Holder, before: number, after: number): void {
    const from = Math.ceil(before / this.#step)
    const to = Math.ceil(after / this.#step)
    if (from === to) return
    const left = this.#ranks.get(from)
    left?.delete(holder)
    if (left?.size === 0) this.#ranks.delete(from)
    const joined = this.#ranks.get(to)
    if (joined) joined.add(holder)
    else if (to > 0) this.#ranks.set(to, new Set([holder]))
    this.#top = Math.max(this.#top, to)
    while (this.#top > 0 && !this.#ranks.has(this.#top)) this.#top--
  }

  /** `preferred` where nobody has more, else one that has most. */
  most(preferred: Holder | undefined): Holder | undefined {
    const top = this.#ranks.get(this.#top)
    if (preferred && top?.has(preferred)) return preferred
    return top?.values().next().value
  }
}

/** Two tenants whose bytes differ by less than this share of all there may be hold the same. */
const SHARE_OF_A_STEP = 1 / 1_024

/** All tenants that have something on a shelf. Each change takes the same time, however many there are. */
export class Holders {
  readonly #byTenant = new Map<string, Holder>()
  readonly #byCount = new Ranking(1)
  readonly #byBytes: Ranking
  #bytes = 0

  /** `maxBytes`: what all of them together may have. */
  constructor(maxBytes: number) {
    this.#byBytes = new Ranking(Math.max(1, maxBytes * SHARE_OF_A_STEP))
  }

  /** What all of them have. */
  get bytes(): number {
    return this.#bytes
  }

  holderOf(tenant: string): Holder {
    return this.#byTenant.get(tenant) ?? { tenant, names: new Set(), newest: undefined, bytes: 0 }
  }

  /** A thing was used. */
  touch(holder: Holder, name: SessionKey): void {
    if (holder.newest === name) return
    holder.names.delete(name)
    holder.names.add(name)
    holder.newest = name
  }

  /** A thing was put there, or takes so many bytes more than before. */
  put(holder: Holder, name: SessionKey, more: number): void {
    const { size } = holder.names
    if (size === 0) this.#byTenant.set(holder.tenant, holder)
    this.touch(holder, name)
    this.#change(holder, size, more)
  }

  remove(holder: Holder, name: SessionKey, bytes: number): void {
    const { size } = holder.names
    if (!holder.names.delete(name)) return
    if (holder.newest === name) holder.newest = undefined
    this.#change(holder, size, -bytes)
    if (holder.names.size === 0) this.#byTenant.delete(holder.tenant)
  }

  /** The least recently used thing of the holder that has most bytes, or most things; `preferred` where several have most. */
  oldestOfMost(what: 'bytes' | 'count', preferred: Holder | undefined): SessionKey | undefined {
    const ranking = what === 'bytes' ? this.#byBytes : this.#byCount
    return ranking.most(preferred)?.names.values().next().value
  }

  #change(holder: Holder, countBefore: number, more: number): void {
    this.#byCount.move(holder, countBefore, holder.names.size)
    this.#byBytes.move(holder, holder.bytes, holder.bytes + more)
    holder.bytes += more
    this.#bytes += more
  }
}
