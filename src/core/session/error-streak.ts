/**
 * Storms of errors: an agent sends one request after the other to a provider that is overloaded or gone. After enough
 * errors in a row its requests get the newest error at once, with a time to wait, and one request at a time goes
 * through as a probe. Plain data and pure functions. Times are milliseconds since the epoch.
 */

import { nameOf } from '../hash.ts'

/** When errors in a row become a storm. */
export interface StormPolicy {
  readonly enabled: boolean
  /** How many errors in a row make a storm. */
  readonly errors: number
}

/** An error as the client got it. */
export interface ErrorReply {
  readonly status: number
  readonly contentType: string
  readonly body: string
  /** How long the provider asks its clients to wait, in milliseconds; unset if it does not say. */
  readonly waitMs?: number | undefined
}

/** Errors in a row of one upstream and model in one thread. */
export interface ErrorStreak {
  /** Key of upstream and model. */
  readonly target: string
  readonly errors: number
  readonly firstAt: number
  readonly newestAt: number
  readonly newest: ErrorReply
  /** Requests that reached the provider since the storm began, and got an error too. */
  readonly failedProbes: number
  /** A probe is in flight; the next one may go from this time on. */
  readonly probeUntil: number
}

/** The reply to a request in a storm. */
export interface StormReply {
  readonly error: ErrorReply
  /** Seconds until the client should send the request again. */
  readonly retryAfter: number
  /** Errors in a row so far. */
  readonly errors: number
}

/** Shorter periods of errors are not a storm: the client's retries outlast them. */
const LEAST_MS = 60_000
/** Errors further apart do not belong to one storm. */
const MAX_GAP_MS = 600_000
/** Milliseconds between two probes, by how many probes have failed. */
const WAITS_MS = [5_000, 10_000, 30_000, 50_000] as const
const LONGEST_WAIT_MS = 50_000
/** Milliseconds until a probe without an answer counts as lost. */
const PROBE_MS = 60_000
/** How many streaks a thread remembers: agents may alternate between models. */
const MAX_STREAKS = 4

/** Returns the key under which errors of a request are counted: its upstream and model. */
export function targetOf(request: {
  readonly upstream: string
  readonly conversation: { readonly model: string }
}): string {
  return nameOf(request.upstream, request.conversation.model)
}

/** Returns whether a status says that the provider is overloaded or gone, whatever the request was. */
export function isStormError(status: number): boolean {
  return status === 429 || status >= 500
}

function isStorm({ errors, firstAt, newestAt }: ErrorStreak, policy: StormPolicy): boolean {
  return policy.enabled && errors >= policy.errors && newestAt - firstAt >= LEAST_MS
}

/** Returns the milliseconds from the newest error until the client should send the request again. */
function waitOf({ newest, failedProbes }: ErrorStreak): number {
  return newest.waitMs ?? WAITS_MS[Math.min(failedProbes, WAITS_MS.length - 1)] ?? LONGEST_WAIT_MS
}

/** Adds an error to the streak of its target. */
export function withError(
  streaks: readonly ErrorStreak[],
  target: string,
  newest: ErrorReply,
  policy: StormPolicy,
  now: number,
): readonly ErrorStreak[] {
  const known = streaks.find((streak) => streak.target === target)
  const others = streaks.filter((streak) => streak !== known)
  const isNew = !known || now - known.newestAt > MAX_GAP_MS
  const next: ErrorStreak = isNew
    ? { target, errors: 1, firstAt: now, newestAt: now, newest, failedProbes: 0, probeUntil: 0 }
    : {
        target,
        errors: known.errors + 1,
        firstAt: Math.min(known.firstAt, now),
        newestAt: now,
        newest,
        failedProbes: isStorm(known, policy) ? known.failedProbes + 1 : 0,
        probeUntil: 0,
      }
  return [...others, next].slice(-MAX_STREAKS)
}

/** Ends the streak of a target whose provider answered. */
export function withoutErrors(streaks: readonly ErrorStreak[], target: string): readonly ErrorStreak[] {
  return streaks.filter((streak) => streak.target !== target)
}

/** Ends the probe of a target whose provider gave no storm error and no success: the next request may go through. */
export function withoutProbe(streaks: readonly ErrorStreak[], target: string): readonly ErrorStreak[] {
  return streaks.map((streak) => (streak.target === target ? { ...streak, probeUntil: 0 } : streak))
}

/** Returns the reply that a request gets in a storm, or lets it through as a probe. */
export function enterStorm(
  streaks: readonly ErrorStreak[],
  target: string,
  policy: StormPolicy,
  now: number,
): { readonly streaks: readonly ErrorStreak[]; readonly reply: StormReply | undefined } {
  const known = streaks.find((streak) => streak.target === target)
  if (!known || !isStorm(known, policy)) return { streaks, reply: undefined }
  const wait = waitOf(known)
  const probeAt = Math.max(known.newestAt + Math.min(wait, LONGEST_WAIT_MS), known.probeUntil)
  // A longer wait than there is comes from a clock that was set back, here or in another replica.
  if (now >= probeAt || probeAt - now > PROBE_MS) {
    const probing = { ...known, probeUntil: now + PROBE_MS }
    return { streaks: streaks.map((streak) => (streak === known ? probing : streak)), reply: undefined }
  }
  const left = known.probeUntil > now ? (WAITS_MS[0] ?? 0) : known.newestAt + wait - now
  const retryAfter = Math.max(1, Math.ceil(left / 1_000))
  return { streaks, reply: { error: known.newest, retryAfter, errors: known.errors } }
}
