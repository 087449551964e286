/** Pauses: while one holds, the agents that it names get no answer of a model. Plain data, which replicas share. */
import { isObject, textOf } from '../json-object.ts'

/** The agents that a pause names: those of a session (its id in the API), of a key or of an upstream; unset: all. */
export interface PauseScope {
  readonly session?: string | undefined
  readonly key?: string | undefined
  readonly upstream?: string | undefined
}

/** A pause as an operator has set it; times in milliseconds since the epoch. */
export interface Pause extends PauseScope {
  readonly since: number
  /** It ends by itself then; unset: an operator ends it. */
  readonly until?: number | undefined
  readonly reason?: string | undefined
  /** Requests wait for its end, for a while, before they get Governor's text. */
  readonly hold?: boolean | undefined
}

/** How many pauses there may be, and how many characters of a reason are kept. */
export const MAX_PAUSES = 100
export const MAX_REASON = 200

const SCOPES = ['session', 'key', 'upstream'] as const

/** True if a pause is not over at `now`. */
export function holdsAt({ until = Number.POSITIVE_INFINITY }: Pause, now: number): boolean {
  return until > now
}

function isSameScope(one: PauseScope, other: PauseScope): boolean {
  return SCOPES.every((name) => one[name] === other[name])
}

/** Returns the pause that holds at `now` for a request, or for a session as it is listed; `undefined` if none does. */
export function pauseOf(pauses: readonly Pause[], of: PauseScope, now: number): Pause | undefined {
  let found: Pause | undefined
  for (const pause of pauses) {
    if (!holdsAt(pause, now)) continue
    if (SCOPES.some((name) => pause[name] !== undefined && pause[name] !== of[name])) continue
    // One that does not hold requests ends the wait of another one.
    if (!found || (found.hold && !pause.hold)) found = pause
  }
  return found
}

/**
 * Returns the pauses without those of a scope, or without any if the scope names nothing, and without those that are
 * over.
 */
export function withoutPause(pauses: readonly Pause[], scope: PauseScope, now: number): readonly Pause[] {
  return isSameScope(scope, {}) ? [] : besides(pauses, scope, now)
}

/** Returns the pauses that are not over, and have another scope. */
function besides(pauses: readonly Pause[], scope: PauseScope, now: number): readonly Pause[] {
  return pauses.filter((one) => holdsAt(one, now) && !isSameScope(one, scope))
}

/** True if `withoutPause` would end a pause, or if the scope names nothing. */
export function endsPause(pauses: readonly Pause[], scope: PauseScope, now: number): boolean {
  return isSameScope(scope, {}) || pauses.some((one) => holdsAt(one, now) && isSameScope(one, scope))
}

/** True if there is room for one more pause. */
export function hasRoom(pauses: readonly Pause[], pause: Pause): boolean {
  return besides(pauses, pause, pause.since).length < MAX_PAUSES
}

/** Returns the pauses with one more, in place of one with the same scope, and without those that are over. */
export function withPause(pauses: readonly Pause[], pause: Pause): readonly Pause[] {
  return [...besides(pauses, pause, pause.since), pause].slice(-MAX_PAUSES)
}

/** Returns how much is paused at `now`; `undefined` if nothing is. */
export function pausedPart(pauses: readonly Pause[], now: number): 'all' | 'part' | undefined {
  if (pauseOf(pauses, {}, now)) return 'all'
  return pauses.some((pause) => holdsAt(pause, now)) ? 'part' : undefined
}

/** Returns the agents that a pause names, in words. */
export function pausedWhom({
  session,
  key,
  upstream,
}: { readonly [Name in keyof PauseScope]: PauseScope[Name] | null }): string {
  const named = [session && `session ${session}`, key && `key ${key}`, upstream && `upstream ${upstream}`]
  return named.filter(Boolean).join(', ') || 'all agents'
}

/** Returns the pauses in a stored value, whatever version of Governor wrote it; `undefined` if it is no such value. */
export function pausesIn(stored: unknown): readonly Pause[] | undefined {
  if (!isObject(stored) || !Array.isArray(stored['pauses'])) return undefined
  const time = (value: unknown) => (typeof value === 'number' && Number.isFinite(value) ? value : undefined)
  const found: Pause[] = []
  for (const one of stored['pauses'].filter(isObject).slice(-MAX_PAUSES)) {
    const name = (field: string) => textOf(one[field]) || undefined
    const scope = { session: name('session'), key: name('key'), upstream: name('upstream') }
    const until = time(one['until'])
    found.push({ ...scope, since: time(one['since']) ?? 0, until, reason: name('reason'), hold: one['hold'] === true })
  }
  return found
}
