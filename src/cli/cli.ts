/** The command line: one table of commands, one of flags; parses arguments and runs a command. */
import { parseArgs } from 'node:util'
import { ConfigError, type Flags, loadConfig } from '../config/load.ts'
import { SETTINGS, type Setting, UPSTREAM, variableOf } from '../config/settings.ts'
import { VERSION } from '../version.ts'
import type { Terminal } from './command.ts'
import { ClientError } from './sessions-client.ts'

class UsageError extends Error {
  override readonly name = 'UsageError'
}

/** What was typed after the name of a command. */
interface Call {
  readonly args: readonly string[]
  /** For the configuration. */
  readonly flags: Flags
  readonly json: boolean
  readonly transcript: boolean
  readonly csv: boolean
  readonly yes: boolean
  /** Where a running Governor is. */
  readonly url: string | undefined
  readonly by: string | undefined
  readonly since: string | undefined
}

interface Command {
  /** What follows the name in the help. */
  readonly usage?: string
  readonly help: string
  /** How many arguments it takes, at least and at most, and what is missing if there are too few. Unset: none. */
  readonly takes?: readonly [least: number, most: number, missing: string]
  /** The flags in `OWN_FLAGS` that it takes. */
  readonly own?: readonly (keyof typeof OWN_FLAGS)[]
  /** Returns the exit code; `undefined` is 0. */
  run(call: Call, terminal: Terminal): Promise<number | undefined>
}

/** The flags of some commands. */
const OWN_FLAGS = {
  json: { type: 'boolean', help: 'as JSON lines' },
  yes: { type: 'boolean', short: 'y', help: 'with init: ask nothing' },
  csv: { type: 'boolean', help: 'as comma-separated values' },
  by: { type: 'string', value: 'WHAT', help: 'day, model, client or session (default: day)' },
  since: { type: 'string', value: 'TIME', help: 'a day such as 2026-11-01, or how long ago: 12h, 7d' },
  transcript: {
    type: 'boolean',
    help: 'with session: what the user and the assistant said (sessions.transcript keeps it)',
  },
  url: {
    type: 'string',
    value: 'URL',
    help: 'the running Governor (default: http://127.0.0.1:8787, or the port of --port or PORT)',
  },
} as const

const AN_ID = 'the id of a session (governor sessions lists them)'

function sessionsCommand(command: 'sessions' | 'session' | 'stop' | 'extend'): Command['run'] {
  return async ({ args, json, transcript, url }, terminal) => {
    const { sessions } = await import('./sessions.ts')
    await sessions({ command, args, json, transcript, url }, terminal)
    return undefined
  }
}

