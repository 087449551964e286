/** What a command gets: its arguments and flags, and the process that it runs in. */
import type { Environment, Flags } from '../config/load.ts'

/** Thrown for a wrong command line; the message is one line for people. */
export class UsageError extends Error {
  override readonly name = 'UsageError'
}

/** The port of a Governor whose configuration names none. */
export const DEFAULT_PORT = 8787

/** Thrown where a command can't do its work; the message is one line for people. The exit code is 1. */
export class CommandError extends Error {
  override readonly name = 'CommandError'
  /** The HTTP status with which a Governor refused a request; unset where there was none. */
  status?: number
}

/** The flags of some commands, as `parseArgs` of Node takes them; all others set keys of the configuration. */
export const COMMAND_FLAGS = {
  json: { type: 'boolean', help: 'as JSON lines' },
  yes: { type: 'boolean', short: 'y', help: 'with init: ask nothing' },
  csv: { type: 'boolean', help: 'as comma-separated values' },
  by: {
    type: 'string',
    value: 'WHAT',
    help: 'day, month, model, client, key, session, agent or tool (default: days and clients)',
  },
  since: { type: 'string', value: 'TIME', help: 'a day such as 2026-11-01, or how long ago: 12h, 7d' },
  until: { type: 'string', value: 'TIME', help: 'the same; of a day, its end' },
  transcript: {
    type: 'boolean',
    help: 'with session: what the user and the assistant said (sessions.transcript keeps it)',
  },
  session: { type: 'string', value: 'ID', help: 'with pause and resume: the agents of one session' },
  key: {
    type: 'string',
    value: 'NAME',
    help: 'with pause and resume: those of an access key; --upstream NAME: of an upstream',
  },
  for: { type: 'string', value: 'TIME', help: 'with pause: how long, such as 30m or 2h (default: until resume)' },
  hold: { type: 'boolean', help: 'with pause: requests wait for the end, at most stop.ask_timeout' },
  reason: { type: 'string', value: 'TEXT', help: 'with pause: why, for people' },
  url: {
    type: 'string',
    value: 'URL',
    help: `the running Governor (default: http://127.0.0.1:${DEFAULT_PORT}, or the port of --port or PORT)`,
  },
} as const

type CommandFlags = typeof COMMAND_FLAGS

/** What was typed after the name of a command. */
export interface Call {
  readonly args: readonly string[]
  readonly flags: Flags & {
    readonly [Name in keyof CommandFlags]?: CommandFlags[Name]['type'] extends 'boolean' ? boolean : string
  }
}

/** Returns an amount of dollars as people write it, `5`, `$5` or `5.50`; `undefined` if the text is another one. */
export function dollarsIn(text: string): number | undefined {
  const amount = Number(/^\$?(\d+(?:\.\d+)?)$/.exec(text)?.[1])
  return Number.isFinite(amount) ? amount : undefined
}

/** The process that a command runs in. */
export interface Terminal {
  readonly env: Environment
  out(text: string): void
  err(text: string): void
  input(): AsyncIterable<Uint8Array>
  /** Calls `handle` for each signal of that name. */
  onSignal(name: NodeJS.Signals, handle: () => void): void
  /** Calls `handle` when the process ends, unless it is killed. */
  onExit(handle: () => void): void
  exit(code: number): void
  readonly columns: number
  readonly rows: number
  /** Calls `handle` with each key that is pressed; returns a function that ends this. Unset if there is no keyboard. */
  readonly onKey?: ((handle: (key: string) => void) => () => void) | undefined
  /** Bytes of memory that the process may use. */
  readonly memory: number
  /** How many files and connections the process may have open. */
  readonly maxOpenFiles: number
  /** True if a human can press Ctrl-C: on a terminal, that reaches all programs that run in it. */
  readonly hasKeyboard?: boolean
  /** True if a human watches, until the terminal is closed: then commands use colours and plain sentences. */
  readonly isInteractive: boolean
}
