/**
 * The rate of a session: what it uses per minute, measured over its newest minutes of the clock. Above a limit on it an
 * agent reads one notice and then gets its last answer, or its requests wait, one after the other.
 */
import { rounded } from '../counters.ts'
import { MINUTE_MS, type MinuteRecord, type SessionRecord } from '../operator/session-record.ts'
import {
  amountIn,
  LIMITS,
  type LimitName,
  METERS,
  type Meter,
  type MeterRow,
  type MeterTime,
  TIME_LIMITS,
  type TimeLimitName,
} from './meters.ts'

/** The meters with a limit of a rate: those with one of runs and of scopes of time. */
export type RateLimitName = LimitName & TimeLimitName
export const RATE_LIMITS: readonly RateLimitName[] = LIMITS.filter((name): name is RateLimitName =>
  TIME_LIMITS.some((other) => other === name),
)

/** A limit on the rate of each session. */
export interface Velocity {
  /** Amounts per minute; 0 is no limit. */
  readonly limits: Readonly<Record<RateLimitName, number>>
  /** The minutes of the clock over which it is measured, the current one included. */
  readonly minutes: number
  /** Requests wait until the rate is lower; else the run ends. */
  readonly slows: boolean
  /** It is counted and reported, but ends and slows nothing. */
  readonly isObserved: boolean
}

/** The longest time for which a request waits, in milliseconds: clients wait longer for the first byte. */
export const MAX_SLOWED_MS = 30_000

export type RateMeter = Meter<RateLimitName> & { readonly time: MeterTime }

/** What the rate reads of a session: its minutes, and when it was reset. */
interface Measured {
  readonly record?: Pick<SessionRecord, 'minutes'> | undefined
  readonly operator?: { readonly base?: { readonly at: number } | undefined } | undefined
}

/**
 * Returns the meters of a session's rate. A part of the oldest minute has passed already, so it is left out: the rate
 * is never more than what was used in that time. `now`: milliseconds since the epoch. `isAsked`: for a request of the
 * session, which is one more iteration.
 */
export function ratesOf({ limits, minutes }: Velocity, session: Measured, now: number, isAsked = true): RateMeter[] {
  const { record, operator } = session
  const from = Math.max(now - minutes * MINUTE_MS, operator?.base?.at ?? 0)
  const counted = (record?.minutes ?? []).filter(({ at }) => at > from)
  const perMinute = (amount: number) => rounded(amount / minutes)
  return RATE_LIMITS.filter((name) => limits[name] > 0).map((name) => {
    const max = limits[name]
    const { includesCurrent }: MeterRow = METERS[name]
    const amountOf = ({ counts }: MinuteRecord) => amountIn(counts, name) ?? 0
    let left = counted.reduce((sum, minute) => sum + amountOf(minute), 0)
    const used = perMinute(left + Number(isAsked && includesCurrent === true))
    // Once so many minutes, the oldest first, are left out, the rate is below the limit.
    let resetsAt = now
    for (const minute of counted) {
      if (perMinute(left) < max) break
      resetsAt = minute.at + minutes * MINUTE_MS
      left -= amountOf(minute)
    }
    return { name, used, max, scope: 'minute', time: { resetsAt, resets: '', left: Math.max(0, max - used) } }
  })
}

/** True if a rate has reached its limit; of iterations, if the current one is the last. */
export function isReached({ used, max }: RateMeter): boolean {
  return used >= max
}

/** A request that waits, or was let through and is not over. `until`: it waits no longer, in milliseconds. */
export interface Waiting {
  readonly id: string
  readonly until: number
  /** It was let through. */
  readonly isLet?: true
}

/** Requests of one session that wait at a time; later ones wait for as long as they may. */
const MAX_WAITING = 256

/** Returns the requests that wait after one more has come, or looks again; the first one is the next that goes on. */
export function withWaiting(queue: readonly Waiting[], one: Waiting, now: number): readonly Waiting[] {
  const left = queue.filter(({ id, until }) => id === one.id || until > now)
  return left.some(({ id }) => id === one.id) || left.length >= MAX_WAITING ? left : [...left, one]
}

/** Returns the requests that wait after one of them was let through at a limit. */
export function withLet(queue: readonly Waiting[], own: Waiting): readonly Waiting[] {
  return queue.map((one) => (one.id === own.id ? { ...one, isLet: true } : one))
}

/** True if a request still waits, so that one that comes now is not the next. */
export function isAwaited(queue: readonly Waiting[], now: number): boolean {
  return queue.some(({ until, isLet }) => !isLet && until > now)
}

/**
 * True if a request waits no longer: its time is over, or the rate is below the limit and no other comes before it.
 * `hasReached`: the limit, so that it goes on when the response to the one before it is over; else once that is let.
 */
export function mayGo(
  queue: readonly Waiting[],
  { id, until }: Waiting,
  isBelow: boolean,
  now: number,
  hasReached = true,
): boolean {
  if (now >= until) return true
  const before = queue.findIndex((one) => one.id === id)
  if (!isBelow || before === -1) return false
  return queue.slice(0, before).every(({ isLet }) => isLet && !hasReached)
}
