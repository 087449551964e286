/**
 * Several processes of Governor behind one port. The first one accepts connections and hands each to a worker, where it
 * stays; it writes the journal and adds up metrics. Everything else the workers share in Redis.
 */

import cluster, { type Worker } from 'node:cluster'
import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { GovernorOptions } from '../../app.ts'
import type { Config } from '../../config/schema.ts'
import { ignore } from '../../core/thrown.ts'
import { afterDelay, createSteadyClock } from '../../create-services.ts'
import { type Emit, logEvent, type ProxyEvent } from '../../telemetry/event.ts'
import { createJournal } from '../../telemetry/journal.ts'
import { countersOf, type MetricsData, textOfAll } from '../../telemetry/metrics.ts'
import { CommandError, type Terminal } from '../command.ts'

/** A Governor that listens, of one process or of several. */
export interface Running {
  readonly address: string
  /** The address of the live page. */
  readonly page: string
  /** Applies the policies of the current file. */
  reload(): void
  /** Ends it as `Governor.drain` does. */
  drain(): Promise<boolean>
}

type FromWorker =
  | { readonly kind: 'listening'; readonly address: string; readonly page: string }
  | { readonly kind: 'events'; readonly events: readonly ProxyEvent[] }
  | { readonly kind: 'metrics'; readonly data: MetricsData }
  | { readonly kind: 'scrape' }

type ToWorker = { readonly kind: 'reload' | 'drain' | 'metrics' } | { readonly kind: 'scraped'; readonly text: string }

/** Set for workers: the port that they share. */
const VARIABLE = 'GOVERNOR_WORKER'

/** Milliseconds for which a scrape waits for a worker; then what it said last counts. */
const SCRAPE_MS = 2_000
/**
 * A worker that lived for so many milliseconds is replaced at once; after shorter lives the pause doubles, up to the
 * most.
 */
const STEADY_MS = 60_000
const FIRST_PAUSE_MS = 250
const MOST_PAUSE_MS = 30_000
/** Milliseconds beyond the drain time after which a worker that still lives is killed. */
const GRACE_MS = 5_000

/** Events of each request that nothing outside of its process uses. */
const LOCAL: ReadonlySet<string> = new Set(['request_began', 'store_answered'])

/**
 * Returns the worker that this process is; `undefined` if it is the first process, or was started by something else.
 */
export function ownWorker({ env }: Terminal): Worker | undefined {
  return env[VARIABLE] ? cluster.worker : undefined
}

interface Member {
  readonly worker: Worker
  metrics: MetricsData
  /** Called when it has said its metrics. */
  said: () => void
}

/**
 * Returns the port that all workers share. Where any will do, it is found here: a worker that starts after all others
 * have ended would get another one.
 */
async function portOf({ server: { host, port } }: Config): Promise<number> {
  if (port !== 0) return port
  const server = createServer()
  try {
    await once(server.listen(0, host), 'listening')
    return (server.address() as AddressInfo).port
  } catch {
    // The first worker says why.
    return 0
  } finally {
    server.close()
  }
}

/** What the first process knows. */
function newPool(config: Config, port: number, log: Logger, onEvent: Emit) {
  const { journal: path } = config.usage
  const emit: Emit = (event) => logEvent(log, event, () => '')
  const journal = path === '' ? undefined : createJournal({ path, now: createSteadyClock(), after: afterDelay, emit })
  return {
    port,
    log,
    journal,
    members: new Map<number, Member>(),
    /** What workers that have ended have counted. */
    ended: [] as MetricsData[],
    text: undefined as Promise<string> | undefined,
    /** True once all of the first workers listen. */
    hasStarted: false,
    isStopping: false,
    failures: 0,
    timers: new Set<NodeJS.Timeout>(),
    take(event: ProxyEvent): void {
      journal?.record(event)
      onEvent(event)
    },
  }
}

type Pool = ReturnType<typeof newPool>

/** A message to a process that has just ended is lost. */
const post = (worker: Worker, message: ToWorker | FromWorker) =>
  void (worker.isConnected() && worker.send(message, ignore))

/** Returns the text of `/metrics` for all workers, those included that have ended. */
async function gather({ members, ended }: Pool): Promise<string> {
  const said = [...members.values()].map(
    (member) =>
      new Promise<void>((resolve) => {
        member.said = resolve
        post(member.worker, { kind: 'metrics' })
      }),
  )
  await Promise.race([Promise.all(said), pause(SCRAPE_MS, undefined, { ref: false })])
  // One that ended meanwhile counts once.
  const left = ended.splice(0)
  const known = [...members.values()].map(({ metrics }) => metrics)
  const counted = await countersOf(left)
  ended.push(counted)
  return textOfAll([...known, counted])
}

async function answerScrape(pool: Pool, worker: Worker): Promise<void> {
  pool.text ??= gather(pool)
    .catch((error: unknown) => `# ${String(error)}\n`)
    .finally(() => {
      pool.text = undefined
    })
  post(worker, { kind: 'scraped', text: await pool.text })
}

