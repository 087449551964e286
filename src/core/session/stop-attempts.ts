/** What a run that was stopped remembers of the requests for its last answer that brought none to be recorded. */

export interface StopAttempts {
  /** Names of the forms of the request that the provider failed on. */
  readonly failedForms: readonly string[]
  /** How often it failed, and when first, in milliseconds since the epoch. */
  readonly failures: number
  readonly failingSince: number
  /** How many answers were cut off. */
  readonly truncated: number
}

export const NO_STOP_ATTEMPTS: StopAttempts = { failedForms: [], failures: 0, failingSince: 0, truncated: 0 }

/** So many failures over so many milliseconds are no passing one. */
const MAX_FAILURES = 3
const PASSING_MS = 10_000
/** So many answers that were cut off are asked for anew; the next one is recorded, as the run's limit stays reached. */
const MAX_TRUNCATED = 3

/** The provider failed on a form of the request. `now`: in milliseconds since the epoch, where it is to be counted. */
export function withFailure(
  tries: StopAttempts = NO_STOP_ATTEMPTS,
  form: string,
  now?: number,
): StopAttempts {
  const { failedForms, failures, failingSince } = tries
  return {
    ...tries,
    failedForms: failedForms.includes(form) ? failedForms : [...failedForms, form],
    failures: now === undefined ? failures : failures + 1,
    failingSince: now !== undefined && failures === 0 ? now : failingSince,
  }
}

/** Has the provider failed so often, and for so long, that the run has to end without its answer? */
export function isHopeless({ failures, failingSince }: StopAttempts, now: number): boolean {
  return failures >= MAX_FAILURES && now - failingSince >= PASSING_MS
}

export function withTruncated(tries: StopAttempts = NO_STOP_ATTEMPTS): StopAttempts {
  return { ...tries, truncated: tries.truncated + 1 }
}

/** Is an answer that was cut off the last one that is asked for? */
export function isLastTry({ truncated }: StopAttempts): boolean {
  return truncated > MAX_TRUNCATED
}
