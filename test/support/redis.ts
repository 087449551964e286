/** Real servers for the tests of the shared store, and the faults that may happen to them. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { createClient } from '@redis/client'
import { expect, onTestFinished } from 'vitest'
import type { ConnectionSettings } from '../../src/store/redis-client.ts'
import { createReplicatedStore, type ReplicatedStore } from '../../src/store/replicated.ts'

export type Program = 'redis-server' | 'valkey-server'

/** Returns a port that nothing listens on. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}

export interface Redis {
  readonly port: number
  /** Where it would keep its data. */
  readonly folder: string
  readonly url: string
  /** Sends a command as an operator would. */
  command(...command: string[]): Promise<unknown>
  /** Freezes it, with its connections open. */
  freeze(): void
  thaw(): void
  kill(): Promise<void>
  /** Starts it again, empty, after it was killed. */
  restart(): Promise<void>
}

async function launch(program: Program, port: number, folder: string, options: readonly string[]) {
  const all = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--dir', folder]
  const child = spawn(program, [...all, ...options], { stdio: ['ignore', 'pipe', 'inherit'] })
  const output = createInterface(child.stdout)
  const lines: string[] = []
  for await (const line of output) {
    lines.push(line)
    if (/ready to accept connections/i.test(line)) {
      child.stdout.resume()
      return child
    }
  }
  throw new Error(`${program} did not start:\n${lines.join('\n')}`)
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.kill('SIGKILL')
  await exited
}

/** Returns a function that sends a command to a server, as an operator would. */
function commandAt(url: string): Redis['command'] {
  return async (...command) => {
    const client = createClient({ url, RESP: 3, maintNotifications: 'disabled' })
    client.on('error', () => {})
    await client.connect()
    const reply = await client.sendCommand(command)
    client.destroy()
    return reply
  }
}

/** Starts a server for the current test: on a free port, without persistence. */
export async function startRedis(program: Program = 'redis-server', options: readonly string[] = []): Promise<Redis> {
  const folder = mkdtempSync(join(tmpdir(), 'governor-redis-'))
  let port = await freePort()
  const start = () => launch(program, port, folder, options)
  // Something else may have taken the port since.
  let child = await start().catch(async () => {
    port = await freePort()
    return start()
  })
  onTestFinished(async () => {
    await end(child)
    rmSync(folder, { recursive: true, force: true })
  })
  const url = `redis://127.0.0.1:${port}`
  return {
    port,
    folder,
    url,
    command: commandAt(url),
    freeze: () => child.kill('SIGSTOP'),
    thaw: () => child.kill('SIGCONT'),
    kill: () => end(child),
    async restart() {
      child = await start()
    },
  }
}

/** Starts a cluster of so many servers, whose parts work on if one of them fails, for the current test. */
export async function startCluster(length: number): Promise<readonly Redis[]> {
  const options = ['--cluster-enabled', 'yes', '--cluster-require-full-coverage', 'no']
  const servers = await Promise.all(
    Array.from({ length }, async () =>
      startRedis('redis-server', [
        ...options,
        '--cluster-node-timeout',
        '1000',
        '--cluster-port',
        String(await freePort()),
      ]),
    ),
  )
  const size = Math.ceil(16_384 / length)
  for (const [at, { command }] of servers.entries()) {
    const last = Math.min(16_383, (at + 1) * size - 1)
    await command('CLUSTER', 'ADDSLOTSRANGE', String(at * size), String(last))
    await command('CLUSTER', 'SET-CONFIG-EPOCH', String(at + 1))
  }
  const [first, ...others] = servers
  for (const { port, folder: _, command } of others) {
    const bus = String(Object(await command('CONFIG', 'GET', 'cluster-port'))['cluster-port'])
    await first?.command('CLUSTER', 'MEET', '127.0.0.1', String(port), bus)
  }
  for (const { command } of servers) {
    const isReady = async () => {
      const info = String(await command('CLUSTER', 'INFO'))
      return info.includes('cluster_state:ok') && info.includes(`cluster_size:${length}`)
    }
    await expect.poll(isReady).toBe(true)
  }
  return servers
}

/**
 * Starts a Sentinel that watches the server on a port, for the current test. `more`: further lines of its file; the
 * address that is returned is that of its port without TLS.
 */
