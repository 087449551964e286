/** `governor start`: listen, reload on SIGHUP, drain on SIGTERM. */

import { dirname } from 'node:path'
import { type Logger, pino } from 'pino'
import { buildGovernor, type Governor, type GovernorOptions } from '../../app.ts'
import { ConfigError, type Environment, type Flags, type Loaded, loadConfig, restartKeys } from '../../config/load.ts'
import type { Config } from '../../config/schema.ts'
import { codeOf, errorOf } from '../../core/thrown.ts'
import type { Proxies } from '../../http/transport.ts'
import { isLoopback } from '../../http/urls.ts'
import { clock } from '../../ops/sessions/labels.ts'
import { holdsKey } from '../../proxy/door/route.ts'
import type { Emit } from '../../telemetry/event.ts'
import { DEFAULT_JOURNAL, journalFile } from '../../telemetry/journal.ts'
import { VERSION } from '../../version.ts'
import { type Call, CommandError, type Terminal } from '../command.ts'
import { createBill, type Heard, isSpoken, spokenLine } from './bill.ts'
import { createLogOutput } from './log-output.ts'
import { createTerminalLog } from './terminal-log.ts'
import { ownWorker, type Running, startWorkers, work } from './workers.ts'

const STDOUT = 1

export function listenProblem(error: unknown, host: string, port: number): string {
  const code = codeOf(error)
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
      return String(code).startsWith('ERR_')
        ? `can't start: ${errorOf(error).message}`
        : `can't listen on ${host}:${port} (${String(code ?? errorOf(error).message)})`
  }
}

/** Reads a variable, in lower case first. As in curl, a host without a scheme is an HTTP proxy. */
function proxyIn(env: Environment, name: string): string | undefined {
  const value = env[name.toLowerCase()] || env[name]
  if (!value) return undefined
  const url = value.includes('://') ? value : `http://${value}`
  // The message does not show the value, which may hold a password.
  if (!URL.canParse(url) || !/^(?:https?|socks5?):$/.test(new URL(url).protocol))
    throw new ConfigError(`${name}: not the URL of a proxy: expected one such as http://proxy.example:3128`)
  return url
}

/** Returns the proxies; `undefined` if the environment names none. Throws `ConfigError`. */
export function proxiesIn(env: Environment): Proxies | undefined {
  const http = proxyIn(env, 'HTTP_PROXY')
  const https = proxyIn(env, 'HTTPS_PROXY')
  if (http === undefined && https === undefined) return undefined
  return { http, https, noProxy: env['no_proxy'] ?? env['NO_PROXY'] }
}

/** Says that other machines can use the keys that Governor holds; `undefined` if they can't. */
export function openKeys({ server: { host, access_keys }, upstreams }: Config): string | undefined {
  const sharesKeys = Object.values(upstreams).some(holdsKey)
  if (!sharesKeys || access_keys.length > 0 || isLoopback(host)) return undefined
  return 'anybody who reaches this address can use the upstream keys: set server.access_keys'
}

/**
 * Builds a Governor that listens. `onHeard` gets the label of the session with an event of an agent, where people may
 * see it: log, metrics, journal, webhook and trace never do. Throws `ConfigError`, and `CommandError` if it can't
 * listen.
 */
export async function listen(
  config: Config,
  terminal: Terminal,
  log: Logger,
  onHeard: (event: Heard) => void,
  more: Partial<GovernorOptions> = {},
) {
  const hasLabels = config.sessions.labels !== 'none' && config.ops.names !== 'token'
  const onEvent: Emit = (event) => {
    const id = hasLabels && isSpoken(event) ? event.apiId : undefined
    if (id === undefined) onHeard(event)
    else void governor.labelOf(id).then((label) => onHeard({ ...event, label }))
  }
  const governor = buildGovernor(config, {
    log,
    onEvent,
    proxies: proxiesIn(terminal.env),
    memory: terminal.memory,
    maxOpenFiles: terminal.maxOpenFiles,
    stateFolder: dirname(journalFile(DEFAULT_JOURNAL)),
    semanticConventions: terminal.env['OTEL_SEMCONV_STABILITY_OPT_IN'],
    ...more,
  })
  try {
    const address = await governor.listen()
    void governor.loadLater()
    return { governor, address }
  } catch (error) {
    await governor.close()
    throw new CommandError(listenProblem(error, config.server.host, config.server.port))
  }
}

/** Runs Governor until a signal stops it, and returns the exit code. Throws `ConfigError`. */
export async function start({ flags }: Call, terminal: Terminal): Promise<number> {
  const loaded = loadConfig(flags, terminal.env)
  const { level } = loaded.config.log
  const worker = ownWorker(terminal)
  const options = { base: worker ? { worker: worker.id } : null, timestamp: pino.stdTimeFunctions.isoTime }
  if (!terminal.isInteractive || flags['log-level'] || terminal.env['LOG_LEVEL']) {
    const output = createLogOutput(STDOUT, terminal.onExit)
    try {
      return await serve(loaded, flags, terminal, pino({ ...options, level }, output), false)
    } finally {
      output.close()
    }
  }
  const log = pino(
    { ...options, level: level === 'info' ? 'warn' : level },
    createTerminalLog((text) => terminal.isInteractive && terminal.err(text)),
  )
  return serve(loaded, flags, terminal, log, true)
}

/** Says that Governor only observes, and what may have set that. */
export function observeWords(env: Environment): string {
  const origin = env['GOVERNOR_OBSERVE'] ? ' (GOVERNOR_OBSERVE)' : ''
  return `observe${origin}: it only counts, and stops, blocks and tells nothing`
}

