/** The package as npm packs it, and as it stands in a clone. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { describe, expect, it, onTestFinished } from 'vitest'

interface Manifest {
  readonly name: string
  readonly version: string
  readonly bin: Readonly<Record<string, string>>
  readonly scripts: Readonly<Record<string, string>>
}

const read = (file: string) => readFileSync(file, 'utf8')
const manifest = JSON.parse(read('package.json')) as Manifest

function run(program: string, args: readonly string[], cwd: string) {
  const { PATH, HOME } = process.env
  const env = { PATH, HOME }
  const { status, stdout, stderr } = spawnSync(program, [...args], { cwd, encoding: 'utf8', env })
  return { status, stdout, stderr }
}

function emptyFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'governor-package-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  return folder
}

describe('the package', () => {
  it('is named agent-governor in the manifest and in the lock file, and its program is named governor', () => {
    const lock = JSON.parse(read('package-lock.json'))
    expect([manifest.name, lock.name, lock.packages[''].name]).toEqual(Array(3).fill('agent-governor'))
    expect(manifest.bin).toEqual({ governor: 'dist/main.js' })
    expect(lock.packages[''].bin).toEqual(manifest.bin)
  })

  it('has a program that can be run as a file after every build', () => {
    const { status, stdout } = run(resolve('dist/main.js'), ['--version'], emptyFolder())
    expect({ status, stdout }).toEqual({ status: 0, stdout: `${manifest.version}\n` })
  })

  it('gets a command and its flags from npm start', () => {
    const { status, stdout } = run('npm', ['--silent', 'start', '--', 'check-config', '--port', '1'], '.')
    expect({ status, stdout }).toEqual({ status: 0, stdout: 'config/governor.yaml: valid\n' })
  })

  it('drains and exits when npm start gets SIGTERM, and leaves no process behind', async () => {
    const npm = spawn('npm', ['--silent', 'start', '--', '--port', '0'], {
      stdio: ['ignore', 'pipe', 'ignore'],
      detached: true,
    })
    onTestFinished(() => {
      if (npm.pid !== undefined && !isOver) process.kill(-npm.pid, 'SIGKILL')
    })
    let isOver = false
    const said: string[] = []
    const lines = createInterface(npm.stdout).on('line', (line) => {
      said.push(String(JSON.parse(line).msg))
      if (said.length === 1) npm.kill('SIGTERM')
    })
    // Ends when no process holds the output any more.
    await once(lines, 'close')
    isOver = true
    expect(said).toEqual(['listening', 'draining', 'stopped'])
  })

  it('prints one line with the numbers of passed and failed tests at the end of a test run', () => {
    const { stdout } = run('npm', ['--silent', 'run', 'test:run', '--', 'test/sse/frames.test.ts'], '.')
    expect(stdout.trimEnd().split('\n').at(-1)).toMatch(/^[1-9]\d* passed, 0 failed$/)
  })
})
