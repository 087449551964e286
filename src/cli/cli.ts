/** The command line: parses arguments and runs a command. */
import { parseArgs } from 'node:util'
import { ConfigError, type Flags, loadConfig } from '../config/load.ts'
import { VERSION } from '../version.ts'
import type { ExitCode, Terminal } from './command.ts'
import { ClientError } from './sessions-client.ts'

const HELP = `Governor ${VERSION}: a reverse proxy for LLM APIs that keeps agents from running away.

Usage: governor [command] [flags]
  in a clone:        npm start -- [command] [flags]
  where installed:   npx agent-governor [command] [flags]

Commands
  start          listen and guard (the default)
  check-config   read the configuration, say what is wrong with it, and end
  replay FILE…   say what the loop guard would have done to recorded conversations: a JSON object with messages a
                 line, as in a request body, or a message a line; - is standard input
  demo           watch an agent run away and be stopped; needs no key and no network
  top            the sessions of a running Governor, live, those at risk first; piped: once, as a table
  sessions       all of them as a table
  session ID     one of them in full; ID: how its id begins, or its client's own name for it
  stop ID        its next request gets an honest last answer
  extend ID [BY] raise its limits by a share (25% unless given) or a number of iterations
  suggest        limits for each agent and model, as YAML, out of what its completed runs took

Flags
  --config FILE      configuration file (default: the first of governor.yaml, config/governor.yaml
                     and ~/.config/governor/governor.yaml)
  --host ADDRESS     address to listen on (default: 127.0.0.1)
  --port NUMBER      port to listen on (default: 8787; 0: any free one)
  --upstream URL     where all requests go; NAME=URL sets one upstream; may be repeated
  --transcript       with session: what the user and the assistant said (sessions.transcript keeps it)
  --json             findings of replay, sessions or suggestions as JSON lines
  --url URL          the running Governor (default: http://127.0.0.1:8787, or the port of PORT)
  --log-level LEVEL  trace, debug, info, warn, error, fatal or silent (default: info)
  --help             this text
  --version          the version

Environment: GOVERNOR_CONFIG HOST PORT LOG_LEVEL OPENAI_UPSTREAM_URL ANTHROPIC_UPSTREAM_URL REDIS_URL
  GOVERNOR_ADMIN_TOKEN: reads and steers sessions, on both sides
A flag wins over the environment, the environment over the file, the file over the defaults.
Then point your agent at it: OPENAI_BASE_URL=http://127.0.0.1:8787/v1
`

class UsageError extends Error {
  override readonly name = 'UsageError'
}

/** Returns upstream URLs by name: `URL` sets both upstreams that always exist, `NAME=URL` sets one. */
function upstreamsOf(flags: readonly string[]): Record<string, string> {
  const urls = flags.flatMap((text) => {
    const [, name, url] = /^([A-Za-z0-9][\w-]*)=(.+)$/.exec(text) ?? []
    const names = name === undefined ? ['openai', 'anthropic'] : [name]
    return names.map((upstream) => [upstream, url ?? text] as const)
  })
  return Object.fromEntries(urls)
}

interface Parsed {
  readonly command: string
  /** Where a running Governor is. */
  readonly url: string | undefined
  readonly files: readonly string[]
  readonly json: boolean
  readonly transcript: boolean
  readonly flags: Flags
  readonly wants: 'help' | 'version' | undefined
}

/** How many arguments each command takes after its name, at least and at most; those not named here take none. */
const ARGUMENTS: Readonly<Record<string, readonly [least: number, most: number, missing: string]>> = {
  replay: [1, Number.POSITIVE_INFINITY, 'a file, or - for standard input'],
  session: [1, 1, 'the id of a session: governor sessions lists them'],
  stop: [1, 1, 'the id of a session: governor sessions lists them'],
  extend: [1, 2, 'the id of a session: governor sessions lists them'],
}
const WITH_JSON: readonly string[] = ['replay', 'sessions', 'session', 'stop', 'extend', 'suggest']
const WITH_URL: readonly string[] = ['top', 'sessions', 'session', 'stop', 'extend', 'suggest']

