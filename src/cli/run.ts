/** `governor run -- COMMAND…`: guards one program and everything that it starts, and says at the end what it used. */
import { spawn } from 'node:child_process'
import { constants } from 'node:os'
import { basename } from 'node:path'
import { pino } from 'pino'
import { type Environment, loadConfig } from '../config/load.ts'
import { withoutTrailingSlashes } from '../core/trailing-slashes.ts'
import { BUILT_IN_UPSTREAMS } from '../dialect/index.ts'
import { DEFAULT_JOURNAL } from '../telemetry/journal.ts'
import { createBill } from './bill.ts'
import type { Call, Terminal } from './command.ts'
import { listen, observeText } from './start.ts'

/** Returns the environment of Governor: where the program would have sent its requests, Governor sends them. */
function governorEnvironment(env: Environment): Environment {
  const port = env['PORT'] || 8787
  const changed: Record<string, string | undefined> = { ...env }
  for (const { variable, clientVariable } of BUILT_IN_UPSTREAMS) {
    const url = env[clientVariable] ?? ''
    // The variable may still name a Governor that ran before.
    const isGovernor = url.includes(`//127.0.0.1:${port}`) || url.includes(`//localhost:${port}`)
    changed[variable] ||= env['GOVERNOR_UPSTREAM'] || isGovernor ? undefined : url
  }
  return changed
}

/** Runs a program, passes signals on to it, and returns its exit code as a shell states it. */
function runProgram(file: string, args: readonly string[], env: Environment, terminal: Terminal): Promise<number> {
  return new Promise((resolve) => {
    const child = spawn(file, args, { stdio: 'inherit', env })
    for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
      terminal.onSignal(name, () => {
        // A terminal sends Ctrl-C to the program as well.
        if (name !== 'SIGINT' || !terminal.hasKeyboard) child.kill(name)
      })
    child.once('error', (error: NodeJS.ErrnoException) => {
      terminal.err(`governor: ${file}: ${error.code === 'ENOENT' ? 'no such command' : error.message}\n`)
      resolve(error.code === 'ENOENT' ? 127 : 126)
    })
    child.once('exit', (code, signal) => resolve(code ?? 128 + (signal ? constants.signals[signal] : 0)))
  })
}

/** Guards one program until it ends, and returns its exit code. Throws `ConfigError`. */
export async function run({ args: [file = '', ...args], flags }: Call, terminal: Terminal): Promise<number> {
  const here = { ...flags, host: flags.host ?? '127.0.0.1', port: flags.port ?? '0' }
  const { config: given } = loadConfig(here, governorEnvironment(terminal.env), { 'stop.footer': true })
  const config = { ...given, usage: { journal: given.usage.journal || DEFAULT_JOURNAL } }
  // The screen is the program's: Governor logs only if it is asked to.
  const log = pino({ level: flags['log-level'] ?? 'silent', base: null }, { write: terminal.err })
  const bill = createBill()
  const { governor, address } = await listen(config, terminal, log, bill.record)
  terminal.err(
    `governor: guards ${file} at ${address}, page ${governor.page}\n${observeText(config.mode, terminal.env)}`,
  )
  // Two programs do not read the variables of base URLs.
  const provider = { options: { baseURL: `${address}/v1` } }
  const opencode = JSON.stringify({ provider: { openai: provider, anthropic: provider } })
  const path = withoutTrailingSlashes(new URL(config.upstreams['openai']?.url ?? '').pathname)
  // The path of the upstream goes before that of a request: only `/v1` is not doubled.
  const base = path === '' || path.endsWith('/v1') ? `${address}/v1` : address
  const noProxy = `${terminal.env['NO_PROXY'] ?? terminal.env['no_proxy'] ?? ''},127.0.0.1,localhost`.replace(/^,/, '')
  const env = {
    ...(basename(file) === 'opencode' ? { OPENCODE_CONFIG_CONTENT: opencode } : {}),
    ...terminal.env,
    OPENAI_BASE_URL: base,
    OPENAI_API_BASE: base,
    ANTHROPIC_BASE_URL: address,
    GOOGLE_GEMINI_BASE_URL: address,
    NO_PROXY: noProxy,
    no_proxy: noProxy,
  }
  if (basename(file) === 'codex') args.unshift('-c', `openai_base_url="${address}/v1"`)
  const code = await runProgram(file, args, env, terminal)
  await governor.close()
  terminal.err(bill.text(config.mode === 'observe'))
  if (bill.facts().requests === 0)
    terminal.err(`          ${file} sent no request through Governor: docs/clients.md says what it has to be told\n`)
  return code
}
