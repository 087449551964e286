/** Counts what each tenant holds on a shelf, so that a full shelf takes from the tenant that holds most. */
import type { SessionKey } from './store.ts'

/** The entries of one tenant. */
export interface Holder {
  readonly tenant: string
  /** Names of its entries, the least recently used first. */
  readonly names: Set<SessionKey>
  /** The most recently used name; unset if that entry was removed. */
  newest: SessionKey | undefined
  bytes: number
}

/** Holders ranked by an amount, in steps, so that those with the most are found without a look at the others. */
interface Ranking {
  readonly step: number
  readonly ranks: Map<number, Set<Holder>>
  top: number
}

function createRanking(step: number): Ranking {
  return { step, ranks: new Map(), top: 0 }
}

function moveInRanking(ranking: Ranking, holder: Holder, before: number, after: number): void {
  const { step, ranks } = ranking
  const from = Math.ceil(before / step)
  const to = Math.ceil(after / step)
  if (from === to) return
  const left = ranks.get(from)
  left?.delete(holder)
  if (left?.size === 0) ranks.delete(from)
  const joined = ranks.get(to)
  if (joined) joined.add(holder)
  else if (to > 0) ranks.set(to, new Set([holder]))
  ranking.top = Math.max(ranking.top, to)
  while (ranking.top > 0 && !ranks.has(ranking.top)) ranking.top--
}

/** Tenants whose bytes differ by less than this share of the shelf's bytes rank the same. */
const SHARE_OF_A_STEP = 1 / 1_024

/** All tenants with entries on a shelf. Each change takes the same time, however many tenants there are. */
export interface Holders {
  readonly byTenant: Map<string, Holder>
  readonly byCount: Ranking
  readonly byBytes: Ranking
  /** Bytes of all entries. */
  bytes: number
}

/** Creates the holders of an empty shelf; `maxBytes`: the bytes that all tenants together may hold. */
export function createHolders(maxBytes: number): Holders {
  const byBytes = createRanking(Math.max(1, maxBytes * SHARE_OF_A_STEP))
  return { byTenant: new Map(), byCount: createRanking(1), byBytes, bytes: 0 }
}

/** Returns the holder of a tenant, an empty one if the tenant holds nothing. */
export function holderOf(holders: Holders, tenant: string): Holder {
  return holders.byTenant.get(tenant) ?? { tenant, names: new Set(), newest: undefined, bytes: 0 }
}

/** Notes that an entry was used. */
export function touchEntry(holder: Holder, name: SessionKey): void {
  if (holder.newest === name) return
  holder.names.delete(name)
  holder.names.add(name)
  holder.newest = name
}

/** Notes that an entry was added or replaced; `more`: by how many bytes it grew. */
export function addEntry(holders: Holders, holder: Holder, name: SessionKey, more: number): void {
  const { size } = holder.names
  if (size === 0) holders.byTenant.set(holder.tenant, holder)
  touchEntry(holder, name)
  rankAnew(holders, holder, size, more)
}

/** Notes that an entry of so many bytes was removed. */
export function removeEntry(holders: Holders, holder: Holder, name: SessionKey, bytes: number): void {
  const { size } = holder.names
  if (!holder.names.delete(name)) return
  if (holder.newest === name) holder.newest = undefined
  rankAnew(holders, holder, size, -bytes)
  if (holder.names.size === 0) holders.byTenant.delete(holder.tenant)
}

/**
 * Returns the least recently used name of the tenant with most bytes, or most entries; that of `preferred` if several
 * tenants have most. `undefined` if the shelf is empty.
 */
export function oldestOfLargest(
  { byBytes, byCount }: Holders,
  amount: 'bytes' | 'count',
  preferred: Holder | undefined,
): SessionKey | undefined {
  const { ranks, top } = amount === 'bytes' ? byBytes : byCount
  const largest = ranks.get(top)
  const holder = preferred && largest?.has(preferred) ? preferred : largest?.values().next().value
  return holder?.names.values().next().value
}

function rankAnew(holders: Holders, holder: Holder, countBefore: number, more: number): void {
  moveInRanking(holders.byCount, holder, countBefore, holder.names.size)
  moveInRanking(holders.byBytes, holder, holder.bytes, holder.bytes + more)
  holder.bytes += more
  holders.bytes += more
}
