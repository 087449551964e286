/** The routes that pause and resume agents. */
import type { FastifyInstance } from 'fastify'
import {
  endsPause,
  hasRoom,
  holdsAt,
  MAX_REASON,
  type Pause,
  type PauseScope,
  withoutPause,
  withPause,
} from '../../core/operator/pause.ts'
import { idOf, type Store } from '../../store/store.ts'
import type { Emit } from '../../telemetry/event.ts'
import { problem } from '../problem.ts'
import { type Paused, pauseBody, resumeBody } from './api-schema.ts'
import { sessionIn, validated } from './session-in.ts'

/** What operators have set, how it is changed, and what it may name. */
export interface PauseSources {
  readonly store: Store
  /** Milliseconds since the epoch. */
  readonly now: () => number
  readonly emit: Emit
  readonly pauses: {
    readonly current: readonly Pause[]
    change(by: (pauses: readonly Pause[]) => readonly Pause[]): Promise<void>
    subscribe(listener: () => void): () => void
  }
  readonly upstreams: ReadonlyMap<string, unknown>
  /** The names of the access keys. */
  readonly keyNames: () => ReadonlySet<string>
}

/** Returns the pauses that hold at `now`, as the API shows them. */
export function pausesView(pauses: readonly Pause[], now: number): Paused['paused'] {
  const holding = pauses.filter((pause) => holdsAt(pause, now))
  return holding.map(({ session = null, key = null, upstream = null, since, until, reason = null, hold = false }) => {
    const end = until === undefined ? null : new Date(until).toISOString()
    return { session, key, upstream, since: new Date(since).toISOString(), until: end, reason, hold }
  })
}

const UNITS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** Returns the scope that a body names, with the id of its session in the API. Throws if there is no such thing. */
async function scopeOf(sources: PauseSources, { session, key, upstream }: PauseScope) {
  if (upstream !== undefined && !sources.upstreams.has(upstream)) throw problem('unknown_upstream')
  if (key !== undefined && !sources.keyNames().has(key)) throw problem('unknown_key')
  const listed = session === undefined ? undefined : await sessionIn(sources.store, session)
  return { session: listed && idOf(listed.key), key, upstream }
}

/** Serves `/governor/pause` and `/governor/resume`. */
export function pauseRoutes(app: FastifyInstance, sources: PauseSources): void {
  const { pauses, now, emit } = sources
  const view = (): Paused => ({ paused: pausesView(pauses.current, now()) })
  app.get('/governor/pause', view)
  app.post('/governor/pause', async ({ body, admin }) => {
    const { for: length, reason, hold, ...given } = validated(pauseBody, body ?? undefined, 'body')
    const scope = await scopeOf(sources, given)
    const since = now()
    const [, count, unit = 's'] = /^(\d+)([smhd])$/.exec(length ?? '') ?? []
    const until = count === undefined ? undefined : since + Number(count) * UNITS[unit as keyof typeof UNITS]
    const pause = { ...scope, since, until, reason: reason?.slice(0, MAX_REASON), hold }
    if (!hasRoom(pauses.current, pause)) throw problem('too_many_pauses')
    await pauses.change((before) => withPause(before, pause))
    const { since: at, ...facts } = pause
    emit({ kind: 'pause_acted', action: 'pause', at, by: admin.by, ...facts })
    return view()
  })
  app.post('/governor/resume', async ({ body, admin }) => {
    const given = validated(resumeBody, body ?? undefined, 'body')
    // A session that is forgotten is still resumed by its id.
    const isKnown = pauses.current.some(({ session }) => session !== undefined && session === given.session)
    const scope = isKnown ? given : await scopeOf(sources, { session: given.session })
    const named = { ...given, session: scope.session }
    const at = now()
    let isThere = false
    await pauses.change((before) => {
      isThere ||= endsPause(before, named, at)
      return withoutPause(before, named, at)
    })
    if (!isThere) throw problem('unknown_pause')
    emit({ kind: 'pause_acted', action: 'resume', at, by: admin.by, ...named })
    return view()
  })
}
