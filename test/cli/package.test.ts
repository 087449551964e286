/** The package as npm packs it, and as it is in a clone. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { lstatSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { describe, expect, it, onTestFinished } from 'vitest'
import { emptyFolder, healthOf, installPacked, npm } from '../support/installed.ts'

interface Manifest {
  readonly name: string
  readonly version: string
  readonly bin: Readonly<Record<string, string>>
  readonly dependencies: Readonly<Record<string, string>>
  readonly devDependencies: Readonly<Record<string, string>>
}

interface Bill {
  readonly components: readonly { readonly name: string; readonly licenses?: readonly unknown[] }[]
}

const read = (file: string) => readFileSync(file, 'utf8')
/** Returns the bytes of those that are files. */
const sum = (paths: readonly string[]) =>
  paths.map((path) => lstatSync(path)).reduce((bytes, stats) => bytes + (stats.isFile() ? stats.size : 0), 0)
const manifest = JSON.parse(read('package.json')) as Manifest

function run(program: string, args: readonly string[], cwd: string) {
  const { PATH, HOME } = process.env
  const env = { PATH, HOME }
  const { status, stdout, stderr } = spawnSync(program, [...args], { cwd, encoding: 'utf8', env })
  return { status, stdout, stderr }
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

describe('the packed package', () => {
  it('answers /health where npm installed it into an empty folder, and brings no source map and no development package', async () => {
    const installed = await installPacked()
    expect(await healthOf(installed)).toEqual({
      status: 200,
      answer: { status: 'ok', version: manifest.version },
      code: 0,
    })
    expect(await npm(process.execPath, ['exec', 'agent-governor', '--', '--version'], installed.folder)).toBe(
      `${manifest.version}\n`,
    )
    const own = installed.files.filter((file) => file.startsWith('node_modules/agent-governor/'))
    expect(own).toContain('node_modules/agent-governor/dist/THIRD-PARTY-LICENSES')
    expect(own.filter((file) => /\.map$|\/(?:src|test|scripts|node_modules)\//.test(file))).toEqual([])
    const development = Object.keys(manifest.devDependencies)
    expect(development.filter((name) => installed.files.includes(`node_modules/${name}`))).toEqual([])
    const sizes = [installed.packedSize, sum(own.map((file) => join(installed.folder, file))), installed.size]
    const [, ...stated] =
      /: ([\d.]+) MB to load, ([\d.]+) MB unpacked, (\d+) MB with its/.exec(read('docs/deploying.md')) ?? []
    expect(stated).toHaveLength(3)
    for (const [at, size] of sizes.entries()) {
      const share = size / 1e6 / Number(stated[at])
      expect(Math.abs(share - 1), `docs/deploying.md says ${stated[at]} MB: ${size} bytes`).toBeLessThan(0.1)
    }
  }, 180_000)

  it('has the licence of every package whose code is in the bundle', () => {
    const maps = readdirSync('dist', { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.map'))
    const sources = maps.flatMap((file): string[] => JSON.parse(read(join('dist', file))).sources)
    const names = sources.flatMap((source) => /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(source)?.[1] ?? [])
    const text = read('dist/THIRD-PARTY-LICENSES')
    expect(new Set(names).size).toBeGreaterThan(30)
    expect([...new Set(names)].filter((name) => !text.includes(`\n${name} `))).toEqual([])
    expect(
      text.match(/Apache License|Permission is hereby granted|Permission to use|Redistribution/g)?.length,
    ).toBeGreaterThan(30)
  })

  it('has every file to which its documents for users link', async () => {
    const packed = JSON.parse(await npm(process.execPath, ['pack', '--dry-run', '--json', '--ignore-scripts'], '.'))
    const files: string[] = packed[0].files.map(({ path }: { path: string }) => path)
    const missing = files
      .filter((file) => file.endsWith('.md') && !/CONTRIBUTING|architecture|decisions|bench/.test(file))
      .flatMap((file) =>
        [...read(file).matchAll(/\]\((?!https?:|#)([^)#]+)/g)].map(([, to = '']) => join(dirname(file), to)),
      )
      .filter((path) => !files.some((file) => file === path || file.startsWith(`${path}/`)))
    expect(missing).toEqual([])
  })

  it('has a bill of materials with a licence for every dependency', async () => {
    const bill = JSON.parse(await npm(process.execPath, ['run', '--silent', 'sbom'], '.')) as Bill
    expect(bill).toMatchObject({ bomFormat: 'CycloneDX', metadata: { component: { type: 'application' } } })
    const names = bill.components.map(({ name }) => name)
    expect(names).toEqual(expect.arrayContaining(Object.keys(manifest.dependencies)))
    // A development package, and in the bundle all the same.
    expect(names).toContain('openai')
    expect(bill.components.filter(({ licenses }) => !licenses?.length).map(({ name }) => name)).toEqual([])
  })
})
