/** What all sessions cost today, in all replicas together. */
import { type CallUsage, gapOfSum } from '../../core/usage.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from '../../store/store.ts'
import { costView } from './view.ts'

/** What some answers cost in US dollars; unset: nothing is known. */
type Spent = Pick<CallUsage, 'cost' | 'costGap'>

/** `since`: when the first replica began to count, in milliseconds since the epoch; 0: nobody counts yet. */
const DAYS: ValueKind<Spent & { readonly since: number }> = { name: 'day_cost', ttl: 172_800_000, empty: { since: 0 } }
/** Milliseconds for which a replica keeps costs to itself. */
const FLUSH_MS = 1_000

function sumOf(one: Spent, other: Spent): Spent {
  return { cost: (one.cost ?? 0) + (other.cost ?? 0), costGap: gapOfSum(one.costGap, other.costGap) }
}

export type DayCost = ReturnType<typeof createDayCost>

/** Creates the count. `now`: milliseconds since the epoch. A cost that the store did not take is added later. */
export function createDayCost(store: Store, now: () => number) {
  const begunAt = now()
  let pending: Spent = {}
  let timer: NodeJS.Timeout | undefined
  /** Adds what is pending to the cost of today, by this machine's calendar, and returns that. */
  const flush = async () => {
    clearTimeout(timer)
    timer = undefined
    const added = pending
    pending = {}
    const midnight = new Date(now()).setHours(0, 0, 0, 0)
    try {
      return await store.updateValue(DAYS, sessionKey(SHARED, String(midnight)), (before) => {
        const after = { ...sumOf(before, added), since: before.since || Math.max(midnight, begunAt) }
        return { value: after, result: after }
      })
    } catch (error) {
      pending = sumOf(pending, added)
      throw error
    }
  }
  return {
    add(usage: Spent): void {
      pending = sumOf(pending, usage)
      timer ??= setTimeout(() => flush().catch(() => undefined), FLUSH_MS).unref()
    },
    /** Returns the cost of today. Rejects if the store fails. */
    async today() {
      const { cost = 0, costGap, since } = await flush()
      return { ...costView(cost, costGap), since: new Date(since).toISOString() }
    },
  }
}
