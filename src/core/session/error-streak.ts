/**
 * Storms of errors: an agent that sends one request after the other into a provider that is overloaded or gone. After
 * enough such errors in a row its requests get the newest of them at once, with a time to wait, and one at a time goes
 * through to see whether the provider is back. Plain data and pure functions. Times are milliseconds since the epoch.
 */

export interface StormPolicy {
  readonly enabled: boolean
  /** So many errors in a row make a storm. */
  readonly errors: number
}

/** An error as the client got it. */
export interface ErrorReply {
  readonly status: number
  readonly contentType: string
  readonly body: string
  /** How long the provider asks its clients to wait, in milliseconds; unset where it does not say. */
  readonly waitMs?: number | undefined
}

/** Errors in a row of one upstream and model in one thread. */
export interface ErrorStreak {
  /** Names upstream and model. */
  readonly target: string
  readonly errors: number
  readonly firstAt: number
  readonly newestAt: number
  readonly newest: ErrorReply
  /** Requests that were let through since the storm began, and got an error too. */
  readonly failedProbes: number
  /** A request is on its way to see whether the provider is back; another may go from this time on. */
  readonly probeUntil: number
}

/** What a request gets in a storm. */
export interface StormReply {
  readonly error: ErrorReply
  /** Seconds after which the client should ask again. */
  readonly retryAfter: number
  /** Errors in a row so far. */
  readonly errors: number
}

/** Fewer seconds of errors are an ordinary bad moment, which the client's own retries outlast. */
const LEAST_MS = 60_000
/** Errors further apart are not one storm. */
const MAX_GAP_MS = 600_000
/** Milliseconds between two requests that go through, by how many have failed. */
const WAITS_MS = [5_000, 10_000, 30_000, 50_000] as const
const LONGEST_WAIT_MS = 50_000
/** A request that went through and was not answered by then is given up on. */
const PROBE_MS = 60_000
/** An agent that goes from one model to the next has so many streaks at most. */
const MAX_STREAKS = 4

/** Errors that say that the provider is overloaded or gone, and nothing of the request. */
export function isStormError(status: number): boolean {
  return status === 429 || status >= 500
}

function isStorm({ errors, firstAt, newestAt }: ErrorStreak, policy: StormPolicy): boolean {
  return policy.enabled && errors >= policy.errors && newestAt - firstAt >= LEAST_MS
}

/** Milliseconds from the newest error until the client should ask again. */
function waitOf({ newest, failedProbes }: ErrorStreak): number {
  return newest.waitMs ?? WAITS_MS[Math.min(failedProbes, WAITS_MS.length - 1)] ?? LONGEST_WAIT_MS
}

/** Takes an error into account. */
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
        firstAt: known.firstAt,
        newestAt: now,
        newest,
        failedProbes: isStorm(known, policy) ? known.failedProbes + 1 : 0,
        probeUntil: 0,
      }
  return [...others, next].slice(-MAX_STREAKS)
}

/** The provider is back: it gave an answer. */
export function withoutErrors(streaks: readonly ErrorStreak[], target: string): readonly ErrorStreak[] {
  return streaks.filter((streak) => streak.target !== target)
}

/** A request that went through told nothing of the provider: the next may. */
export function withoutProbe(streaks: readonly ErrorStreak[], target: string): readonly ErrorStreak[] {
  return streaks.map((streak) => (streak.target === target ? { ...streak, probeUntil: 0 } : streak))
}

/** What a request gets: the newest error where there is a storm and it is not its turn, else nothing. */
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
  if (now >= probeAt) {
    const probing = { ...known, probeUntil: now + PROBE_MS }
    return { streaks: streaks.map((streak) => (streak === known ? probing : streak)), reply: undefined }
  }
  const left = known.probeUntil > now ? (WAITS_MS[0] ?? 0) : known.newestAt + wait - now
  const retryAfter = Math.max(1, Math.ceil(left / 1_000))
  return { streaks, reply: { error: known.newest, retryAfter, errors: known.errors } }
}