export async function startSentinel(
  name: string,
  port: number,
  quorum: number,
  more: readonly string[] = [],
): Promise<Pick<Redis, 'url' | 'command'>> {
  const folder = mkdtempSync(join(tmpdir(), 'governor-sentinel-'))
  const own = await freePort()
  const file = join(folder, 'sentinel.conf')
  const lines = [
    `port ${own}`,
    'bind 127.0.0.1',
    `dir ${folder}`,
    `sentinel monitor ${name} 127.0.0.1 ${port} ${quorum}`,
    `sentinel down-after-milliseconds ${name} 500`,
    `sentinel failover-timeout ${name} 2000`,
    ...more,
  ]
  writeFileSync(file, lines.join('\n'))
  const child = spawn('redis-sentinel', [file], { stdio: ['ignore', 'pipe', 'inherit'] })
  for await (const line of createInterface(child.stdout)) if (line.includes('+monitor')) break
  child.stdout.resume()
  onTestFinished(async () => {
    await end(child)
    rmSync(folder, { recursive: true, force: true })
  })
  const url = `redis://127.0.0.1:${own}`
  return { url, command: commandAt(url) }
}

/** What happens to bytes on their way to the server; all but `passed` apply to the rest of the connection. */
export type Fate = 'passed' | 'deaf' | 'lost' | 'held'

/** A wire to a server that can be cut at any time, and redirected to another server. */
export interface Wire {
  readonly url: string
  /**
   * Decides what happens to bytes. `deaf`: they arrive, but no answer comes back; `lost`: they never arrive; `held`: they
   * arrive after `release`.
   */
  onRequest(decide: (bytes: string) => Fate): void
  release(): void
  /** Cuts all connections, as they are. */
  cut(): void
  /** Leads new connections to another port. */
  leadTo(port: number): void
}

/** Puts a wire in front of the server on a port, for the current test. */
export async function startWire(port: number): Promise<Wire> {
  const sockets = new Set<Socket>()
  let target = port
  let decide: (bytes: string) => Fate = () => 'passed'
  const releases = new Set<() => void>()
  const server = createServer((client) => {
    const upstream = connect(target, '127.0.0.1')
    let fate: Fate = 'passed'
    for (const socket of [client, upstream]) {
      sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => {
        sockets.delete(socket)
        client.destroy()
        upstream.destroy()
      })
    }
    client.on('data', (bytes) => {
      if (fate === 'passed') fate = decide(bytes.toString('latin1'))
      if (fate === 'held') held.push(bytes)
      else if (fate !== 'lost') upstream.write(bytes)
    })
    const held: Buffer[] = []
    releases.add(() => {
      if (fate === 'held') fate = 'passed'
      for (const bytes of held.splice(0)) upstream.write(bytes)
    })
    upstream.on('data', (bytes) => {
      if (fate === 'passed') client.write(bytes)
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const cut = () => {
    for (const socket of sockets) socket.destroy()
  }
  onTestFinished(() => {
    cut()
    server.close()
  })
  return {
    url: `redis://127.0.0.1:${(server.address() as AddressInfo).port}`,
    onRequest: (next) => {
      decide = next
    },
    release: () => {
      for (const release of releases) release()
    },
    cut,
    leadTo: (next) => {
      target = next
    },
  }
}

/** One replica's store on a server, and the state that it reports. */
export interface Replica {
  readonly store: ReplicatedStore
  /** How many calls the server did not execute. */
  lost(): number
  isUp(): boolean
  /** Why it does not use the server; empty while it does. */
  problem(): string
  /** How often it began to use the server. */
  rises(): number
  /** Waits until it uses the server as a whole, or does not. */
  until(isUp: boolean): Promise<void>
}

export interface ReplicaOptions extends Pick<ConnectionSettings, 'tls' | 'cluster' | 'sentinel'> {
  readonly timeout?: number
  readonly ttl?: number
  readonly now?: () => number
  readonly prefix?: string
}

/** Opens a replica's store for the current test. */
export async function openReplica(
  url: string,
  { timeout = 5_000, ttl = 3_600_000, now = Date.now, prefix = 'test:', ...servers }: ReplicaOptions = {},
): Promise<Replica> {
  let lost = 0
  let problem = ''
  let rises = 0
  const waiting = new Set<() => void>()
  const store = createReplicatedStore(
    { url, timeout, prefix, ...servers },
    {
      limits: { max: 10_000, ttl, maxBytes: 100_000_000 },
      now,
      replica: Math.random().toString(16).slice(2, 18).padEnd(16, '0'),
      answered() {},
      changed(isUp, why = '') {
        problem = why
        if (isUp) rises++
        for (const look of waiting) look()
      },
      lost() {
        lost++
      },
    },
  )
  await store.open()
  onTestFinished(() => store.close())
  return {
    store,
    lost: () => lost,
    isUp: store.isWhole,
    rises: () => rises,
    problem: () => problem,
    until: (isUp) =>
      new Promise((resolve) => {
        const look = () => {
          if (store.isWhole() !== isUp) return
          waiting.delete(look)
          resolve()
        }
        waiting.add(look)
        look()
      }),
  }
}
