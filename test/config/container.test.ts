/** What Docker makes of this repository, without Docker: the same variables and commands. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { describe, expect, it, onTestFinished } from 'vitest'
import { parse } from 'yaml'
import { checkConfig } from '../../src/config/load.ts'

type Variables = Readonly<Record<string, string>>

/** One instruction a line. */
const dockerfile = readFileSync('Dockerfile', 'utf8').replace(/\\\n\s*/g, ' ')

/** The program and its arguments of an instruction, which are a JSON list. */
function commandOf(instruction: string): string[] {
  const [, list = ''] = new RegExp(`^${instruction}\\b[^[\\n]*(\\[.*\\])$`, 'm').exec(dockerfile) ?? []
  return JSON.parse(list) as string[]
}

/** The variables that the image sets. */
function imageVariables(): Variables {
  const pairs = [...dockerfile.matchAll(/^ENV (.*)$/gm)].flatMap(([, given = '']) => given.split(' '))
  return Object.fromEntries(pairs.map((pair) => pair.split('=', 2)))
}

async function freePort(): Promise<number> {
  const server = http.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await once(server.close(), 'close')
  return port
}

/** Starts the image's command with a file that names another port, and runs its health check beside it. */
async function checkHealth(given: Variables): Promise<{ address: string; status: number | null }> {
  const folder = mkdtempSync(join(tmpdir(), 'governor-image-'))
  const file = join(folder, 'governor.yaml')
  writeFileSync(file, `server: { port: ${await freePort()} }\n`)
  const env = { ...imageVariables(), HOST: '127.0.0.1', GOVERNOR_CONFIG: file, ...given }
  const [, ...args] = commandOf('CMD')
  const child = spawn(process.execPath, args, { env, stdio: ['ignore', 'pipe', 'inherit'] })
  onTestFinished(() => {
    child.kill('SIGKILL')
    rmSync(folder, { recursive: true })
  })
  const [line] = await once(createInterface(child.stdout), 'line')
  const [program = '', ...check] = commandOf('HEALTHCHECK')
  expect(program).not.toBe('node')
  const { status } = spawnSync(program, check, { env: { ...env, PATH: process.env['PATH'] } })
  return { address: String(JSON.parse(line).address), status }
}

describe('the container image', () => {
  it('passes its health check on the port that PORT sets, whatever the configuration file says', async () => {
    const port = String(await freePort())
    expect(await checkHealth({ PORT: port })).toEqual({ address: `http://127.0.0.1:${port}`, status: 0 })
  })

  it('fails its health check where nobody listens, or something else does', async () => {
    const [program = '', ...check] = commandOf('HEALTHCHECK')
    const other = http.createServer((_, response) => response.writeHead(503).end('200')).listen(0, '127.0.0.1')
    await once(other, 'listening')
    onTestFinished(() => void other.close())
    const { port } = other.address() as AddressInfo
    for (const PORT of [String(await freePort()), String(port)]) {
      const checking = spawn(program, check, { env: { PORT, PATH: process.env['PATH'] }, stdio: 'ignore' })
      expect(await once(checking, 'exit')).toEqual([1, null])
    }
  })

  it('listens on the port that it exposes when no other port is set', () => {
    const [, exposed] = /^EXPOSE (\d+)$/m.exec(dockerfile) ?? []
    expect(imageVariables()).toMatchObject({ PORT: exposed, HOST: '0.0.0.0' })
  })
})

interface Service {
  readonly profiles?: readonly string[]
  readonly volumes?: readonly string[]
  readonly environment?: Readonly<Record<string, unknown>>
}

describe('docker-compose.yml', () => {
  const { services } = parse(readFileSync('docker-compose.yml', 'utf8'), { logLevel: 'error' })
  const { governor, replica } = services
  const all = Object.entries(services as Readonly<Record<string, Service>>)

  /** What the published schema of Compose says of a file. */
  function problemsOf(file: string): string[] {
    const { stdout } = spawnSync('node_modules/.bin/dclint', ['--formatter', 'json', file], {
      encoding: 'utf8',
    })
    const results: readonly { messages: readonly { rule: string; message: string }[] }[] = JSON.parse(stdout)
    expect(results.length).toBe(1)
    // Its other rules are about style.
    const messages = results.flatMap((result) => result.messages)
    return messages.flatMap(({ rule, message }) => (rule === 'invalid-schema' ? [message] : []))
  }

  it('keeps to the schema of the Compose specification', () => {
    expect(problemsOf('docker-compose.yml')).toEqual([])
    const folder = mkdtempSync(join(tmpdir(), 'governor-compose-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const wrong = join(folder, 'docker-compose.yml')
    writeFileSync(wrong, readFileSync('docker-compose.yml', 'utf8').replace('read_only:', 'read_onli:'))
    expect(problemsOf(wrong)).toEqual([expect.stringContaining('additional properties')])
  })

  it('has the profiles that its head names, and starts Governor alone without one', () => {
    const inProfile = (name?: string) =>
      all.flatMap(([service, { profiles }]) => (profiles?.[0] === name ? [service] : []))
    expect(inProfile()).toEqual(['governor'])
    expect(inProfile('metrics')).toEqual(['prometheus', 'grafana'])
    expect(inProfile('redis')).toEqual(['replica', 'balancer', 'redis'])
    expect(replica).toMatchObject({ extends: { service: 'governor' }, deploy: { replicas: 2 } })
  })

  it('mounts only what exists, and sets only variables that the configuration explains', () => {
    const mounted = all.flatMap(([, { volumes = [] }]) => volumes.map((volume) => volume.split(':')[0] ?? ''))
    expect(mounted.length).toBeGreaterThan(3)
    expect(mounted.filter((path) => !existsSync(path))).toEqual([])
    const explained = readFileSync('config/governor.yaml', 'utf8')
    const set = [governor, replica].flatMap(({ environment }: Service) => Object.keys(environment ?? {}))
    expect(set.filter((name) => !new RegExp(`\\b${name}\\b`).test(explained))).toEqual([])
  })

  it('gives Governor no right that it does not need, and more time to end than it takes to drain', () => {
    expect(governor).toMatchObject({
      read_only: true,
      cap_drop: ['ALL'],
      security_opt: ['no-new-privileges:true'],
    })
    const seconds = Number(/^(\d+)s$/.exec(governor.stop_grace_period)?.[1])
    expect(seconds * 1000).toBeGreaterThan(checkConfig({}, 'nothing').server.drain_timeout)
  })

  it('passes on the keys that the configuration file may name, and all variables of .env', () => {
    const named = [...readFileSync('config/governor.yaml', 'utf8').matchAll(/: \$\{(\w+)\}$/gm)]
    expect(named.map(([, name]) => name)).toEqual([
      'OPENAI_API_KEY',
      'ANTHROPIC_API_KEY',
      'GEMINI_API_KEY',
      'GOVERNOR_ADMIN_TOKEN',
      'GOVERNOR_WEBHOOK_SECRET',
    ])
    // A name alone takes the value of the shell, and stays unset if the shell has none.
    for (const [, name = ''] of named) expect([name, governor.environment[name]]).toEqual([name, null])
    expect(governor.env_file).toEqual([{ path: '.env', required: false }])
  })

  it('publishes the port that PORT sets on the host, and keeps the port inside the container', () => {
    const { PORT, HOST } = governor.environment
    expect({ PORT, HOST }).toEqual({ PORT: Number(imageVariables()['PORT']), HOST: imageVariables()['HOST'] })
    expect(governor.ports).toEqual([`127.0.0.1:\${PORT:-8787}:${PORT}`])
  })
})