/** Returns the same as a line under the one of the start; empty if Governor guards. */
export function observeText(mode: Config['mode'], env: Environment): string {
  return mode === 'observe' ? `  mode   ${observeWords(env)}\n` : ''
}

/** npm repeats the Ctrl-C that a process got from the terminal: two signals within this time count as one. */
const SAME_SIGNAL_MS = 1000

/**
 * Returns what builds a Governor in this process that listens. Throws `ConfigError`, and `CommandError` if it can't
 * listen.
 */
function listenerOf({ config, file }: Loaded, flags: Flags, terminal: Terminal, log: Logger) {
  return async (own: Config, onEvent: (event: Heard) => void, more?: Partial<GovernorOptions>) => {
    const { governor, address } = await listen(own, terminal, log, onEvent, more)
    // A reload requires the file that was read: without it, the defaults would silently come back.
    const again = () => reload(governor, config, { ...flags, config: file }, terminal, log)
    return { ...governor, page: governor.page, address, reload: again }
  }
}

async function serve(loaded: Loaded, flags: Flags, terminal: Terminal, log: Logger, isForPeople: boolean) {
  const { config } = loaded
  const { mode, server, ops } = config
  const listenHere = listenerOf(loaded, flags, terminal, log)
  const worker = ownWorker(terminal)
  if (worker) return work(worker, config, terminal, listenHere)
  const bill = createBill()
  let page = ''
  let isStoreDown = false
  const onEvent = (event: Heard) => {
    bill.record(event)
    if (!isForPeople) return
    let line = spokenLine(event, ops.names !== 'token', (id) => `${page}#${id}`)
    if (event.kind === 'store_changed') {
      if (event.isUp && isStoreDown) line = 'store in use again'
      isStoreDown = !event.isUp
    }
    if (line && terminal.isInteractive) terminal.err(`${clock(new Date().toISOString())} ${line}\n`)
  }
  let isReloadAsked = false
  let reloadNow = () => {
    isReloadAsked = true
  }
  const isOnTerminal = terminal.isInteractive
  let end = () => terminal.exit(0)
  let stoppingSince: number | undefined
  let stop = () => {}
  const stopped = new Promise<void>((resolve) => {
    stop = resolve
  })
  const drainOnSignals = () => {
    end = stop
    for (const name of ['SIGTERM', 'SIGINT'] as const)
      terminal.onSignal(name, () => {
        if (performance.now() - (stoppingSince ?? Number.POSITIVE_INFINITY) > SAME_SIGNAL_MS) terminal.exit(1)
        stoppingSince ??= performance.now()
        stop()
      })
  }
  // The first worker serves while the others start: a reload that is asked for meanwhile comes after that, and an end.
  // A terminal that is closed hangs up, too: nobody would see who keeps the port.
  terminal.onSignal('SIGHUP', () => (isOnTerminal && !terminal.isInteractive ? end() : reloadNow()))
  if (server.workers > 1) drainOnSignals()
  const governor = await (server.workers > 1
    ? startWorkers(config, log, onEvent, () => stoppingSince !== undefined)
    : listenHere(config, onEvent))
  page = governor.page
  reloadNow = governor.reload
  // Signals may come as soon as the log says that Governor listens, so the handlers are registered before that.
  if (server.workers === 1) drainOnSignals()
  announce(loaded, governor, terminal, log, isForPeople)
  if (isReloadAsked) governor.reload()
  await stopped
  log.info({}, 'draining')
  const isComplete = await governor.drain()
  log.info({ complete: isComplete, ...bill.facts() }, 'stopped')
  if (isForPeople && terminal.isInteractive) terminal.err(`\n${bill.text(mode === 'observe')}`)
  return 0
}

/** Says that Governor listens, and what its operator should know of it. */
function announce(
  { config, file }: Loaded,
  { address, page }: Running,
  terminal: Terminal,
  log: Logger,
  isForPeople: boolean,
): void {
  const { mode, store } = config
  const { host, workers: count } = config.server
  const { max_iterations } = config.budget
  const upstreams: Record<string, string> = {}
  for (const [name, { url }] of Object.entries(config.upstreams)) upstreams[name] = new URL(url).origin
  const workers = count > 1 ? count : undefined
  log.info(
    { address, page, version: VERSION, config: file ?? null, store, mode, upstreams, max_iterations, workers },
    'listening',
  )
  const open = openKeys(config)
  if (open) log.warn({ host }, open)
  if (isForPeople) {
    terminal.err(
      `Governor listens on ${address} and reads ${file ?? 'no file: its defaults count'}. Ctrl-C ends it.\n` +
        `${observeText(mode, terminal.env)}  page   ${page}\n` +
        `  agent  OPENAI_BASE_URL=${address}/v1 or ANTHROPIC_BASE_URL=${address}\n`,
    )
  }
}

/** Applies the policies of the current file; a wrong file changes nothing. `running`: the one at the start. */
function reload(governor: Governor, running: Config, flags: Flags, terminal: Terminal, log: Logger): void {
  try {
    const { config, file } = loadConfig(flags, terminal.env)
    governor.reload(config)
    log.info({ config: file ?? null, max_iterations: config.budget.max_iterations }, 'policies reloaded')
    const keys = restartKeys(running, config)
    if (keys.length > 0) log.warn({ keys }, 'these keys have changed: a restart puts them in force')
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    log.error({ problems: error.message.split('\n') }, 'configuration not reloaded: the one before stays in force')
  }
}
