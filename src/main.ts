#!/usr/bin/env node
/** The only file that touches the process. */
import type { Terminal } from './cli/command.ts'
import { tuneEngine } from './cli/engine.ts'

// Before everything else, because some flags have no effect on work that V8 has already done or planned.
tuneEngine()
const [{ run }, { totalmem }, { readFileSync }, { isatty }, { getHeapStatistics }] = await Promise.all([
  import('./cli/cli.ts'),
  import('node:os'),
  import('node:fs'),
  import('node:tty'),
  import('node:v8'),
])

function onKey(handle: (key: string) => void): () => void {
  const { stdin } = process
  const take = (bytes: Buffer) => handle(bytes.toString())
  stdin.setRawMode(true)
  stdin.on('data', take)
  return () => {
    stdin.off('data', take)
    stdin.setRawMode(false)
    stdin.pause()
  }
}

/** Linux alone says how many files and connections a process may have open; Node has raised that as far as it may. */
function maxOpenFiles(): number {
  try {
    const [, soft] = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return Number(soft ?? Number.POSITIVE_INFINITY)
  } catch {
    return Number.POSITIVE_INFINITY
  }
}

const terminal: Terminal = {
  env: process.env,
  out: (text) => process.stdout.write(text),
  err: (text) => process.stderr.write(text),
  input: () => process.stdin,
  onSignal: (name, handle) => process.on(name, handle),
  onExit: (handle) => process.on('exit', handle),
  exit: (code) => process.exit(code),
  get columns() {
    // A file and a pipe have no width: there names have room.
    return process.stdout.columns || (isatty(1) ? 80 : 160)
  },
  get rows() {
    return process.stdout.rows || 24
  },
  // Only a command that reads keys opens standard input.
  get onKey() {
    return process.stdin.isTTY === true ? onKey : undefined
  },
  // A container may have less memory than its machine; `constrainedMemory` is 0 if that is not known.
  // What is read of bodies is in the heap of V8, which is smaller than a large machine.
  memory: Math.min(
    totalmem(),
    process.constrainedMemory() || Number.POSITIVE_INFINITY,
    2 * getHeapStatistics().heap_size_limit,
  ),
  maxOpenFiles: maxOpenFiles(),
  // Standard input itself is not opened: it may belong to a program that is started.
  hasKeyboard: isatty(0) || isatty(1) || isatty(2),
  get isInteractive() {
    return isatty(1) && isatty(2)
  },
}

// A reader such as `head` may close the pipe before everything is written.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0)
  throw error
})

// Node exits by itself once nothing is open, so that the last log line is not lost.
process.exitCode = await run(process.argv.slice(2), terminal)
