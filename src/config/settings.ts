/** The settings that have a flag or a variable; all others stand in the file alone. */
import { BUILT_IN_UPSTREAMS } from '../dialect/index.ts'

export interface Setting {
  readonly path: string
  readonly flag?: string
  /** Unset: a setting with a flag has the flag's name, such as `GOVERNOR_MAX_COST` for `max-cost`. */
  readonly variable?: string
  /**
   * The name of the flag's value in the help; a flag without one is a switch, and means `true` if it is given alone.
   */
  readonly value?: string
  readonly help?: string
  /** What the file has in place of a value. */
  readonly words?: Readonly<Record<string, string>>
  /** What the file has, whatever the value of the variable is. */
  readonly always?: string
  /** The flag may be given several times: a URL for all upstreams that always exist, or NAME=URL for one. */
  readonly isRepeated?: true
}

/** Returns what the file has for each word with which people switch something on or off. */
const switchWords = (on: string, off: string) => ({
  true: on,
  '1': on,
  on,
  yes: on,
  false: off,
  '0': off,
  off,
  no: off,
})

const ROWS = [
  {
    path: 'upstreams.NAME.url',
    flag: 'upstream',
    isRepeated: true,
    value: 'URL',
    help: 'where all requests go; NAME=URL sets one upstream; may be repeated',
  },
  {
    path: 'server.host',
    flag: 'host',
    variable: 'HOST',
    value: 'ADDRESS',
    help: 'address to listen on (default: 127.0.0.1)',
  },
  {
    path: 'server.port',
    flag: 'port',
    variable: 'PORT',
    value: 'NUMBER',
    help: 'port to listen on (default: 8787, with run a free one; 0: any free one)',
  },
  {
    path: 'server.workers',
    flag: 'workers',
    value: 'NUMBER',
    help: 'processes that share the port, for several cores; needs Redis (default: 1)',
  },
  {
    path: 'budget.max_iterations',
    flag: 'max-iterations',
    value: 'NUMBER',
    help: 'model calls per run (default: 300; 0: no limit)',
  },
  { path: 'budget.run.max_tool_calls', flag: 'max-tool-calls', value: 'NUMBER', help: 'tool calls per run' },
  { path: 'budget.run.max_cost_usd', flag: 'max-cost', value: 'DOLLARS', help: 'US dollars per run' },
  {
    path: 'budget.day.max_cost_usd',
    flag: 'max-cost-per-day',
    value: 'DOLLARS',
    help: 'US dollars a day, all together',
  },
  { path: 'budget.run.max_tokens', flag: 'max-tokens', value: 'NUMBER', help: 'tokens per run, such as 250k or 2M' },
  { path: 'budget.run.max_seconds', flag: 'max-seconds', value: 'TIME', help: 'seconds per run, or such as 10m' },
  {
    path: 'mode',
    flag: 'observe',
    words: switchWords('observe', 'enforce'),
    help: 'count and report; add, block and stop nothing',
  },
  {
    path: 'stop.footer',
    flag: 'footer',
    words: switchWords('true', 'false'),
    help: 'end the last answer of a stopped run with a line that says why (with run: the default)',
  },
  { path: 'redis.url', variable: 'REDIS_URL', help: 'the server of the store redis' },
  { path: 'store', variable: 'REDIS_URL', always: 'redis' },
  {
    path: 'store',
    flag: 'store',
    value: 'KIND',
    help: 'memory or redis (default: redis if REDIS_URL is set, else memory)',
  },
  { path: 'usage.journal', flag: 'journal', value: 'FILE', help: 'file for what agents used, which report adds up' },
  {
    path: 'log.level',
    flag: 'log-level',
    variable: 'LOG_LEVEL',
    value: 'LEVEL',
    help: 'trace, debug, info, warn, error, fatal or silent (default: info)',
  },
  // No flag: other users of the machine read flags in the list of processes.
  { path: 'ops.admin_token', variable: 'GOVERNOR_ADMIN_TOKEN', help: 'token to read and steer sessions' },
] as const satisfies readonly Setting[]

const UPSTREAMS: readonly Setting[] = BUILT_IN_UPSTREAMS.map(({ name, variable }) => {
  return { path: `upstreams.${name}.url`, variable, help: `where requests of the upstream ${name} go` }
})

/** Later settings of a path win over earlier ones. */
export const SETTINGS: readonly Setting[] = [...ROWS, ...UPSTREAMS]

export function variableOf({ flag = '', variable }: Setting): string {
  return variable ?? `GOVERNOR_${flag.replaceAll('-', '_').toUpperCase()}`
}

export type FlagName = Extract<(typeof ROWS)[number], { flag: string }>['flag']

/** The values of flags by their names; `undefined`: not given. */
export type Flags = { readonly [Name in Exclude<FlagName, 'upstream'> | 'config']?: string | undefined } & {
  readonly upstream?: readonly string[] | undefined
}
