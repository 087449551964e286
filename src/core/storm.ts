/**
 * Storms of errors: an agent sends one request after the other to a provider that is overloaded or gone. After enough
 * errors in a row its requests get the newest error at once, with a time to wait, and one request at a time goes
 * through as a probe. Plain data and pure functions. Times are milliseconds since the epoch.
 */

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

/** Errors in a row that one thread got from one upstream and model. */
export interface ErrorStreak {
  readonly errors: number
  /** The body of the newest request, as a hash, and when it got an error in the last two seconds. */
  readonly repeated?: { readonly body: string; readonly at: readonly number[] }
  /** One body got so many errors within two seconds that a storm began. */
  readonly isBurst?: boolean
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
/** A client that sends one body so often in this time does not pause between its retries. */
const BURST_MS = 2_000
/** Milliseconds between two probes, by how many probes have failed. */
const WAITS_MS = [5_000, 10_000, 30_000, 50_000] as const
const LONGEST_WAIT_MS = 50_000
/** Milliseconds until a probe without an answer counts as lost. */
const PROBE_MS = 60_000

function isStorm({ errors, firstAt, newestAt, isBurst = false }: ErrorStreak, policy: StormPolicy): boolean {
  return policy.enabled && (isBurst || (errors >= policy.errors && newestAt - firstAt >= LEAST_MS))
}

/** Returns the streak after one more error, which a request with this body got. `body`: a hash. */
export function withError(
  streak: ErrorStreak | undefined,
  newest: ErrorReply,
  policy: StormPolicy,
  now: number,
  body: string,
) {
  const before = streak?.repeated?.body === body ? streak.repeated.at : []
  const at = [...before.filter((one) => Math.abs(now - one) <= BURST_MS), now].slice(-policy.errors)
  return {
    repeated: { body, at },
    isBurst: streak?.isBurst || at.length >= policy.errors,
    errors: (streak?.errors ?? 0) + 1,
    firstAt: Math.min(streak?.firstAt ?? now, now),
    newestAt: now,
    newest,
    failedProbes: streak && isStorm(streak, policy) ? streak.failedProbes + 1 : 0,
    probeUntil: 0,
  } satisfies ErrorStreak
}

/** Returns the reply that a request gets in a storm; `undefined` if it goes through, in a storm as a probe. */
export function enterStorm(streak: ErrorStreak | undefined, policy: StormPolicy, now: number) {
  if (!streak || !isStorm(streak, policy)) return { streak }
  const { errors, newest, newestAt, failedProbes, probeUntil } = streak
  const wait = newest.waitMs ?? WAITS_MS[failedProbes] ?? LONGEST_WAIT_MS
  const probeAt = Math.max(newestAt + Math.min(wait, LONGEST_WAIT_MS), probeUntil)
  // A longer wait than there is comes from a clock that was set back, here or in another replica.
  if (now >= probeAt || probeAt - now > PROBE_MS) return { streak: { ...streak, probeUntil: now + PROBE_MS } }
  const left = probeUntil > now ? WAITS_MS[0] : newestAt + wait - now
  const reply: StormReply = { error: newest, retryAfter: Math.max(1, Math.ceil(left / 1_000)), errors }
  return { streak, reply }
}
