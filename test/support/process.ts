/** The built program as a process of its own, started and signalled as a supervisor would. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { onTestFinished } from 'vitest'

export const MAIN = resolve('dist/main.js')

export type Line = Readonly<Record<string, unknown>>

export interface Program {
  readonly child: ChildProcess
  /** Everything on standard output, line by line. */
  readonly log: readonly string[]
  /** Everything on standard error. */
  readonly complaints: () => string
  readonly exitCode: Promise<number | null>
  /** The next log line with this message that was not waited for yet; fails when the program ends before. */
  line(message: string): Promise<Line>
}

export interface LaunchOptions {
  /** Arguments of Node, before the program. */
  readonly nodeArgs?: readonly string[]
  /** A line of shell that runs before the program, in its process. */
  readonly shell?: string
}

/** A folder for the current test. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'governor-process-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/**
 * Starts the program for the current test, in an empty folder, which keeps its state as well, and with no environment
 * but `env`.
 */
export function launch(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
  { nodeArgs = [], shell }: LaunchOptions = {},
): Program {
  const command = [process.execPath, ...nodeArgs, MAIN, 'start', ...args]
  const whole = shell === undefined ? command : ['/bin/sh', '-c', `${shell}; exec "$@"`, 'sh', ...command]
  const [file = '', ...rest] = whole
  const cwd = temporaryFolder()
  const child = spawn(file, rest, { cwd, env: { HOME: cwd, ...env }, stdio: 'pipe' })
  onTestFinished(() => {
    child.kill('SIGKILL')
  })
  const log: string[] = []
  let complaints = ''
  let read = 0
  let look = () => {}
  let hasEnded = false
  createInterface(child.stdout).on('line', (line) => {
    log.push(line)
    look()
  })
  child.stderr.on('data', (data: Buffer) => {
    complaints += data
  })
  const exitCode = once(child, 'close').then(([code]) => {
    hasEnded = true
    look()
    return code as number | null
  })
  return {
    child,
    log,
    complaints: () => complaints,
    exitCode,
    line: (message) =>
      new Promise((found, failed) => {
        look = () => {
          while (read < log.length) {
            const line = JSON.parse(log[read++] ?? '') as Line
            if (line['msg'] !== message) continue
            // Further lines are for the next one who waits.
            look = () => {}
            return found(line)
          }
          if (hasEnded) failed(new Error(`ended without "${message}": ${complaints}${log.join('\n')}`))
        }
        look()
      }),
  }
}

type Tree = { readonly [key: string]: unknown }

/** A program that listens. */
export interface Process extends Program {
  readonly url: string
  /** The value of a metric, named with its labels as `/metrics` writes them; 0 where there is none. */
  metric(name: string): Promise<number>
}

/** Starts the program in front of an upstream, with `config` as a file would have it, and waits until it listens. */
export async function startProcess(
  upstream: string,
  config: Tree = {},
  options: LaunchOptions & { readonly env?: Readonly<Record<string, string>> } = {},
): Promise<Process> {
  const file = join(temporaryFolder(), 'governor.yaml')
  const upstreams = { openai: { url: upstream }, anthropic: { url: upstream }, gemini: { url: upstream } }
  const server = { port: 0, ...(config['server'] as Tree | undefined) }
  // JSON is YAML as well.
  writeFileSync(file, JSON.stringify({ upstreams, ...config, server }))
  const program = launch(['--config', file], options.env, options)
  const { address } = await program.line('listening')
  const url = String(address)
  return {
    ...program,
    url,
    async metric(name) {
      const text = await (await fetch(`${url}/metrics`)).text()
      const line = text.split('\n').find((one) => one.startsWith(`${name} `))
      return Number(line?.slice(name.length + 1) ?? 0)
    },
  }
}
