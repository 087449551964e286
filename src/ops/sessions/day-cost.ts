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
  add(usage: CallUsage): void
  /** Returns the cost of today, by this machine's calendar. Rejects if the store fails. */
  today(): Promise<NonNullable<SessionPage['summary']>['today']>
}

/** Creates the count. `now`: milliseconds since the epoch. A cost that the store did not take is added later. */
export function createDayCost(store: Store, now: () => number): DayCost {
  const begunAt = now()
  let cost = 0
  let costGap: CostGap | undefined
  let timer: NodeJS.Timeout | undefined
  const flush = async (): Promise<Cost> => {
    clearTimeout(timer)
    timer = undefined
    const added = { cost, costGap }
    cost = 0
    costGap = undefined
    const midnight = new Date(now()).setHours(0, 0, 0, 0)
    const key = sessionKey(SHARED, String(midnight))
    const isNothing = added.cost === 0 && added.costGap === undefined
    try {
      const known = isNothing ? await store.value(DAYS, key) : DAYS.empty
      if (known.since > 0) return known
      return await store.updateValue(DAYS, key, (before) => {
        const after: Cost = {
          cost: before.cost + added.cost,
          costGap: gapOfSum(before.costGap, added.costGap),
          since: before.since || Math.max(midnight, begunAt),
        }
        return { value: after, result: after }
      })
    } catch (error) {
      cost += added.cost
      costGap = gapOfSum(costGap, added.costGap)
      throw error
    }
  }
  return {
    add(usage) {
      cost += usage.cost ?? 0
      costGap = gapOfSum(costGap, usage.costGap)
      timer ??= setTimeout(() => flush().catch(() => undefined), FLUSH_MS).unref()
    },
    async today() {
      const { cost: spent, costGap: gap, since } = await flush()
      return { ...costView(spent, gap), since: new Date(since).toISOString() }
    },
  }
}