/** Each command loads what it needs when it runs. */
const COMMANDS: Readonly<Record<string, Command>> = {
  start: {
    help: 'listen and guard (the default)',
    run: async ({ flags }, terminal) => (await import('./start.ts')).start(flags, terminal),
  },
  init: {
    help: 'write a governor.yaml of ten lines after three questions',
    own: ['yes'],
    run: async ({ yes }, terminal) => (await import('./init.ts')).init(!yes, terminal),
  },
  doctor: {
    help: 'check configuration, port, upstreams, keys, prices and store',
    own: ['json'],
    run: async ({ json, flags }, terminal) => (await import('./doctor.ts')).doctor(json, flags, terminal),
  },
  run: {
    usage: '-- COMMAND…',
    help: 'guard one program on a free port: run -- claude; prints at the end what it used',
    takes: [1, Number.POSITIVE_INFINITY, 'a command after --, such as run -- claude'],
    run: async ({ args, flags }, terminal) => (await import('./run.ts')).run(args, flags, terminal),
  },
  report: {
    help: 'what agents cost: the journal (--journal) as a table',
    own: ['by', 'since', 'json', 'csv'],
    async run({ flags, by, since, json, csv }, terminal) {
      const { report, isGrouping } = await import('./report.ts')
      if (by !== undefined && !isGrouping(by))
        throw new UsageError(`--by ${by}: expected day, model, client or session`)
      return report({ by, since, json, csv }, flags, terminal)
    },
  },
  'check-config': {
    help: 'read the configuration, say what is wrong with it, and end',
    async run({ flags }, terminal) {
      const { file } = loadConfig(flags, terminal.env)
      terminal.out(`${file ?? 'no configuration file: defaults'}: valid\n`)
      return undefined
    },
  },
  replay: {
    usage: 'FILE…',
    help:
      'say what the loop guard would have done to recorded conversations: a JSON object with messages a ' +
      'line, as in a request body, or a message a line; - is standard input',
    takes: [1, Number.POSITIVE_INFINITY, 'a file, or - for standard input'],
    own: ['json'],
    run: async ({ args: files, json, flags }, terminal) =>
      (await import('./replay/replay.ts')).replay({ files, json }, flags, terminal),
  },
  demo: {
    help: 'watch an agent run away and be stopped; needs no key and no network',
    run: async (_, terminal) => (await import('../demo/demo.ts')).demo(terminal),
  },
  top: {
    help: 'the sessions of a running Governor, live, those at risk first; piped: once, as a table',
    own: ['url'],
    async run({ url }, terminal) {
      await (await import('./top.ts')).top(url, terminal)
      return undefined
    },
  },
  sessions: { help: 'all of them as a table', own: ['json', 'url'], run: sessionsCommand('sessions') },
  session: {
    usage: 'ID',
    help: "one of them in full; ID: how its id begins, or its client's own name for it",
    takes: [1, 1, AN_ID],
    own: ['json', 'transcript', 'url'],
    run: sessionsCommand('session'),
  },
  stop: {
    usage: 'ID',
    help: 'its next request gets an honest last answer',
    takes: [1, 1, AN_ID],
    own: ['json', 'url'],
    run: sessionsCommand('stop'),
  },
  extend: {
    usage: 'ID [BY]',
    help: 'raise its limits by a share (25% unless given) or a number of iterations',
    takes: [1, 2, AN_ID],
    own: ['json', 'url'],
    run: sessionsCommand('extend'),
  },
  suggest: {
    help: 'limits for each agent and model, as YAML, out of what its completed runs took',
    own: ['json', 'url'],
    async run({ json, url }, terminal) {
      await (await import('./suggest.ts')).suggest({ json, url }, terminal)
      return undefined
    },
  },
}

const WIDTH = 100
const COLUMN = 28

/** Returns a line of the help, broken where it is too long. */
function entry(title: string, text: string): string {
  const lines: string[] = []
  for (const word of text.split(' ')) {
    const line = lines.at(-1)
    if (line !== undefined && COLUMN + line.length + word.length < WIDTH) lines[lines.length - 1] = `${line} ${word}`
    else lines.push(word)
  }
  return `  ${title.padEnd(COLUMN - 2)}${lines.join(`\n${' '.repeat(COLUMN)}`)}\n`
}

function help(): string {
  const commands = Object.entries(COMMANDS).map(([name, { usage = '', help: text }]) =>
    entry(`${name} ${usage}`.trimEnd(), text),
  )
  const flagEntry = (flag: string, value = '', text = '') => entry(`--${flag} ${value}`.trimEnd(), text)
  const settings: readonly Setting[] = [UPSTREAM, ...SETTINGS]
  const flags = settings.map((one) =>
    one.flag ? flagEntry(one.flag, one.value, `${one.help} [${variableOf(one)}]`) : '',
  )
  const own: readonly (readonly [string, { value?: string; help: string }])[] = Object.entries(OWN_FLAGS)
  const owned = own.map(([flag, { value, help: text }]) => flagEntry(flag, value, text))
  const file =
    'configuration file (default: the first of governor.yaml, config/governor.yaml and ' +
    '~/.config/governor/governor.yaml) [GOVERNOR_CONFIG]'
  const all = [
    entry('--config FILE', file),
    ...flags,
    ...owned,
    entry('--help', 'this text'),
    entry('--version', 'the version'),
  ]
  return `Governor ${VERSION}: a reverse proxy for LLM APIs that keeps agents from running away.

Usage: governor [command] [flags]
  in a clone:        npm start -- [command] [flags]
  where installed:   npx agent-governor [command] [flags]

Commands
${commands.join('')}
Flags, and in brackets the environment variables that do the same
${all.join('')}
Variables alone: OPENAI_UPSTREAM_URL ANTHROPIC_UPSTREAM_URL REDIS_URL
  GOVERNOR_ADMIN_TOKEN: reads and steers sessions, on both sides
A flag wins over the environment, the environment over the file, the file over the defaults.
Then point your agent at it: OPENAI_BASE_URL=http://127.0.0.1:8787/v1
`
}

