/** The command line: one table of commands, one of flags; parses arguments and runs a command. */

import { parseArgs } from 'node:util'
import { didYouMean } from '../config/did-you-mean.ts'
import { ConfigError } from '../config/load.ts'
import { type FlagName, SETTINGS, variableOf } from '../config/settings.ts'
import { isNameIn, namesOf } from '../core/names.ts'
import { errorOf } from '../core/thrown.ts'
import { BUILT_IN_UPSTREAMS } from '../dialect/index.ts'
import { VERSION } from '../version.ts'
import { type Call, COMMAND_FLAGS, CommandError, type Terminal, UsageError } from './command.ts'
import { wordLines } from './terminal-text.ts'

interface Command {
  readonly usage?: string
  readonly help: string
  /** How many arguments it takes, at least and at most, and what is missing if there are too few. Unset: none. */
  readonly takes?: readonly [least: number, most: number, missing: string]
  /** Those of `COMMAND_FLAGS` that it takes. */
  readonly flags?: readonly (keyof typeof COMMAND_FLAGS)[]
  /** It reads the configuration, so it takes the flags of settings too: all, or these. */
  readonly takesSettings?: true | readonly (FlagName | 'config')[]
  /** Loads what it needs, does its work, and returns the exit code. */
  readonly run: (call: Call, terminal: Terminal) => Promise<number>
}

const AN_ID = 'the id of a session (governor sessions lists them)'

const COMMANDS: Readonly<Record<string, Command>> = {
  start: {
    help: 'listen and guard (the default)',
    takesSettings: true,
    run: async (...given) => (await import('./start/start.ts')).start(...given),
  },
  init: {
    help: 'write a governor.yaml after four questions',
    flags: ['yes'],
    run: async (...given) => (await import('./init.ts')).init(...given),
  },
  doctor: {
    help: 'check configuration, port, upstreams, keys, prices and store',
    flags: ['json'],
    takesSettings: true,
    run: async (...given) => (await import('./doctor.ts')).doctor(...given),
  },
  run: {
    usage: '-- COMMAND…',
    help: 'guard one program on a free port: run -- claude; prints at the end what it used',
    takes: [1, Number.POSITIVE_INFINITY, 'a command after --, such as run -- claude'],
    // It is always one process.
    takesSettings: [
      'config',
      ...SETTINGS.flatMap(({ flag }) => (flag && flag !== 'workers' ? (flag as FlagName) : [])),
    ],
    run: async (...given) => (await import('./start/run.ts')).run(...given),
  },
  report: {
    help: 'what agents cost: the journal (--journal) as a table',
    flags: ['by', 'since', 'until', 'json', 'csv'],
    takesSettings: ['config', 'journal'],
    run: async (...given) => (await import('./journal/report.ts')).report(...given),
  },
  'check-config': {
    usage: '[FILE]',
    help: 'read the configuration, or that of a file, say what is wrong with it, and end',
    takes: [0, 1, ''],
    takesSettings: true,
    run: async (...given) => (await import('./check-config.ts')).checkConfiguration(...given),
  },
  replay: {
    usage: 'FILE…',
    help:
      'say what the loop guard would have done to recorded conversations: a JSON object with messages a line, as in ' +
      'a request body, or a message a line; - is standard input',
    takes: [1, Number.POSITIVE_INFINITY, 'a file, or - for standard input'],
    flags: ['json'],
    takesSettings: ['config', 'observe'],
    run: async (...given) => (await import('./replay.ts')).replay(...given),
  },
  demo: {
    help: 'watch an agent run away and be stopped; needs no key and no network',
    run: async (_, terminal) => (await import('../demo/demo.ts')).demo(terminal),
  },
  top: {
    help: 'the sessions of a running Governor, live, those at risk first; piped: once, as a table',
    flags: ['url'],
    run: async (...given) => (await import('./sessions/top.ts')).top(...given),
  },
  sessions: {
    help: 'all of them as a table',
    flags: ['json', 'url'],
    run: async (...given) => (await import('./sessions/sessions.ts')).sessions(...given),
  },
  session: {
    usage: 'ID',
    help: "one of them in full; ID: how its id begins, or its client's own name for it",
    takes: [1, 1, AN_ID],
    flags: ['json', 'transcript', 'url'],
    run: async (...given) => (await import('./sessions/sessions.ts')).oneSession('session', ...given),
  },
  stop: {
    usage: 'ID',
    help: 'its next request gets an honest last answer',
    takes: [1, 1, AN_ID],
    flags: ['json', 'url'],
    run: async (...given) => (await import('./sessions/sessions.ts')).oneSession('stop', ...given),
  },
  extend: {
    usage: 'ID [BY]',
    help: 'raise its limits by a share (25% unless given) or a number of iterations',
    takes: [1, 2, AN_ID],
    flags: ['json', 'url'],
    run: async (...given) => (await import('./sessions/sessions.ts')).oneSession('extend', ...given),
  },
  pause: {
    help: 'one switch for all agents: they get an end, and the model is not asked, until resume',
    flags: ['session', 'key', 'for', 'hold', 'reason', 'json', 'url'],
    takesSettings: ['upstream'],
    run: async (...given) => (await import('./sessions/pause.ts')).pause('pause', ...given),
  },
  resume: {
    help: 'what is paused goes on',
    flags: ['session', 'key', 'json', 'url'],
    takesSettings: ['upstream'],
    run: async (...given) => (await import('./sessions/pause.ts')).pause('resume', ...given),
  },
  budget: {
    usage: '[SCOPE LIMIT [SUBJECT]]',
    help:
      'what is used of the limits of an hour, a day, a week and a month; budget day 30 sets the dollars of one until ' +
      'it begins anew (tokens=5M, iterations=500 and runs=20 the others), budget day 8 alice that of one subject',
    takes: [0, 3, ''],
    flags: ['json', 'url'],
    run: async (...given) => (await import('./sessions/budget.ts')).budget(...given),
  },
  statusline: {
    help: 'one line of a session for the status line of Claude Code, which gives its JSON on standard input',
    flags: ['url'],
    run: async (...given) => (await import('./sessions/statusline.ts')).statusline(...given),
  },
  suggest: {
    help: 'limits for each agent and model, as YAML, out of what its completed runs took',
    flags: ['json', 'url'],
    takesSettings: ['config', 'journal'],
    run: async (...given) => (await import('./journal/suggest.ts')).suggest(...given),
  },
}