/** Throws `UsageError` for arguments and flags that a command does not take, and for those that it lacks. */
function checkArguments(
  command: string,
  rest: readonly string[],
  { json, url, transcript }: { json?: boolean; url?: string; transcript?: boolean },
): void {
  const [least, most, missing] = ARGUMENTS[command] ?? [0, 0, '']
  if (rest.length > most) throw new UsageError(`unexpected argument ${rest[most]}`)
  if (rest.length < least) throw new UsageError(`${command} needs ${missing}`)
  if (json && !WITH_JSON.includes(command)) throw new UsageError(`--json is for ${WITH_JSON.join(', ')}`)
  if (transcript && command !== 'session') throw new UsageError('--transcript is for session')
  if (url !== undefined && !WITH_URL.includes(command))
    throw new UsageError(`--url is for ${WITH_URL.join(', ')}`)
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

function parse(args: readonly string[]): Parsed {
  try {
    const { values, positionals } = parseArgs({
      args: joinNegativeNumbers(args),
      allowPositionals: true,
      options: {
        config: { type: 'string' },
        host: { type: 'string' },
        port: { type: 'string' },
        upstream: { type: 'string', multiple: true },
        'log-level': { type: 'string' },
        json: { type: 'boolean' },
        url: { type: 'string' },
        transcript: { type: 'boolean' },
        help: { type: 'boolean', short: 'h' },
        version: { type: 'boolean', short: 'v' },
      },
    })
    const [command = 'start', ...rest] = positionals
    const wantsHelp = values.help || command === 'help'
    if (!wantsHelp) checkArguments(command, rest, values)
    return {
      command,
      url: values.url,
      files: rest,
      json: values.json ?? false,
      transcript: values.transcript ?? false,
      flags: {
        config: values.config,
        host: values.host,
        port: values.port,
        logLevel: values['log-level'],
        upstreams: upstreamsOf(values.upstream ?? []),
      },
      wants: wantsHelp ? 'help' : values.version ? 'version' : undefined,
    }
  } catch (error) {
    // Node's messages add several sentences and lines of advice.
    const [problem = ''] = (error as Error).message.split(/[.\n]/, 1)
    throw new UsageError(problem)
  }
}

async function runCommand(
  { command, files, json, url, transcript, flags }: Parsed,
  terminal: Terminal,
): Promise<ExitCode> {
  switch (command) {
    case 'start': {
      const { start } = await import('./start.ts')
      return start(flags, terminal)
    }
    case 'check-config': {
      const { file } = loadConfig(flags, terminal.env)
      terminal.out(`${file ?? 'no configuration file: defaults'}: valid\n`)
      break
    }
    case 'replay': {
      const { replay } = await import('./replay.ts')
      return replay({ files, json }, flags, terminal)
    }
    case 'demo': {
      const { demo } = await import('../demo/demo.ts')
      return demo(terminal)
    }
    case 'top': {
      const { top } = await import('./top.ts')
      await top(url, terminal)
      break
    }
    case 'sessions':
    case 'session':
    case 'stop':
    case 'extend': {
      const { sessions } = await import('./sessions.ts')
      await sessions({ command, args: files, json, transcript, url }, terminal)
      break
    }
    case 'suggest': {
      const { suggest } = await import('./suggest.ts')
      await suggest({ json, url }, terminal)
      break
    }
    default:
      throw new UsageError(`there is no command ${command}`)
  }
  return 0
}

/** Runs the command line `args`, without node and script. Reports wrong usage and configuration. */
export async function run(args: readonly string[], terminal: Terminal): Promise<ExitCode> {
  try {
    const parsed = parse(args)
    if (parsed.wants === 'help') terminal.out(HELP)
    else if (parsed.wants === 'version') terminal.out(`${VERSION}\n`)
    else return await runCommand(parsed, terminal)
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