/** Joins a flag with a negative number after it, which Node would parse as another flag. */
function joinNegativeNumbers(args: readonly string[]): string[] {
  const joined: string[] = []
  for (const arg of args) {
    const isValue = /^-\d/.test(arg) && /^--[a-z-]+$/.test(joined.at(-1) ?? '')
    joined.push(isValue ? `${joined.pop()}=${arg}` : arg)
  }
  return joined
}

type Options = NonNullable<NonNullable<Parameters<typeof parseArgs>[0]>['options']>

/** The flags as Node parses them. */
function optionsOf(): Options {
  const settings: readonly Setting[] = SETTINGS
  const valued = settings.flatMap(({ flag, value }) => (flag ? [[flag, { type: value ? 'string' : 'boolean' }]] : []))
  return {
    ...(Object.fromEntries(valued) as Options),
    ...OWN_FLAGS,
    config: { type: 'string' },
    upstream: { type: 'string', multiple: true },
    help: { type: 'boolean', short: 'h' },
    version: { type: 'boolean', short: 'v' },
  }
}

/** Returns what is to be printed, or the command and its call. Throws `UsageError`. */
function parse(args: readonly string[]): string | readonly [Command, Call] {
  let parsed: ReturnType<typeof parseArgs>
  const end = args.indexOf('--')
  const own = end === -1 ? args : args.slice(0, end)
  try {
    parsed = parseArgs({
      args: [...joinNegativeNumbers(own), ...args.slice(own.length)],
      allowPositionals: true,
      options: optionsOf(),
    })
  } catch (error) {
    // Node's messages add several sentences and lines of advice.
    const [problem = ''] = (error as Error).message.split(/[.\n]/, 1)
    const isRun = end === -1 && args.includes('run')
    throw new UsageError(isRun ? `${problem}: run needs -- before the command` : problem)
  }
  const { help: wantsHelp, version, ...given } = parsed.values
  const [name = 'start', ...rest] = parsed.positionals
  if (wantsHelp || name === 'help') return help()
  if (version) return `${VERSION}\n`
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!command) throw new UsageError(`there is no command ${name}`)
  const { takes: [least, most, missing] = [0, 0, ''], own: takes = [] } = command
  if (rest.length > most) throw new UsageError(`unexpected argument ${rest[most]}`)
  if (rest.length < least) throw new UsageError(`${name} needs ${missing}`)
  for (const flag of Object.keys(OWN_FLAGS) as (keyof typeof OWN_FLAGS)[]) {
    if (given[flag] === undefined || takes.includes(flag)) continue
    const takers = Object.entries(COMMANDS).filter(([, { own: flags = [] }]) => flags.includes(flag))
    throw new UsageError(`--${flag} is for ${takers.map(([taker]) => taker).join(', ')}`)
  }
  const settings = Object.entries(given).filter(([flag]) => !Object.hasOwn(OWN_FLAGS, flag))
  const values = settings.map(([flag, value]) => [flag, value === true ? 'true' : value])
  const text = (flag: 'url' | 'by' | 'since' | 'port') => given[flag] as string | undefined
  const port = text('port')
  return [
    command,
    {
      args: rest,
      flags: Object.fromEntries(values) as Flags,
      json: given['json'] === true,
      csv: given['csv'] === true,
      yes: given['yes'] === true,
      transcript: given['transcript'] === true,
      url: text('url') ?? (port && takes.includes('url') ? `http://127.0.0.1:${port}` : undefined),
      by: text('by'),
      since: text('since'),
    },
  ]
}

/** Runs the command line `args`, without node and script. Reports wrong usage and configuration. */
export async function run(args: readonly string[], terminal: Terminal): Promise<number> {
  try {
    const parsed = parse(args)
    if (typeof parsed !== 'string') return (await parsed[0].run(parsed[1], terminal)) ?? 0
    terminal.out(parsed)
    return 0
  } catch (error) {
    if (error instanceof ConfigError) {
      terminal.err(`governor: the configuration is wrong\n  ${error.message.split('\n').join('\n  ')}\n`)
      return 2
    }
    if (error instanceof ClientError) {
      terminal.err(`governor: ${error.message}\n`)
      return 1
    }
    if (error instanceof UsageError) {
      terminal.err(`governor: ${error.message}: --help shows the commands and flags\n`)
      return 2
    }
    throw error
  }
}
