/** What all sessions cost today, in all replicas together. */
import { type CallUsage, type CostGap, gapOfSum } from '../../core/usage.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from '../../store/store.ts'
import type { SessionPage } from './schema.ts'
import { costView } from './view.ts'

interface Cost {
  /** US dollars. */
  readonly cost: number
  readonly costGap?: CostGap | undefined
  /** When the first replica began to count, in milliseconds since the epoch; 0: nobody counts yet. */
  readonly since: number
}

const DAYS: ValueKind<Cost> = { name: 'day_cost', ttl: 172_800_000, empty: { cost: 0, since: 0 } }
/** Milliseconds for which a replica keeps costs to itself. */
const FLUSH_MS = 1_000

export interface DayCost {
  /** Adds what one answer cost. */
  add(usage: Pick<CallUsage, 'cost' | 'costGap'>): void
  /** Returns the cost of today, by this machine's calendar. Rejects if the store fails. */
  today(): Promise<NonNullable<SessionPage['summary']>['today']>
}

/** Creates the count. `now`: milliseconds since the epoch. A cost that the store did not take is added later. */
export function createDayCost(store: Store, now: () => number): DayCost {
  const begunAt = now()
  let pending: Pick<Cost, 'cost' | 'costGap'> = { cost: 0 }
  let timer: NodeJS.Timeout | undefined
  const keep: DayCost['add'] = ({ cost = 0, costGap }) => {
    pending = { cost: pending.cost + cost, costGap: gapOfSum(pending.costGap, costGap) }
  }
  const flush = async (): Promise<Cost> => {
    clearTimeout(timer)
    timer = undefined
    const added = pending
    pending = { cost: 0 }
    const midnight = new Date(now()).setHours(0, 0, 0, 0)
    const key = sessionKey(SHARED, String(midnight))
    try {
      return await store.updateValue(DAYS, key, (before) => {
        const after: Cost = {
          cost: before.cost + added.cost,
          costGap: gapOfSum(before.costGap, added.costGap),
          since: before.since || Math.max(midnight, begunAt),
        }
        return { value: after, result: after }
      })
    } catch (error) {
      keep(added)
      throw error
    }
  }
  return {
    add(usage) {
      keep(usage)
      timer ??= setTimeout(() => flush().catch(() => undefined), FLUSH_MS).unref()
    },
    async today() {
      const { cost, costGap, since } = await flush()
      return { ...costView(cost, costGap), since: new Date(since).toISOString() }
    },
  }
}
