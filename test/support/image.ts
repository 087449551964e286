/** The image, made without Docker: a folder for each stage, with the files that the Dockerfile copies into it. */
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, cpSync, mkdirSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { onTestFinished } from 'vitest'

const run = promisify(execFile)

interface Instruction {
  readonly name: string
  readonly rest: string
}

export interface Copy {
  /** The stage that has the files; without one, they are in this repository. */
  readonly from: string | undefined
  readonly sources: readonly string[]
  readonly target: string
}

export interface Image {
  /** The files of the last stage. */
  readonly folder: string
  /** The program that it runs, and its arguments. */
  readonly command: readonly string[]
}

function instructions(): Instruction[] {
  const text = readFileSync('Dockerfile', 'utf8').replace(/\\\n\s*/g, ' ')
  return [...text.matchAll(/^([A-Z]+) (.*)$/gm)].map(([, name = '', rest = '']) => ({ name, rest }))
}

function copyOf({ rest }: Instruction): Copy {
  const words = rest.split(' ')
  const [, from] = /^--from=(\w+)$/.exec(words[0] ?? '') ?? []
  return { from, sources: words.slice(from ? 1 : 0, -1), target: words.at(-1) ?? '' }
}

/** Returns what the Dockerfile copies, in its order. */
export function copiesOfDockerfile(): Copy[] {
  return instructions()
    .filter(({ name }) => name === 'COPY')
    .map(copyOf)
}

/** Runs a command of the shell in a folder; returns its complaints. @throws with what it printed, where it fails. */
export async function runShell(command: string, folder: string): Promise<string> {
  // Packages that were installed before come from npm's cache.
  const env = { PATH: process.env['PATH'], HOME: process.env['HOME'], npm_config_prefer_offline: 'true' }
  return (await run('sh', ['-c', command], { cwd: folder, env, maxBuffer: 16 * 1024 * 1024 })).stderr
}

function copyInto(folder: string, copy: Copy, stages: ReadonlyMap<string, string>): void {
  for (const source of copy.sources) {
    // A path in another stage is absolute, and begins with its WORKDIR.
    const file = copy.from ? join(stages.get(copy.from) ?? '', source.replace(/^\/\w+\//, '')) : resolve(source)
    const name = copy.target.endsWith('/') ? join(copy.target, source.replace(/^.*\//, '')) : copy.target
    cpSync(file, join(folder, name), { recursive: true, verbatimSymlinks: true })
  }
}

/** Copies what the Dockerfile copies into folders in `root`, runs each RUN by `runCommand`, and returns the last stage. */
export async function buildImage(
  root: string,
  runCommand: (command: string, folder: string) => Promise<unknown>,
): Promise<Image> {
  const stages = new Map<string, string>()
  let folder = root
  let command: string[] = []
  for (const instruction of instructions()) {
    const { name, rest } = instruction
    if (name === 'FROM') {
      const stage = / AS (\w+)$/.exec(rest)?.[1] ?? 'last'
      folder = join(root, stage)
      mkdirSync(folder)
      stages.set(stage, folder)
    } else if (name === 'COPY') copyInto(folder, copyOf(instruction), stages)
    else if (name === 'RUN') await runCommand(rest, folder)
    else if (name === 'CMD') command = JSON.parse(rest) as string[]
  }
  // The test may be root, and the user of the image is not.
  chmodSync(root, 0o755)
  return { folder, command }
}

/** Starts the image's command on a free port, as a user who may write nothing in it, and returns its address. */
export async function startImage({ folder, command: [, ...args] }: Image) {
  const user = process.getuid?.() === 0 ? { uid: 1000, gid: 1000 } : {}
  const child = spawn(process.execPath, [...args, '--port', '0'], {
    cwd: folder,
    env: { NODE_ENV: 'production' },
    stdio: ['ignore', 'pipe', 'inherit'],
    ...user,
  })
  onTestFinished(() => {
    child.kill('SIGKILL')
  })
  const [line] = await once(createInterface(child.stdout), 'line')
  return {
    address: String(JSON.parse(line).address),
    /** Ends it as Docker does, and returns its exit code. */
    async stop(): Promise<number> {
      child.kill('SIGTERM')
      const [code] = await once(child, 'exit')
      return code
    },
  }
}