const BY_NAME = new Map(Object.entries(COMMANDS))

const isTaken = (flag: string, taken: Command['takesSettings'] = []) =>
  taken === true || taken.some((name) => name === flag)

const COLUMN = 28

/** Returns an entry of the help, broken where it is too long for 100 columns; a long name has a line of its own. */
function entry(name: string, value = '', text = ''): string {
  const [title, margin] = [`${name} ${value}`.trimEnd(), `\n${' '.repeat(COLUMN)}`]
  const begin = title.length > COLUMN - 4 ? title + margin : title.padEnd(COLUMN - 2)
  return `  ${begin}${wordLines(text, 100 - COLUMN).join(margin)}\n`
}

function settingsHelp(taken: Command['takesSettings'] = true): string {
  let flags = entry(
    '--config',
    'FILE',
    'configuration file (default: the first of governor.yaml, config/governor.yaml and ' +
      '~/.config/governor/governor.yaml) [GOVERNOR_CONFIG]',
  )
  for (const setting of SETTINGS)
    if (setting.flag && isTaken(setting.flag, taken))
      flags += entry(`--${setting.flag}`, setting.value, `${setting.help} [${variableOf(setting)}]`)
  return flags
}

function flagsHelp(names: readonly (keyof typeof COMMAND_FLAGS)[]): string {
  const rows: Readonly<Record<string, { readonly value?: string; readonly help: string }>> = COMMAND_FLAGS
  return names.map((name) => entry(`--${name}`, rows[name]?.value, rows[name]?.help)).join('')
}

function commandHelp(name: string, { usage = '', help, flags = [], takesSettings }: Command): string {
  const title = `Usage: governor ${name} ${usage.startsWith('--') ? `[flags] ${usage}` : usage}`
  const port = flags.includes('url') ? entry('--port', 'NUMBER', 'the running Governor on this machine [PORT]') : ''
  // Without a configuration, as to pause, an upstream is a name alone: the help of another flag says so.
  const settings = isTaken('config', takesSettings) ? settingsHelp(takesSettings) : ''
  const own = flagsHelp(flags) + port + settings + entry('--help', '', 'this text')
  return `${title.trimEnd()}\n\n${wordLines(help, 100).join('\n')}\n\nFlags\n${own}`
}

function help(): string {
  let commands = ''
  for (const [name, command] of BY_NAME) commands += entry(name, command.usage, command.help)
  const flags = settingsHelp() + flagsHelp(namesOf(COMMAND_FLAGS))
  return `Governor ${VERSION}: a reverse proxy for LLM APIs that keeps agents from running away.

Usage: governor [command] [flags]
  in a clone:        npm start -- [command] [flags]
  where installed:   npx agent-governor [command] [flags]

Commands
${commands}
Flags, and in brackets the environment variables that do the same
${flags}${entry('--help', '', 'this text, or after a command its own')}${entry('--version', '', 'the version')}
Variables alone: ${BUILT_IN_UPSTREAMS.map(({ variable }) => variable).join(' ')} REDIS_URL
  GOVERNOR_ADMIN_TOKEN: reads and steers sessions, on both sides
A flag wins over the environment, the environment over the file, the file over the defaults.
Then point your agent at it: OPENAI_BASE_URL=http://127.0.0.1:8787/v1
`
}

function takesFlag({ flags = [], takesSettings }: Command, flag: string): boolean {
  const isOwn = flags.some((name) => name === flag || (name === 'url' && flag === 'port'))
  return isOwn || (!isNameIn(COMMAND_FLAGS, flag) && isTaken(flag, takesSettings))
}

