/** The package as npm packs it, installed as its user would, and started. */
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { lstatSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { onTestFinished } from 'vitest'

const run = promisify(execFile)

export interface Installed {
  /** The folder in which `npm install` ran. */
  readonly folder: string
  /** Paths of all installed files, relative to the folder. */
  readonly files: readonly string[]
  /** Bytes of all installed files, and of the package as it is packed. */
  readonly size: number
  readonly packedSize: number
}

/** Returns an empty folder, removed after the current test. */
export function emptyFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'governor-package-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  return folder
}

/** Runs npm with a Node of its own and returns what it printed. @throws with its errors, where it fails. */
export async function npm(node: string, args: readonly string[], cwd: string): Promise<string> {
  const env = {
    HOME: process.env['HOME'],
    PATH: `${dirname(node)}:${process.env['PATH']}`,
    // Packages that were installed before come from npm's cache.
    npm_config_prefer_offline: 'true',
    npm_config_audit: 'false',
    npm_config_fund: 'false',
  }
  const { stdout } = await run('npm', args, { cwd, env, maxBuffer: 16 * 1024 * 1024 })
  return stdout
}

/** Packs this repository, which is built already, and installs the package with a Node into an empty folder. */
export async function installPacked(node = process.execPath): Promise<Installed> {
  const packed = emptyFolder()
  await npm(process.execPath, ['pack', '--ignore-scripts', '--pack-destination', packed], '.')
  const [tarball = ''] = readdirSync(packed)
  const folder = emptyFolder()
  // Else npm would install into a parent folder that has packages.
  writeFileSync(join(folder, 'package.json'), '{}')
  await npm(node, ['install', join(packed, tarball)], folder)
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
  const size = files.reduce((sum, file) => {
    const stats = lstatSync(join(folder, file))
    return stats.isFile() ? sum + stats.size : sum
  }, 0)
  return { folder, files, size, packedSize: lstatSync(join(packed, tarball)).size }
}

/** Starts the installed program with a Node, and returns what its /health answers. */
export async function healthOf({ folder }: Installed, node = process.execPath) {
  const child = spawn(node, [join('node_modules', '.bin', 'governor'), 'start', '--port', '0'], {
    cwd: folder,
    env: {},
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  onTestFinished(() => {
    child.kill('SIGKILL')
  })
  const [line] = await once(createInterface(child.stdout), 'line')
  const response = await fetch(`${JSON.parse(line).address}/health`)
  const answer: unknown = await response.json()
  child.kill('SIGTERM')
  const [code] = await once(child, 'exit')
  return { status: response.status, answer, code }
}
