/** `governor run -- COMMAND…`: guards one program and everything that it starts, and says at the end what it used. */
import { spawn } from 'node:child_process'
import { constants } from 'node:os'
import { basename } from 'node:path'
import { pino } from 'pino'
import { type Environment, loadConfig } from '../../config/load.ts'
import { BUILT_IN_UPSTREAMS } from '../../dialect/index.ts'
import { withoutTrailingSlashes } from '../../http/urls.ts'
import { DEFAULT_JOURNAL } from '../../telemetry/journal.ts'
import type { Call, Terminal } from '../command.ts'
import { coloured, showsColours } from '../terminal-text.ts'
import { createBill } from './bill.ts'
import { redirected } from './redirect.ts'
import { listen, observeText } from './start.ts'

/** Returns the environment of Governor: where the program would have sent its requests, Governor sends them. */
function governorEnvironment(env: Environment): Environment {
  const port = env['PORT'] || 8787
  const changed: Record<string, string | undefined> = { ...env }
  const copilot = env['COPILOT_PROVIDER_TYPE'] === 'anthropic' ? 'ANTHROPIC_BASE_URL' : 'OPENAI_BASE_URL'
  for (const { variable, clientVariable } of BUILT_IN_UPSTREAMS) {
    const other = clientVariable === copilot ? env['COPILOT_PROVIDER_BASE_URL'] : undefined
    const url = env[clientVariable] ?? other ?? ''
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
  const code = await runProgram(file, started.args, started.env, terminal)
  started.tidy?.()
  await governor.close()
  terminal.err(bill.text(config.mode === 'observe'))
  if (bill.facts().guarded === 0) {
    const says = `${file} was not guarded: no request of it that Governor guards came through`
    terminal.err(`          ${coloured(says, 'red', showsColours(terminal))}\n`)
    terminal.err('          docs/clients.md says what it has to be told\n')
  }
  return code
}
