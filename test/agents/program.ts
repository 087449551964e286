/** Coding agents as programs: installed on demand from the npm registry, run in a folder of their own, bound in time. */
import { execFile, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { cp, mkdir, mkdtemp, realpath, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { onTestFinished } from 'vitest'

const run = promisify(execFile)

/** Milliseconds a download may take, and a run of an agent. */
const INSTALL_TIMEOUT = 540_000
const RUN_TIMEOUT = 120_000

/** Kept from run to run: GOVERNOR_AGENTS, or a folder among the temporary files. */
const HOME = process.env['GOVERNOR_AGENTS'] ?? join(tmpdir(), 'governor-agents')

/** A package at a fixed version, and the program in it. */
export interface Program {
  readonly name: string
  readonly version: string
  readonly bin: string
}

/** The agents, by the names of their files: one version of each. */
export const PROGRAMS = {
  claude: { name: '@anthropic-ai/claude-code', version: '2.1.332', bin: 'claude' },
  cline: { name: 'cline', version: '3.0.65', bin: 'cline' },
  codex: { name: '@openai/codex', version: '0.171.0', bin: 'codex' },
  cn: { name: '@continuedev/cli', version: '1.5.47', bin: 'cn' },
  copilot: { name: '@github/copilot', version: '1.0.102', bin: 'copilot' },
  gemini: { name: '@google/gemini-cli', version: '0.61.0', bin: 'gemini' },
  kimi: { name: '@moonshot-ai/kimi-code', version: '2.1.0', bin: 'kimi' },
  letta: { name: '@letta-ai/letta-code', version: '0.25.9', bin: 'letta' },
  nanocoder: { name: '@nanocollective/nanocoder', version: '1.30.0', bin: 'nanocoder' },
  omp: { name: '@oh-my-pi/pi-coding-agent', version: '18.2.3', bin: 'omp' },
  opencode: { name: 'opencode-ai', version: '1.18.33', bin: 'opencode' },
  pi: { name: '@earendil-works/pi-coding-agent', version: '1.6.0', bin: 'pi' },
  qwen: { name: '@qwen-code/qwen-code', version: '0.24.4', bin: 'qwen' },
} as const satisfies Readonly<Record<string, Program>>

/** Installs a program unless it is there already; returns the path of its binary. */
export async function install({ name, version, bin }: Program): Promise<string> {
  const folder = join(HOME, `${name.replaceAll('/', '+')}@${version}`)
  const binary = join(folder, 'node_modules', '.bin', bin)
  if (existsSync(binary)) return binary
  await mkdir(HOME, { recursive: true })
  // Put in its place when it is whole: what was broken off is not mistaken for it.
  const partial = await mkdtemp(join(HOME, 'partial-'))
  try {
    await writeFile(join(partial, 'package.json'), '{"private":true}')
    const args = ['install', '--no-fund', '--no-audit', '--loglevel=error', `${name}@${version}`]
    await run('npm', args, { cwd: partial, timeout: INSTALL_TIMEOUT, maxBuffer: 16 * 1024 * 1024 })
    await rename(partial, folder).catch(() => cp(partial, folder, { recursive: true }))
  } finally {
    await rm(partial, { recursive: true, force: true })
  }
  return binary
}

/** The Node that some programs need. */
const NODE_22: Program = { name: 'node', version: '22.23.3', bin: 'node' }

/** Installs a program, and the Node that it needs; returns its path, and the environment that it is to be started in. */
export async function installForNode22(program: Program) {
  const node = await install(NODE_22)
  const path = `${dirname(await realpath(node))}:${process.env['PATH'] ?? ''}`
  return { binary: await install(program), env: { PATH: path } }
}

/** What oh-my-pi runs in. */
const BUN: Program = { name: 'bun', version: '1.4.5', bin: 'bun' }

/** Installs a program, and the Bun that it needs; returns its path, and the environment that it is to be started in. */
export async function installForBun(program: Program) {
  const bun = await install(BUN)
  return { binary: await install(program), env: { PATH: `${dirname(bun)}:${process.env['PATH'] ?? ''}` } }
}

export interface Ran {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

/** An empty folder for one run, with these files in it. */
export async function workspace(files: Readonly<Record<string, string>> = {}): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'governor-agent-'))
  onTestFinished(() => rm(folder, { recursive: true, force: true }))
  for (const [path, text] of Object.entries(files)) {
    await mkdir(join(folder, path, '..'), { recursive: true })
    await writeFile(join(folder, path), text)
  }
  return folder
}

/** Runs a program in a folder that is its home as well; of the environment it gets what it needs and what is given. */
export function start(
  binary: string,
  args: readonly string[],
  folder: string,
  env: Readonly<Record<string, string>>,
): Promise<Ran> {
  const child = spawn(binary, args, {
    cwd: folder,
    env: { PATH: process.env['PATH'] ?? '', HOME: folder, TERM: 'dumb', NO_COLOR: '1', CI: '1', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: RUN_TIMEOUT,
    killSignal: 'SIGKILL',
  })
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', (chunk: Buffer) => {
    stdout += chunk.toString()
  })
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk.toString()
  })
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code) => resolve({ code, stdout, stderr }))
  })
}
