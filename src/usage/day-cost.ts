/** What all sessions cost today, in all replicas together. */

import { add, type Counts } from '../core/counters.ts'
import { ignore } from '../core/thrown.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from '../store/store.ts'

/** What one replica, or all of them, have counted. `since`: when that began, in ms since the epoch. */
interface Part {
  readonly since: number
  readonly counts: Counts
}

/**
 * The parts of a day by replica. Each writes its own alone, and whole: after an outage of the store the parts are
 * merged, and one that the store did not take or has lost is there again with the next.
 */
const DAYS: ValueKind<Readonly<Record<string, Part>>> = { name: 'day_costs', ttl: 172_800_000, empty: {} }
/** Milliseconds for which a replica keeps costs to itself. */
const FLUSH_MS = 1_000

export type DayCost = ReturnType<typeof createDayCost>

/** How many days are known: a clock may go ahead and back. */
const DAYS_KNOWN = 3

/** Creates the count of a replica. `now`: milliseconds since the epoch; days are those of this machine's calendar. */
export function createDayCost(store: Store, now: () => number, replica: string) {
  const begunAt = now()
  let day = 0
  let nextDay = 0
  /** The sums of days, the newest last. */
  const known = new Map<number, Part>()
  let sum: Part = { since: begunAt, counts: {} }
  let timer: NodeJS.Timeout | undefined
  const count = (counts: Counts): void => {
    const at = now()
    // A clock that goes back resets no sum.
    if (at < day || at >= nextDay) {
      day = new Date(at).setHours(0, 0, 0, 0)
      nextDay = new Date(at).setHours(24, 0, 0, 0)
      sum = known.get(day) ?? { since: Math.min(at, Math.max(day, begunAt)), counts: {} }
      known.delete(day)
    }
    sum = { ...sum, counts: add(sum.counts, counts) }
    known.set(day, sum)
    for (const oldest of known.keys()) if (known.size > DAYS_KNOWN) known.delete(oldest)
  }
  const flush = async (): Promise<readonly Part[]> => {
    clearTimeout(timer)
    timer = undefined
    count({})
    const part = sum
    return store.updateValue(DAYS, sessionKey(SHARED, String(day)), (before) => {
      const after = { ...before, [replica]: part }
      return { value: after, result: Object.values(after) }
    })
  }
  const write = () => flush().then(ignore, ignore)
  return {
    add(counts: Counts): void {
      count(counts)
      timer ??= setTimeout(write, FLUSH_MS).unref()
    },
    /** Call it when the store can be reached again: it may have lost everything. Never rejects. */
    restore: write,
    /** Writes what this replica has kept to itself. Never rejects. */
    close: async () => (timer ? write() : undefined),
    /** Returns what was counted today, and since when. Rejects if the store fails. */
    async today(): Promise<Part> {
      let all: Part = { since: now(), counts: {} }
      for (const part of await flush()) {
        all = { since: Math.min(all.since, part.since), counts: add(all.counts, part.counts) }
      }
      return all
    },
  }
}
