/**
 * Reports runs that end because nothing comes any more. The replica that gave a run's last answer looks again when the
 * run will have ended, and reports it once its session says so; one that ends before does not.
 */
import { nextQuietEnd, QUIET_MS, reportEnds } from '../../core/session/run.ts'
import type { Session } from '../../core/session/session.ts'
import { idOf, type SessionKey, type Store } from '../../store/store.ts'
import { type Emit, runEnded } from '../../telemetry/event.ts'

/** The most sessions that wait to be looked at; beyond that, the one that waits longest is not looked at. */
const MAX_WAITING = 10_000

/** The environment of quiet runs. */
export interface QuietRunsOptions {
  readonly store: Store
  readonly emit: Emit
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** Calls back once after a delay in milliseconds; returns a function that cancels the call. */
  readonly after: (delay: number, call: () => void) => () => void
}

/** Sessions with runs that may end because nothing comes any more. */
export interface QuietRuns {
  /** Looks at a session when its newest run will have ended, or sooner if it waits already. Never throws. */
  watch(key: SessionKey): void
  /** Ends the watch: no more runs are reported. */
  close(): void
}

interface State {
  readonly options: QuietRunsOptions
  /** When each session is looked at, in milliseconds since the epoch; the first one is the next. */
  readonly waiting: Map<SessionKey, number>
  cancel: (() => void) | undefined
  isClosed: boolean
}

function watch(state: State, key: SessionKey): void {
  const { waiting, options } = state
  if (state.isClosed || waiting.has(key)) return
  const [longest] = waiting.keys()
  if (longest !== undefined && waiting.size >= MAX_WAITING) waiting.delete(longest)
  waiting.set(key, options.now() + QUIET_MS)
  schedule(state)
}

function schedule(state: State): void {
  const { waiting, options } = state
  const [next] = waiting.values()
  if (state.isClosed || state.cancel || next === undefined) return
  const delay = Math.max(0, next - options.now())
  state.cancel = options.after(delay, () => {
    reportDue(state).finally(() => {
      state.cancel = undefined
      schedule(state)
    })
  })
}

async function reportDue(state: State): Promise<void> {
  const { waiting, options } = state
  for (const [key, at] of waiting) {
    if (state.isClosed || at > options.now()) return
    waiting.delete(key)
    // A store that fails costs the report of these runs.
    const isLeft = await reportQuiet(options, key).catch(() => false)
    if (isLeft) watch(state, key)
  }
}

/** Reports the runs of a session that have ended; returns whether another one may. */
async function reportQuiet({ store, emit, now }: QuietRunsOptions, key: SessionKey): Promise<boolean> {
  const session = await store.get(key)
  const next = session && nextQuietEnd(session)
  if (next === undefined || next > now()) return next !== undefined
  const { ended, isLeft } = await store.update(key, (current: Session | undefined) => {
    if (!current) throw new Error('the store has forgotten the session')
    const { session: after, result } = reportEnds(current, now())
    return { session: after, result: { ended: result, isLeft: nextQuietEnd(after) !== undefined } }
  })
  for (const run of ended) emit(runEnded(run, idOf(key)))
  return isLeft
}

/** Creates a watch over the sessions of a store. */
export function createQuietRuns(options: QuietRunsOptions): QuietRuns {
  const state: State = { options, waiting: new Map(), cancel: undefined, isClosed: false }
  return {
    watch: (key) => watch(state, key),
    close() {
      state.isClosed = true
      state.waiting.clear()
      state.cancel?.()
    },
  }
}
