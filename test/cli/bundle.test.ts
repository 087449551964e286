/** The built program: one bundle of its own code and the packages that it always needs. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import net from 'node:net'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { callModel, START } from '../support/agent.ts'
import { describeWith } from '../support/programs.ts'
import { startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'

const folder = mkdtempSync(join(tmpdir(), 'governor-bundle-'))

beforeAll(() => {
  // Where no package is installed.
  for (const name of ['dist', 'package.json']) cpSync(resolve(name), join(folder, name), { recursive: true })
})
afterAll(() => rmSync(folder, { recursive: true }))

/** Starts the bundle and returns the address that it says it listens on. */
async function launch(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
  log: string[] = [],
): Promise<string> {
  const child: ChildProcess = spawn(
    process.execPath,
    [join(folder, 'dist', 'main.js'), 'start', '--port', '0', ...args],
    { cwd: folder, env, stdio: ['ignore', 'pipe', 'inherit'] },
  )
  onTestFinished(() => {
    child.kill('SIGKILL')
  })
  if (!child.stdout) throw new Error('no output')
  const lines = createInterface(child.stdout).on('line', (text) => log.push(text))
  return new Promise((found) => {
    lines.on('line', (text) => {
      const { address } = JSON.parse(text)
      if (address) found(address)
    })
  })
}

/** A proxy that opens every tunnel to `target`, and records what it was asked for. */
async function startProxy(target: string) {
  const asked: string[] = []
  const proxy = http.createServer((request, response) => {
    asked.push(`${request.method} ${request.url}`)
    response.writeHead(500).end()
  })
  proxy.on('connect', (request, client) => {
    asked.push(`${request.method} ${request.url}`)
    const { hostname, port } = new URL(target)
    const upstream = net.connect(Number(port), hostname, () => {
      client.write('HTTP/1.1 200 OK\r\n\r\n')
      client.pipe(upstream).pipe(client)
    })
    upstream.on('error', () => client.destroy())
    client.on('error', () => upstream.destroy())
  })
  proxy.listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  onTestFinished(() => {
    proxy.close()
    proxy.closeAllConnections()
  })
  return { url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, asked }
}

describe('the bundle', () => {
  it('starts, guards requests and serves its own pages without any package installed beside it', async () => {
    const provider = await startProvider(() => ({ text: 'Done.' }))
    onTestFinished(() => provider.close())
    const address = await launch(['--upstream', provider.url])
    const { status } = await callModel(address, START)
    expect(status).toBe(200)
    const own = ['/health', '/ready', '/metrics', '/governor', '/governor/page.js', '/governor/sessions']
    for (const path of [...own, '/governor/openapi.json']) {
      const response = await fetch(address + path)
      expect([path, response.status]).toEqual([path, 200])
      await response.arrayBuffer()
    }
    expect((await fetch(`${address}/governor/nothing`)).status).toBe(404)
  })

  it('knows the prices of models without any package installed beside it', async () => {
    const provider = await startProvider(() => ({ calls: [{ name: 'search', arguments: {} }] }))
    onTestFinished(() => provider.close())
    const address = await launch(['--upstream', provider.url])
    const cost = async () => {
      await callModel(address, START, { body: { model: 'gpt-4o' } })
      const text = await (await fetch(`${address}/metrics`)).text()
      return Number(/^governor_cost_usd_total\{.*\} (.*)$/m.exec(text)?.[1] ?? 0)
    }
    await vi.waitFor(async () => expect(await cost()).toBeGreaterThan(0), 20_000)
  })

  it('runs the demo without any package installed beside it', () => {
    const { status, stdout, stderr } = spawnSync(process.execPath, [join(folder, 'dist', 'main.js'), 'demo'], {
      cwd: folder,
      encoding: 'utf8',
      env: {},
    })
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    expect(stdout).toContain('terminal_state    "tool_limit_reached"')
    expect(stdout).toContain('7/30  ███░░░░░░░  BLOCK')
  })

  it('reaches upstreams through the proxy that HTTP_PROXY names', async () => {
    const provider = await startProvider(() => ({ text: 'Done.' }))
    onTestFinished(() => provider.close())
    const proxy = await startProxy(provider.url)
    const address = await launch(['--upstream', 'http://provider.invalid'], { HTTP_PROXY: proxy.url })
    const { status } = await callModel(address, START)
    expect(status).toBe(200)
    expect(proxy.asked).toEqual(['CONNECT provider.invalid:80'])
  })
})

describeWith('redis-server', 'the bundle with Redis', () => {
  it('keeps its sessions in Redis without any package installed beside it', async () => {
    const provider = await startProvider(() => ({ calls: [{ name: 'search', arguments: {} }] }))
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const address = await launch(['--upstream', provider.url], { REDIS_URL: redis.url })
    await vi.waitFor(
      async () => expect(await (await fetch(`${address}/ready`)).json()).toMatchObject({ status: 'ready' }),
      20_000,
    )
    await callModel(address, START, { headers: { 'x-governor-session': 'kept' } })
    await vi.waitFor(async () => expect(await redis.command('DBSIZE')).toBeGreaterThan(0), 20_000)
  })
})

describe('a build without development packages', () => {
  it.each([
    ['start', 1],
    // Installing must not fail: such an installation already has a dist, or does not need one.
    ['prepare', 0],
  ])('tells npm %s how to install them, and exits with code %i', (event, code) => {
    const bare = mkdtempSync(join(tmpdir(), 'governor-bare-'))
    onTestFinished(() => rmSync(bare, { recursive: true }))
    for (const name of ['scripts', 'src', 'package.json']) cpSync(resolve(name), join(bare, name), { recursive: true })
    const build = spawnSync(process.execPath, [join(bare, 'scripts', 'build.mjs')], {
      env: { npm_lifecycle_event: event },
    })
    expect(build.stderr.toString()).toContain('npm ci --include=dev')
    expect(build.status).toBe(code)
  })
})
