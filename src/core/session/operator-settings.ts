/** What an operator has set; plain JSON. */
import type { Amounts } from '../budget/meters.ts'
import type { LoopMode } from '../loop/escalation.ts'

/** Limits of a run, and of all runs of its session together; 0 is no limit. */
export interface LimitPair {
  readonly run: Amounts
  readonly session: Amounts
}

/** What an operator has set for a thread; it wins over everything else. */
export interface ThreadSettings {
  /** Limits of each run. */
  readonly budget?: Partial<Amounts> | undefined
  readonly loopMode?: LoopMode | undefined
}

/** What an operator has changed in one run. */
export interface RunSettings {
  /** Limits that were raised. */
  readonly extended?: Partial<Amounts> | undefined
  /** The next request is answered for the last time. */
  readonly isStopAsked?: boolean | undefined
  /** What it had used when it was reset; unset where it never was. */
  readonly base?: Amounts | undefined
}

/** What an operator has set for all threads of a session, also those that are yet to begin. */
export interface SessionSettings extends ThreadSettings {
  /** Limits of the session as a whole that were raised. */
  readonly extended?: Partial<Amounts> | undefined
  /** What it had used when it was reset. */
  readonly base?: Amounts | undefined
  /** Hashes of the keys of requests that were carried out and must not be carried out again, oldest first. */
  readonly done?: readonly string[] | undefined
}
