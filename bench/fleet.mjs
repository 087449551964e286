/** The processes of one benchmark: provider, client and subjects. */
import { mkdtempSync, rmSync } from 'node:fs'
import net from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Connection } from './connection.mjs'
import { ask, start, startHelper, stop } from './processes.mjs'
import { pingRequest } from './sessions.mjs'
import { sharedTime } from './stalls.mjs'
import { processTree } from './usage.mjs'

const START_TIMEOUT_MS = 30_000
const ANSWER_TIMEOUT_MS = 5_000
const POLL_MS = 2

const here = import.meta.dirname

function freePort() {
  return new Promise((resolve, reject) => {
    const server = net.createServer()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })
}

async function isHealthy(port, request) {
  try {
    const connection = await Connection.open(port)
    const late = sleep(ANSWER_TIMEOUT_MS, undefined, { ref: false }).then(() => Promise.reject(new Error('late')))
    await Promise.race([connection.send(request), late]).finally(() => connection.close())
    return true
  } catch {
    return false
  }
}

async function untilHealthy(name, child, port, request) {
  const began = performance.now()
  while (!(await isHealthy(port, request))) {
    const isGone = child.exitCode !== null
    if (isGone || performance.now() - began > START_TIMEOUT_MS) {
      throw new Error(`${name} did not start:\n${child.errorText()}`)
    }
    await sleep(POLL_MS)
  }
}

/** Starts provider, client and watchers. Everything is ended by `stop`. */
export async function startFleet() {
  const folder = mkdtempSync(join(tmpdir(), 'governor-bench-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  const provider = await startHelper('load', [join(here, 'provider.mjs')])
  const client = await startHelper('load', [join(here, 'client.mjs')])
  const watchers = [
    await startHelper('load', [join(here, 'watcher.mjs')]),
    await startHelper('proxy', [join(here, 'watcher.mjs')]),
  ]
  const askWatchers = (message) => Promise.all(watchers.map(({ child }) => ask(child, message)))
  const upstreamPort = provider.hello.port
  const started = new Map()
  let count = 0

  /**
   * A new process of a subject, or the provider itself. `nodeFlags`: for subjects in Node; `hasChannel`: with a
   * channel for messages; `ping`: the request that it must answer. `startup`: from the start to the first answer, as a pair of shared times.
   */
  const startSubject = async (subject, { nodeFlags = [], hasChannel = false, ping } = {}) => {
    const headers = subject.headers?.(upstreamPort) ?? {}
    if (!subject.command) return { subject, port: upstreamPort, headers, pids: () => [], stop() {} }
    const port = await freePort()
    const own = join(folder, `${subject.name}-${count++}`)
    const { command, env, isAlone = false } = subject.command({ port, upstreamPort, nodeFlags, folder: own })
    const began = sharedTime()
    const child = start(subject.place ?? 'proxy', command, { env, hasChannel })
    await untilHealthy(subject.label, child, port, ping ?? pingRequest(headers, subject.api))
    const startup = [began, sharedTime()]
    return {
      subject,
      port,
      headers,
      startup,
      pids: () => (isAlone ? [child.pid] : processTree(child.pid)),
      ask: (message) => ask(child, message),
      stop: () => stop(child),
    }
  }

  return {
    folder,
    startSubject,

    /** The process of a subject that measures share, started when it is first needed. */
    async running(subject) {
      const process = started.get(subject.name) ?? (await startSubject(subject))
      started.set(subject.name, process)
      return process
    },

    /** Sets how the provider answers from now on. */
    answer: (mode) => ask(provider.child, mode),

    /** Sends a load to a process and returns what it measured. */
    load: (name, { subject, port, headers, pids }, options) =>
      ask(client.child, {
        load: name,
        port,
        headers,
        pids: pids(),
        situation: subject.situation,
        api: subject.api,
        ...options,
      }),

    /** What `measure` gives, and when a core stood still meanwhile. */
    async watch(measure) {
      await askWatchers('begin')
      const result = await measure()
      const stalls = await askWatchers('end')
      return { result, stalls: stalls.flat() }
    },

    async stop() {
      await Promise.all([...started.values()].map((process) => process.stop()))
      await Promise.all([provider, client, ...watchers].map(({ child }) => stop(child)))
    },
  }
}
