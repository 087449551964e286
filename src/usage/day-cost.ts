/** What all sessions cost today, in all replicas together. */
import { type CallUsage, gapOfSum } from '../core/usage.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from '../store/store.ts'

/** US dollars that one replica, or all of them, have counted. `since`: when that began, in ms since the epoch. */
interface Part extends Pick<CallUsage, 'cost' | 'costGap'> {
  readonly since: number
}

/**
 * The parts of a day by replica. Each writes its own alone, and whole: after an outage of the store the parts are
 * merged, and one that the store did not take or has lost is there again with the next.
 */
const DAYS: ValueKind<Readonly<Record<string, Part>>> = { name: 'day_costs', ttl: 172_800_000, empty: {} }
/** Milliseconds for which a replica keeps costs to itself. */
const FLUSH_MS = 1_000

/** Returns the sum of a cost and a further one, since the earlier of their times. */
function addPart(sum: Part, { since = sum.since, cost = 0, costGap }: Partial<Part>): Part {
  return { since: Math.min(sum.since, since), cost: (sum.cost ?? 0) + cost, costGap: gapOfSum(sum.costGap, costGap) }
}

export type DayCost = ReturnType<typeof createDayCost>

/** Creates the count of a replica. `now`: milliseconds since the epoch; days are those of this machine's calendar. */
export function createDayCost(store: Store, now: () => number, replica: string) {
  const begunAt = now()
  let day = 0
  let nextDay = 0
  let sum: Part = { since: begunAt }
  let timer: NodeJS.Timeout | undefined
  const count = (usage: Omit<Part, 'since'>): void => {
    const at = now()
    if (at < day || at >= nextDay) {
      day = new Date(at).setHours(0, 0, 0, 0)
      nextDay = new Date(at).setHours(24, 0, 0, 0)
      sum = { since: Math.max(day, begunAt) }
    }
    sum = addPart(sum, usage)
  }
  const flush = (): Promise<readonly Part[]> => {
    clearTimeout(timer)
    timer = undefined
    count({})
    const part = sum
    return store.updateValue(DAYS, sessionKey(SHARED, String(day)), (before) => {
      const after = { ...before, [replica]: part }
      return { value: after, result: Object.values(after) }
    })
  }
  return {
    add(usage: Omit<Part, 'since'>): void {
      count(usage)
      timer ??= setTimeout(() => flush().catch(() => undefined), FLUSH_MS).unref()
    },
    /** Returns the cost of today, and since when it is counted. Rejects if the store fails. */
    async today(): Promise<Part> {
      let all: Part = { since: now(), cost: 0 }
      for (const part of await flush()) all = addPart(all, part)
      return all
    },
  }
}
