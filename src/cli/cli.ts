/** The command line: one table of commands, one of flags; parses arguments and runs a command. */
import { parseArgs } from 'node:util'
import { ConfigError, loadConfig } from '../config/load.ts'
import { SETTINGS, type Setting, UPSTREAM, variableOf } from '../config/settings.ts'
import { VERSION } from '../version.ts'
import { type Call, OWN_FLAGS, type Terminal, UsageError } from './command.ts'
import { ClientError } from './sessions-client.ts'
import { wordLines } from './terminal-text.ts'

interface Command {
  readonly usage?: string
  readonly help: string
  /** How many arguments it takes, at least and at most, and what is missing if there are too few. Unset: none. */
  readonly takes?: readonly [least: number, most: number, missing: string]
  readonly own?: readonly (keyof typeof OWN_FLAGS)[]
  run(call: Call, terminal: Terminal): Promise<number>
}

const AN_ID = 'the id of a session (governor sessions lists them)'

/** Each command loads what it needs when it runs. */
const COMMANDS: Readonly<Record<string, Command>> = {
  start: {
    help: 'listen and guard (the default)',
    run: async (...given) => (await import('./start.ts')).start(...given),
  },
  init: {
    help: 'write a governor.yaml of ten lines after three questions',
    own: ['yes'],
    run: async (...given) => (await import('./init.ts')).init(...given),
  },
  doctor: {
    help: 'check configuration, port, upstreams, keys, prices and store',
    own: ['json'],
    run: async (...given) => (await import('./doctor.ts')).doctor(...given),
  },
  run: {
    usage: '-- COMMAND…',
    help: 'guard one program on a free port: run -- claude; prints at the end what it used',
    takes: [1, Number.POSITIVE_INFINITY, 'a command after --, such as run -- claude'],
    run: async (...given) => (await import('./run.ts')).run(...given),
  },
  report: {
    help: 'what agents cost: the journal (--journal) as a table',
    own: ['by', 'since', 'json', 'csv'],
    run: async (...given) => (await import('./report.ts')).report(...given),
  },
  'check-config': {
    help: 'read the configuration, say what is wrong with it, and end',
    async run({ flags }, terminal) {
      const { file } = loadConfig(flags, terminal.env)
      terminal.out(`${file ?? 'no configuration file: defaults'}: valid\n`)
      return 0
    },
  },
  replay: {
    usage: 'FILE…',
    help:
      'say what the loop guard would have done to recorded conversations: a JSON object with messages a line, as in ' +
      'a request body, or a message a line; - is standard input',
    takes: [1, Number.POSITIVE_INFINITY, 'a file, or - for standard input'],
    own: ['json'],
    run: async (...given) => (await import('./replay/replay.ts')).replay(...given),
  },
  demo: {
    help: 'watch an agent run away and be stopped; needs no key and no network',
    run: async (_, terminal) => (await import('../demo/demo.ts')).demo(terminal),
  },
  top: {
    help: 'the sessions of a running Governor, live, those at risk first; piped: once, as a table',
    own: ['url'],
    run: async (...given) => (await import('./top.ts')).top(...given),
  },
  sessions: {
    help: 'all of them as a table',
    own: ['json', 'url'],
    run: async (...given) => (await import('./sessions.ts')).sessions(...given),
  },
  session: {
    usage: 'ID',
    help: "one of them in full; ID: how its id begins, or its client's own name for it",
    takes: [1, 1, AN_ID],
    own: ['json', 'transcript', 'url'],
    run: async (...given) => (await import('./sessions.ts')).session(...given),
  },
  stop: {
    usage: 'ID',
    help: 'its next request gets an honest last answer',
    takes: [1, 1, AN_ID],
    own: ['json', 'url'],
    run: async (...given) => (await import('./sessions.ts')).stop(...given),
  },
  extend: {
    usage: 'ID [BY]',
    help: 'raise its limits by a share (25% unless given) or a number of iterations',
    takes: [1, 2, AN_ID],
    own: ['json', 'url'],
    run: async (...given) => (await import('./sessions.ts')).extend(...given),
  },
  suggest: {
    help: 'limits for each agent and model, as YAML, out of what its completed runs took',
    own: ['json', 'url'],
    run: async (...given) => (await import('./suggest.ts')).suggest(...given),
  },
}

const COLUMN = 28

/** Returns an entry of the help, broken where it is too long for 100 columns. */
function entry(name: string, value = '', text = ''): string {
  const lines = wordLines(text, 100 - COLUMN)
  return `  ${`${name} ${value}`.padEnd(COLUMN - 2)}${lines.join(`\n${' '.repeat(COLUMN)}`)}\n`
}

