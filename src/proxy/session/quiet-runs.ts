/**
 * Reports runs that end because nothing comes any more. The replica that gave a run's last answer looks again when the
 * run will have ended, and reports it once its session says so; one that ends before does not.
 */
import { LRUCache } from 'lru-cache'
import { atMost } from '../../core/bounds/cache-bound.ts'
import { nextQuietEnd, QUIET_MS, reportEnds } from '../../core/session/run.ts'
import { idOf, type SessionKey, type Store } from '../../store/store.ts'
import { type Emit, runEnded } from '../../telemetry/event.ts'

/** The most sessions that wait to be looked at; beyond that, the one that waits longest is not looked at. */
const MAX_WAITING = 10_000

interface QuietRunsOptions {
  readonly store: Store
  readonly emit: Emit
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** Calls back once after a delay in milliseconds; returns a function that cancels the call. */
  readonly after: (delay: number, call: () => void) => () => void
}

/** Sessions with runs that may end because nothing comes any more. */
export type QuietRuns = ReturnType<typeof createQuietRuns>

/** Creates a watch over the sessions of a store. */
export function createQuietRuns({ store, emit, now, after }: QuietRunsOptions) {
  /** The function that cancels the look at each session. */
  const waiting = new LRUCache<SessionKey, () => void>({
    ...atMost(MAX_WAITING),
    dispose: (cancel) => cancel(),
  })
  let isClosed = false
  const watch = (key: SessionKey) => {
    if (isClosed || waiting.has(key)) return
    const cancel = after(QUIET_MS, () => look(key))
    waiting.set(key, cancel)
  }
  const look = async (key: SessionKey) => {
    waiting.delete(key)
    try {
      const session = await store.get(key)
      let next = session && nextQuietEnd(session)
      if (next !== undefined && next <= now()) {
        const ended = await store.update(key, (current) => {
          if (!current) throw new Error('the store has forgotten the session')
          const reported = reportEnds(current, now())
          next = nextQuietEnd(reported.session)
          return reported
        })
        for (const run of ended) emit(runEnded(run, idOf(key)))
      }
      if (next !== undefined) watch(key)
    } catch {
      // A store that fails costs the report of these runs.
    }
  }
  return {
    /** Looks at a session when its newest run will have ended, or sooner if it waits already. Never throws. */
    watch,
    /** Ends the watch: no more runs are reported. */
    close() {
      isClosed = true
      waiting.clear()
    },
  }
}