/** Starts a worker; resolves once it listens. Rejects with its exit code if it ends before. */
function startMember(pool: Pool): Promise<Pick<Running, 'address' | 'page'>> {
  const worker = cluster.fork({ [VARIABLE]: String(pool.port) })
  const member: Member = { worker, metrics: [], said: () => {} }
  const { id } = worker
  const since = performance.now()
  pool.members.set(id, member)
  return new Promise((resolve, reject) => {
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'listening') resolve(message)
      else if (message.kind === 'events') message.events.forEach(pool.take)
      else if (message.kind === 'scrape') void answerScrape(pool, worker)
      else {
        member.metrics = message.data
        member.said()
      }
    })
    worker.on('error', ignore)
    worker.once('exit', (code: number | null, signal: string | null) => {
      pool.members.delete(id)
      pool.ended.push(member.metrics)
      member.said()
      reject(code ?? 1)
      if (pool.isStopping || !pool.hasStarted) return
      pool.failures = performance.now() - since > STEADY_MS ? 0 : pool.failures + 1
      const wait = pool.failures === 0 ? 0 : Math.min(FIRST_PAUSE_MS * 2 ** (pool.failures - 1), MOST_PAUSE_MS)
      pool.log.error({ worker: id, code, signal, wait }, 'a worker has ended: another one takes its place')
      const timer = setTimeout(() => {
        pool.timers.delete(timer)
        // It comes here again if the next one ends.
        startMember(pool).catch(ignore)
      }, wait)
      pool.timers.add(timer)
    })
  })
}

/** Ends all workers; resolves to true if each has finished what it did. */
async function endAll({ members, journal }: Pool, kind: 'drain' | 'kill', most: number): Promise<boolean> {
  const codes = [...members.values()].map(async ({ worker }) => {
    const { process: child } = worker
    const exit = new Promise<number | null>((resolve) => worker.once('exit', resolve))
    // What it said last comes before the end of its channel.
    const heard = worker.isConnected() && new Promise<void>((resolve) => worker.once('disconnect', resolve))
    if (kind === 'drain') post(worker, { kind })
    const takeBack = afterDelay(kind === 'drain' ? most : 0, () => child.kill('SIGKILL'))
    const [code] = await Promise.all([exit, heard])
    takeBack()
    return code
  })
  const all = await Promise.all(codes)
  await journal?.close()
  return all.every((code) => code === 0)
}

/**
 * Starts the workers of a configuration. `isEnding`: this process is asked to end. Throws `CommandError` if the first
 * does not listen; it has said why.
 */
export async function startWorkers(
  config: Config,
  log: Logger,
  onEvent: Emit,
  isEnding: () => boolean,
): Promise<Running> {
  const { workers, drain_timeout: drainTimeout } = config.server
  const pool = newPool(config, await portOf(config), log, onEvent)
  const end = (kind: 'drain' | 'kill') => {
    pool.isStopping = true
    for (const timer of pool.timers) clearTimeout(timer)
    return endAll(pool, kind, drainTimeout + GRACE_MS)
  }
  try {
    // One first: what keeps it from listening is said once.
    const { address, page } = await startMember(pool)
    const others = Array.from({ length: workers - 1 }, () => startMember(pool))
    // A terminal or systemd ends all processes at once: those that start are gone, and the first worker drains.
    const unlessEnding = (code: unknown) => {
      if (!isEnding()) throw code
    }
    await Promise.all(others.map((one) => one.catch(unlessEnding)))
    pool.hasStarted = true
    return {
      address,
      page,
      reload() {
        for (const { worker } of pool.members.values()) post(worker, { kind: 'reload' })
      },
      drain: () => end('drain'),
    }
  } catch {
    await end('kill')
    throw new CommandError(isEnding() ? 'ended by a signal before it listened' : 'a worker could not start')
  }
}

interface Listening extends Running {
  metrics(): Promise<MetricsData>
}

type Listen = (config: Config, onEvent: Emit, more: Partial<GovernorOptions>) => Promise<Listening>

/** Runs Governor as a worker until the first process ends it; returns the exit code. Throws as `listen` does. */
export async function work(worker: Worker, config: Config, terminal: Terminal, listen: Listen): Promise<number> {
  const send = (message: FromWorker) => post(worker, message)
  let events: ProxyEvent[] = []
  const flush = () => {
    send({ kind: 'events', events })
    events = []
  }
  const onEvent: Emit = (event) => {
    if (!LOCAL.has(event.kind) && events.push(event) === 1) setImmediate(flush)
  }
  const scrapes: ((text: string) => void)[] = []
  const renderMetrics = () => {
    const text = new Promise<string>((resolve) => scrapes.push(resolve))
    send({ kind: 'scrape' })
    return text
  }
  const memory = terminal.memory / config.server.workers
  try {
    // The first process writes the journal.
    const server = { ...config.server, port: Number(terminal.env[VARIABLE]) }
    const own = await listen({ ...config, server, usage: { journal: '' } }, onEvent, { renderMetrics, memory })
    const drained = new Promise<void>((resolve) => {
      worker.on('message', (message: ToWorker) => {
        if (message.kind === 'reload') own.reload()
        else if (message.kind === 'drain') resolve()
        else if (message.kind === 'scraped') scrapes.shift()?.(message.text)
        else void own.metrics().then((data) => send({ kind: 'metrics', data }))
      })
      // A terminal sends Ctrl-C to all processes, and the first one passes it on.
      for (const name of ['SIGINT', 'SIGHUP'] as const) terminal.onSignal(name, ignore)
      terminal.onSignal('SIGTERM', resolve)
    })
    send({ kind: 'listening', address: own.address, page: own.page })
    await drained
    return (await own.drain()) ? 0 : 1
  } finally {
    if (events.length > 0) flush()
    worker.disconnect()
  }
}
