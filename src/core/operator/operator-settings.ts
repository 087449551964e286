/** The settings of an operator for a session; plain JSON. */
import type { Amounts, LimitName } from '../budget/meters.ts'
import type { LoopMode } from '../loop/policy.ts'

/** Limits of a run, and of all runs of its session together; 0 is no limit. */
export interface LimitPair {
  readonly run: Amounts
  readonly session: Amounts
}

/** The settings of an operator for a thread; they take precedence over all others. */
export interface ThreadSettings {
  /** Limits of each run. */
  readonly budget?: Partial<Amounts> | undefined
  readonly loopMode?: LoopMode | undefined
}

/** The changes of an operator to one run. */
export interface RunSettings {
  /** Limits that were raised. */
  readonly extended?: Partial<Amounts> | undefined
  /** The next request gets the last answer. */
  readonly isStopAsked?: boolean | undefined
  /** What it had used when it was reset; unset if it was never reset. */
  readonly base?: Amounts | undefined
}

/** What an operator was asked about a run. Each limit is asked about once; one that was raised is another limit. */
export interface Question {
  readonly meter: LimitName
  readonly max: number
  /** Milliseconds since the epoch: without an answer the run is stopped then. */
  readonly until: number
}

/** The settings of an operator for all threads of a session, including later ones. */
export interface SessionSettings extends ThreadSettings {
  /** Limits of the session as a whole that were raised. */
  readonly extended?: Partial<Amounts> | undefined
  /** What it had used when it was reset. */
  readonly base?: Amounts | undefined
  /** Hashes of the idempotency keys of requests that must not be executed again, oldest first. */
  readonly done?: readonly string[] | undefined
}
