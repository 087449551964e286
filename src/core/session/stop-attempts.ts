/** Requests for the final answer of a stopped run that brought no answer to record. */

export interface StopAttempts {
  /** Names of the request variants that the provider failed on; the newest failure is the last. */
  readonly failedForms: readonly string[]
  /** How often it failed. */
  readonly failures: number
  /** When it failed first, in milliseconds since the epoch. */
  readonly failingSince: number
  /** How many answers were cut off. */
  readonly truncated: number
}

export const NO_STOP_ATTEMPTS: StopAttempts = { failedForms: [], failures: 0, failingSince: 0, truncated: 0 }

/** After this many failures over this many milliseconds the provider counts as down. */
const MAX_FAILURES = 3
const PASSING_MS = 10_000
/** How many answers that were cut off are asked for again; the next one is recorded, as the limit stays reached. */
const MAX_TRUNCATED = 3

/** Adds a failure on a request variant. `now`: in milliseconds since the epoch; unset if the failure is not counted. */
export function withFailure(tries: StopAttempts = NO_STOP_ATTEMPTS, form: string, now?: number): StopAttempts {
  const { failedForms, failures, failingSince } = tries
  return {
    ...tries,
    failedForms: [...failedForms.filter((failed) => failed !== form), form],
    failures: now === undefined ? failures : failures + 1,
    failingSince: now === undefined ? failingSince : Math.min(now, failures === 0 ? now : failingSince),
  }
}

/** Returns whether the provider failed so often, and for so long, that the run has to end without its answer. */
export function isHopeless({ failures, failingSince }: StopAttempts, now: number): boolean {
  return failures >= MAX_FAILURES && now - failingSince >= PASSING_MS
}

/** Adds an answer that was cut off. */
export function withTruncated(tries: StopAttempts = NO_STOP_ATTEMPTS): StopAttempts {
  return { ...tries, truncated: tries.truncated + 1 }
}

/** Returns whether an answer that was cut off is recorded, instead of asking for it again. */
export function isLastTry({ truncated }: StopAttempts): boolean {
  return truncated > MAX_TRUNCATED
}