/** The settings that a flag switches on or off. */
const SWITCHES: ReadonlyMap<string, object> = new Map(
  SETTINGS.flatMap(({ flag, words }) => (flag && words ? [[`--${flag}`, words] as const] : [])),
)

/** Returns arguments as Node parses them: the value of a flag that it would take for something else is joined to it. */
function joinedValues(args: readonly string[]): string[] {
  const joined: string[] = []
  for (const arg of args) {
    const flag = joined.at(-1) ?? ''
    // Node would parse a negative number after a flag as another flag.
    const isValue =
      (/^-\d/.test(arg) && /^--[a-z-]+$/.test(flag)) || isNameIn(SWITCHES.get(flag) ?? {}, arg.toLowerCase())
    const off = arg.replace(/^--no-/, '--')
    joined.push(isValue ? `${joined.pop()}=${arg}` : off !== arg && SWITCHES.has(off) ? `${off}=false` : arg)
  }
  return joined.map((arg) => (SWITCHES.has(arg) ? `${arg}=true` : arg))
}

/** Returns what may stand where an argument follows a flag that switches something; `undefined` elsewhere. */
function afterSwitch(typed: readonly string[], arg: string): string | undefined {
  const flag = typed[typed.indexOf(arg) - 1] ?? ''
  const words = SWITCHES.get(flag)
  return words && `: ${flag} takes one of ${Object.keys(words).join(', ')}, or nothing`
}

/** Parses a command line as Node does. Throws `UsageError`. */
function parseArguments(args: readonly string[]) {
  const options: NonNullable<NonNullable<Parameters<typeof parseArgs>[0]>['options']> = {
    ...COMMAND_FLAGS,
    config: { type: 'string' },
    help: { type: 'boolean', short: 'h' },
    version: { type: 'boolean', short: 'v' },
  }
  for (const { flag, isRepeated: multiple = false } of SETTINGS) if (flag) options[flag] = { type: 'string', multiple }
  const end = args.includes('--') ? args.indexOf('--') : args.length
  try {
    const joined = [...joinedValues(args.slice(0, end)), ...args.slice(end)]
    return parseArgs({ args: joined, allowPositionals: true, options })
  } catch (error) {
    // Node's messages add several sentences and lines of advice.
    const [problem = ''] = errorOf(error).message.split(/[.\n]/, 1)
    const isRun = end === args.length && args.includes('run')
    if (isRun) throw new UsageError(`${problem}: run needs -- before the command`)
    const [, unknown] = /^Unknown option '(-.+)'$/.exec(problem) ?? []
    const flags = Object.keys(options).map((flag) => `--${flag}`)
    throw new UsageError(problem + (unknown === undefined ? '' : didYouMean(unknown, flags)))
  }
}

/** Runs the command line `typed`, without node and script; returns the exit code. Reports what is wrong in it. */
export async function run(typed: readonly string[], terminal: Terminal): Promise<number> {
  try {
    const { values, positionals } = parseArguments(typed)
    const isHelp = values['help'] === true || positionals[0] === 'help'
    const [first, ...args] = positionals[0] === 'help' ? positionals.slice(1) : positionals
    const name = first ?? 'start'
    const command = BY_NAME.get(name)
    if (values['version'] || name === 'version' || (isHelp && first === undefined)) {
      terminal.out(isHelp ? help() : `${VERSION}\n`)
      return 0
    }
    if (!command)
      throw new UsageError(
        `there is no command ${name}${afterSwitch(typed, name) ?? didYouMean(name, [...BY_NAME.keys()])}`,
      )
    if (isHelp) {
      terminal.out(commandHelp(name, command))
      return 0
    }
    const { takes: [least, most, missing] = [0, 0, ''] } = command
    const extra = args[most]
    if (extra !== undefined) {
      const isFile = /\.ya?ml$/.test(extra)
      const meant = afterSwitch(typed, extra) ?? (isFile ? `: did you mean --config ${extra}?` : '')
      throw new UsageError(`unexpected argument ${extra}${meant}`)
    }
    if (args.length < least) throw new UsageError(`${name} needs ${missing}`)
    for (const flag of Object.keys(values)) {
      if (takesFlag(command, flag)) continue
      const takers: string[] = []
      for (const [taker, one] of BY_NAME) if (takesFlag(one, flag)) takers.push(taker)
      throw new UsageError(`--${flag} is for ${takers.join(', ')}`)
    }
    return await command.run({ args, flags: values as Call['flags'] }, terminal)
  } catch (error) {
    if (error instanceof ConfigError)
      terminal.err(`governor: the configuration is wrong\n  ${error.message.replaceAll('\n', '\n  ')}\n`)
    else if (error instanceof UsageError)
      terminal.err(
        `governor: ${error.message}${error.message.endsWith('?') ? '' : ':'} --help shows the commands and flags\n`,
      )
    else if (error instanceof CommandError) terminal.err(`governor: ${error.message}\n`)
    else throw error
    return error instanceof CommandError ? 1 : 2
  }
}
