/** The interface between commands and the process. */
import type { Environment } from '../config/load.ts'

/** The process that a command runs in. */
export interface Terminal {
  readonly env: Environment
  /** Writes to standard output. */
  out(text: string): void
  /** Writes to standard error. */
  err(text: string): void
  /** Returns standard input. */
  input(): AsyncIterable<Uint8Array>
  /** Calls `handle` for each signal of that name. */
  onSignal(name: 'SIGTERM' | 'SIGINT' | 'SIGHUP', handle: () => void): void
  /** Calls `handle` when the process ends, unless it is killed. */
  onExit(handle: () => void): void
  /** Ends the process at once. */
  exit(code: number): void
  /** Width and height of the screen, in characters; unset if there is no known screen. */
  readonly columns?: () => number
  readonly rows?: () => number
  /** Calls `handle` with each key that is pressed; returns a function that ends this. Unset if there is no keyboard. */
  readonly onKey?: ((handle: (key: string) => void) => () => void) | undefined
  /** Bytes of memory that the process may use. */
  readonly memory: number
  /** How many files and connections the process may have open. */
  readonly maxOpenFiles: number
  /** True if a human can press Ctrl-C: on a terminal, that reaches all programs that run in it. */
  readonly hasKeyboard?: boolean
  /** True if a human watches: then commands use colours and plain sentences. */
  readonly isInteractive: boolean
}
