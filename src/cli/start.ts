/** `governor start`: listen, reload on SIGHUP, drain on SIGTERM. */
import { type Logger, pino } from 'pino'
import { buildGovernor, type Governor } from '../app.ts'
import { ConfigError, type Loaded, loadConfig } from '../config/load.ts'
import { restartKeys } from '../config/restart.ts'
import type { Config } from '../config/schema.ts'
import { isLoopback } from '../http/loopback.ts'
import { holdsKey } from '../proxy/route.ts'
import { VERSION } from '../version.ts'
import type { ExitCode, Flags, Terminal } from './command.ts'
import { createLogOutput } from './log-output.ts'
import { proxiesIn } from './proxies.ts'

const STDOUT = 1

/** Why listening failed, in one line. */
function listenProblem(error: Error, { server: { host, port } }: Config): string {
  const code = Reflect.get(error, 'code')
  switch (code) {
    case 'EADDRINUSE':
      return `port ${port} on ${host} is in use: stop what listens there, or choose another with --port`
    case 'EACCES':
      return `port ${port} may not be opened by this user: choose one above 1023 with --port`
    case 'EADDRNOTAVAIL':
      return `${host} is not an address of this machine: choose another with --host`
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return `${host} does not resolve: choose another with --host`
    default:
      return `can't listen on ${host}:${port} (${String(code ?? error.message)})`
  }
}

export async function start(flags: Flags, terminal: Terminal): Promise<ExitCode> {
  const loaded = loadConfig(flags, terminal.env)
  const output = createLogOutput(STDOUT, terminal.onExit)
  const { level } = loaded.config.log
  const log = pino({ level, base: null, timestamp: pino.stdTimeFunctions.isoTime }, output)
  try {
    return await serve(loaded, flags, terminal, log)
  } finally {
    output.close()
  }
}

async function serve(
  { config, file, warnings }: Loaded,
  flags: Flags,
  terminal: Terminal,
  log: Logger,
): Promise<ExitCode> {
  const proxies = proxiesIn(terminal.env)
  for (const warning of warnings) log.warn({}, warning)
  const governor = buildGovernor(config, { log, proxies, memory: terminal.memory })
  let address: string
  try {
    address = await governor.listen()
  } catch (error) {
    terminal.err(`governor: ${listenProblem(error as Error, config)}\n`)
    await governor.close()
    return 1
  }
  // Before anybody is told that it listens, as from then on it is signalled.
  // The file that was read must still be there: without it, a reload would silently bring the defaults back.
  const known: Flags = file === undefined ? flags : { ...flags, config: file }
  terminal.onSignal('SIGHUP', () => reload(governor, config, known, terminal, log))
  const stopped = untilStopped(governor, terminal, log)
  const upstreams = Object.fromEntries(
    Object.entries(config.upstreams).map(([name, { url }]) => [name, new URL(url).origin]),
  )
  log.info(
    {
      address,
      version: VERSION,
      config: file ?? null,
      upstreams,
      max_iterations: config.budget.max_iterations,
    },
    'listening',
  )
  const sharesKeys = Object.values(config.upstreams).some(holdsKey)
  if (sharesKeys && config.server.access_keys.length === 0 && !isLoopback(config.server.host)) {
    log.warn(
      { host: config.server.host },
      'anybody who reaches this address can use the upstream keys: set server.access_keys',
    )
  }
  if (terminal.isInteractive) {
    terminal.err(`Governor listens on ${address}. Point your agent at it: OPENAI_BASE_URL=${address}/v1\n`)
  }
  return stopped
}

/** Puts the policies of the file in force as it is now; a bad file changes nothing. `running`: as it was at the start. */
function reload(governor: Governor, running: Config, flags: Flags, terminal: Terminal, log: Logger): void {
  try {
    const { config, file, warnings } = loadConfig(flags, terminal.env)
    for (const warning of warnings) log.warn({}, warning)
    governor.reload(config)
    log.info({ config: file ?? null, max_iterations: config.budget.max_iterations }, 'policies reloaded')
    const keys = restartKeys(running, config)
    if (keys.length > 0) log.warn({ keys }, 'these keys have changed: a restart puts them in force')
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    log.error(
      { problems: error.message.split('\n') },
      'configuration not reloaded: the one before stays in force',
    )
  }
}

/** npm passes Ctrl-C on to a process that the terminal has sent it to already: the same wish, not a second one. */
const SAME_WISH_MS = 1000

/** Waits for the first SIGTERM or SIGINT and drains; a second one ends at once. */
function untilStopped(governor: Governor, terminal: Terminal, log: Logger): Promise<ExitCode> {
  return new Promise((resolve) => {
    let stoppingSince: number | undefined
    const stop = () => {
      if (stoppingSince !== undefined) {
        if (performance.now() - stoppingSince > SAME_WISH_MS) terminal.exit(1)
        return
      }
      stoppingSince = performance.now()
      log.info({}, 'draining')
      governor.drain().then((isComplete) => {
        log.info({ complete: isComplete }, 'stopped')
        resolve(0)
      })
    }
    terminal.onSignal('SIGTERM', stop)
    terminal.onSignal('SIGINT', stop)
  })
}
