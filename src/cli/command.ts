/** What every command gets, and what it returns. */
import type { Environment, Overrides } from '../config/load.ts'

/** What a command needs of the process it runs in. */
export interface Terminal {
  readonly env: Environment
  out(text: string): void
  err(text: string): void
  /** What is piped into the program. */
  input(): AsyncIterable<Uint8Array>
  /** Calls back for each signal of that name. */
  onSignal(name: 'SIGTERM' | 'SIGINT' | 'SIGHUP', handle: () => void): void
  /** Calls back when the process ends, whatever ends it but a kill. */
  onExit(handle: () => void): void
  /** Ends the process at once. */
  exit(code: number): void
  /** Bytes of memory that the process may use. */
  readonly memory: number
  /** People are watching: colours and plain sentences are welcome. */
  readonly isInteractive: boolean
}

export interface Flags extends Overrides {
  readonly config?: string | undefined
}

/** Exit codes: 0 done, 1 could not start, could not read or was cut short, 2 wrong usage or configuration. */
export type ExitCode = 0 | 1 | 2
