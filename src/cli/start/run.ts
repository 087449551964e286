/** `governor run -- COMMAND…`: guards one program and everything that it starts, and says at the end what it used. */
import { spawn } from 'node:child_process'
import { constants } from 'node:os'
import { basename } from 'node:path'
import { pino } from 'pino'
import { type Environment, loadConfig } from '../../config/load.ts'
import { BUILT_IN_UPSTREAMS } from '../../dialect/index.ts'
import { withoutTrailingSlashes } from '../../http/urls.ts'
import type { Emit } from '../../telemetry/event.ts'
import { DEFAULT_JOURNAL } from '../../telemetry/journal.ts'
import { governorAddress, isGovernor, type OwnAddress, ownAddresses, shownAddress } from '../agent-files.ts'
import { type Call, DEFAULT_PORT, type Terminal } from '../command.ts'
import { coloured, showsColours } from '../terminal-text.ts'
import { createBill } from './bill.ts'
import { redirected } from './redirect.ts'
import { listen, observeText } from './start.ts'

/** How many addresses in an agent's own files are named. */
const MAX_ADDRESSES = 5

/** What agents need besides a base URL, by the names of their programs. */
const NEEDS: Readonly<Record<string, string>> = {
  claude: 'unset CLAUDE_CODE_USE_BEDROCK and CLAUDE_CODE_USE_VERTEX: governor run leads neither to itself',
  copilot: 'set COPILOT_MODEL and COPILOT_PROVIDER_API_KEY: the models of GitHub are not guarded',
  gemini: 'set GEMINI_API_KEY and choose it with /auth: the API behind a Google login is not guarded',
}

const portIn = (env: Environment) => env['PORT'] || DEFAULT_PORT

/** Returns the environment of Governor: where the program would have sent its requests, Governor sends them. */
function governorEnvironment(env: Environment, own: readonly OwnAddress[]): Environment {
  const changed: Record<string, string | undefined> = { ...env }
  const copilot = env['COPILOT_PROVIDER_TYPE'] === 'anthropic' ? 'ANTHROPIC_BASE_URL' : 'OPENAI_BASE_URL'
  for (const { variable, clientVariable } of BUILT_IN_UPSTREAMS) {
    const other = clientVariable === copilot ? env['COPILOT_PROVIDER_BASE_URL'] : undefined
    const inFile = own.find(({ keys }) => keys.has(clientVariable))?.url.href
    const url = env[clientVariable] ?? other ?? inFile ?? ''
    changed[variable] ||= env['GOVERNOR_UPSTREAM'] || isGovernor(url, portIn(env)) ? undefined : url
  }
  return changed
}

/** Returns the lines that say that a program was not guarded, and what to set. */
function unguardedText(command: string, own: readonly OwnAddress[], terminal: Terminal): string {
  const says = `${command} was not guarded: no request of it that Governor guards came through`
  const lines = [coloured(says, 'red', showsColours(terminal))]
  const runs = `governor run --port ${DEFAULT_PORT}`
  for (const { file, url } of own.slice(0, MAX_ADDRESSES)) {
    const given = shownAddress(url)
    if (isGovernor(url.href, portIn(terminal.env))) lines.push(`${file} leads it to ${given}: use ${runs}`)
    else {
      const address = governorAddress(url, DEFAULT_PORT)
      lines.push(`${file} leads it to ${given}: write ${address} there, and use ${runs} --upstream ${given}`)
    }
  }
  if (own.length === 0) lines.push(NEEDS[basename(command)] ?? 'docs/clients.md says what it has to be told')
  return lines.map((line) => `          ${line}\n`).join('')
}

/** Why a program can't begin, by Node's code. */
const UNSTARTED: Readonly<Record<string, string>> = {
  ENOENT: 'no such command',
  EACCES: 'no program, or no permission to run it: chmod +x makes a file one',
}

/** Governor itself would end by the last ones, or open a debugger, and leave the program alone. */
const PASSED_ON = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const

/** Runs a program, passes signals on to it, and returns whether it began and its exit code as a shell states it. */
function runProgram(file: string, args: readonly string[], env: Environment, terminal: Terminal) {
  return new Promise<{ readonly code: number; readonly hasBegun: boolean }>((resolve) => {
    const child = spawn(file, args, { stdio: 'inherit', env })
    for (const name of PASSED_ON)
      terminal.onSignal(name, () => {
        // A terminal sends Ctrl-C and Ctrl-\ to the program as well.
        const isTyped = (name === 'SIGINT' || name === 'SIGQUIT') && terminal.hasKeyboard
        if (!isTyped) child.kill(name)
      })
    child.once('error', (error: NodeJS.ErrnoException) => {
      terminal.err(`governor: ${file}: ${(error.code && UNSTARTED[error.code]) ?? error.message}\n`)
      resolve({ code: error.code === 'ENOENT' ? 127 : 126, hasBegun: false })
    })
    child.once('exit', (code, signal) =>
      resolve({ code: code ?? 128 + (signal ? constants.signals[signal] : 0), hasBegun: true }),
    )
  })
}

/** Guards one program until it ends, and returns its exit code. Throws `ConfigError`. */
export async function run({ args: [file = '', ...args], flags }: Call, terminal: Terminal): Promise<number> {
  const here = { ...flags, host: flags.host ?? '127.0.0.1', port: flags.port ?? '0' }
  const own = ownAddresses(basename(file), terminal.env)
  const { config: given } = loadConfig(here, governorEnvironment(terminal.env, own), { 'stop.footer': true })
  const config = { ...given, usage: { journal: given.usage.journal || DEFAULT_JOURNAL } }
  // The screen is the program's: Governor logs only if it is asked to.
  const log = pino({ level: flags['log-level'] ?? 'silent', base: null }, { write: terminal.err })
  const bill = createBill()
  let isGuarded = false
  const onEvent: Emit = (event) => {
    bill.record(event)
    if (isGuarded || bill.facts().guarded === 0) return
    isGuarded = true
    // A terminal is the program's until it ends.
    if (!terminal.hasKeyboard) terminal.err(`governor: guards ${file}\n`)
  }
  const { governor, address } = await listen(config, terminal, log, onEvent)
  terminal.err(
    `governor: listens for ${file} at ${address}, page ${governor.page}\n${observeText(config.mode, terminal.env)}`,
  )
  const path = withoutTrailingSlashes(new URL(config.upstreams['openai']?.url ?? '').pathname)
  // The path of the upstream goes before that of a request: only `/v1` is not doubled.
  const base = path === '' || path.endsWith('/v1') ? `${address}/v1` : address
  const noProxy = `${terminal.env['NO_PROXY'] ?? terminal.env['no_proxy'] ?? ''},127.0.0.1,localhost`.replace(/^,/, '')
  const env = {
    ...terminal.env,
    OPENAI_BASE_URL: base,
    OPENAI_API_BASE: base,
    ANTHROPIC_BASE_URL: address,
    GOOGLE_GEMINI_BASE_URL: address,
    NO_PROXY: noProxy,
    no_proxy: noProxy,
  }
  const started = redirected(basename(file), { args, env }, { address, openAiBase: base })
  const { code, hasBegun } = await runProgram(file, started.args, started.env, terminal)
  started.tidy?.()
  await governor.close()
  terminal.err(bill.text(config.mode === 'observe'))
  if (hasBegun && !isGuarded) terminal.err(unguardedText(file, own, terminal))
  return code
}