function help(): string {
  let commands = ''
  for (const [name, command] of Object.entries(COMMANDS)) commands += entry(name, command.usage, command.help)
  let flags = entry(
    '--config',
    'FILE',
    'configuration file (default: the first of governor.yaml, config/governor.yaml and ' +
      '~/.config/governor/governor.yaml) [GOVERNOR_CONFIG]',
  )
  const settings: readonly Setting[] = [UPSTREAM, ...SETTINGS]
  for (const setting of settings)
    if (setting.flag) flags += entry(`--${setting.flag}`, setting.value, `${setting.help} [${variableOf(setting)}]`)
  const own: Readonly<Record<string, { readonly value?: string; readonly help: string }>> = OWN_FLAGS
  for (const [flag, { value, help: text }] of Object.entries(own)) flags += entry(`--${flag}`, value, text)
  return `Governor ${VERSION}: a reverse proxy for LLM APIs that keeps agents from running away.

Usage: governor [command] [flags]
  in a clone:        npm start -- [command] [flags]
  where installed:   npx agent-governor [command] [flags]

Commands
${commands}
Flags, and in brackets the environment variables that do the same
${flags}${entry('--help', '', 'this text')}${entry('--version', '', 'the version')}
Variables alone: OPENAI_UPSTREAM_URL ANTHROPIC_UPSTREAM_URL REDIS_URL
  GOVERNOR_ADMIN_TOKEN: reads and steers sessions, on both sides
A flag wins over the environment, the environment over the file, the file over the defaults.
Then point your agent at it: OPENAI_BASE_URL=http://127.0.0.1:8787/v1
`
}

/** Parses a command line as Node does. Throws `UsageError`. */
function parse(args: readonly string[]) {
  const options: NonNullable<NonNullable<Parameters<typeof parseArgs>[0]>['options']> = {
    ...OWN_FLAGS,
    config: { type: 'string' },
    upstream: { type: 'string', multiple: true },
    help: { type: 'boolean', short: 'h' },
    version: { type: 'boolean', short: 'v' },
  }
  const settings: readonly Setting[] = SETTINGS
  for (const { flag, value } of settings) if (flag) options[flag] = { type: value ? 'string' : 'boolean' }
  const end = args.indexOf('--')
  const joined: string[] = []
  for (const [at, arg] of args.entries()) {
    // Node would parse a negative number after a flag as another flag.
    const isValue = (end === -1 || at < end) && /^-\d/.test(arg) && /^--[a-z-]+$/.test(joined.at(-1) ?? '')
    joined.push(isValue ? `${joined.pop()}=${arg}` : arg)
  }
  try {
    return parseArgs({ args: joined, allowPositionals: true, options })
  } catch (error) {
    // Node's messages add several sentences and lines of advice.
    const [problem = ''] = (error as Error).message.split(/[.\n]/, 1)
    const isRun = end === -1 && args.includes('run')
    throw new UsageError(isRun ? `${problem}: run needs -- before the command` : problem)
  }
}

/** Runs the command line `typed`, without node and script; returns the exit code. Reports wrong usage and configuration. */
export async function run(typed: readonly string[], terminal: Terminal): Promise<number> {
  try {
    const { values, positionals } = parse(typed)
    const [name = 'start', ...args] = positionals
    if (values['help'] || name === 'help' || values['version']) {
      terminal.out(values['help'] || name === 'help' ? help() : `${VERSION}\n`)
      return 0
    }
    const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
    if (!command) throw new UsageError(`there is no command ${name}`)
    const { takes: [least, most, missing] = [0, 0, ''], own = [] } = command
    if (args.length > most) throw new UsageError(`unexpected argument ${args[most]}`)
    if (args.length < least) throw new UsageError(`${name} needs ${missing}`)
    for (const flag of Object.keys(OWN_FLAGS) as (keyof typeof OWN_FLAGS)[]) {
      if (values[flag] === undefined || own.includes(flag)) continue
      const takers = Object.keys(COMMANDS).filter((taker) => COMMANDS[taker]?.own?.includes(flag))
      throw new UsageError(`--${flag} is for ${takers.join(', ')}`)
    }
    return await command.run({ args, flags: values as Call['flags'] }, terminal)
  } catch (error) {
    if (error instanceof ConfigError)
      terminal.err(`governor: the configuration is wrong\n  ${error.message.replaceAll('\n', '\n  ')}\n`)
    else if (error instanceof UsageError)
      terminal.err(`governor: ${error.message}: --help shows the commands and flags\n`)
    else if (error instanceof ClientError) terminal.err(`governor: ${error.message}\n`)
    else throw error
    return error instanceof ClientError ? 1 : 2
  }
}
