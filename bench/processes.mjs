/** Processes of the benchmark: started, pinned to a core, asked, and ended with it. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { availableParallelism } from 'node:os'

const canPin = availableParallelism() > 1 && spawnSync('taskset', ['-V']).error === undefined

/** Where processes run: the proxy has a core of its own, and everything else the other one, if it is not on `all`. */
export const CORES = { load: '0', proxy: '1', all: '0,1' }

export const isPinned = canPin

const MAX_ERROR_TEXT = 1000
const GRACE_MS = 5000
const ANSWER_TIMEOUT_MS = 600_000

const running = new Set()
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL')
})
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(1))

/**
 * Starts a command on a core. With `hasChannel` it can be asked by message. What it prints is thrown away, but for the
 * end of its errors, which is in `errorText()`.
 */
export function start(place, [command, ...args], { env = {}, hasChannel = false } = {}) {
  const [file, ...rest] = canPin ? ['taskset', '-c', CORES[place], command, ...args] : [command, ...args]
  const child = spawn(file, rest, {
    stdio: ['ignore', 'ignore', 'pipe', ...(hasChannel ? ['ipc'] : [])],
    // Nothing of the surroundings: proxies for upstreams, options for Node, settings of Governor's.
    env: { PATH: process.env.PATH, ...env },
  })
  running.add(child)
  child.once('exit', () => running.delete(child))
  let errors = ''
  child.stderr.on('data', (text) => {
    errors = (errors + text).slice(-MAX_ERROR_TEXT)
  })
  return Object.assign(child, { errorText: () => errors })
}

/** The next message of a process. @throws when it ends instead, says that it failed, or says nothing. */
async function nextMessage(child) {
  const settled = new AbortController()
  const timeout = AbortSignal.timeout(ANSWER_TIMEOUT_MS)
  const signal = AbortSignal.any([settled.signal, timeout])
  const ended = once(child, 'exit', { signal }).then(() => {
    throw new Error(`a process ended early:\n${child.errorText()}`)
  })
  ended.catch(() => undefined)
  try {
    const [message] = await Promise.race([once(child, 'message', { signal }), ended])
    if (message.error !== undefined) throw new Error(message.error)
    return message
  } catch (error) {
    throw timeout.aborted ? new Error(`a process did not answer in time:\n${child.errorText()}`) : error
  } finally {
    settled.abort()
  }
}

/** Starts a script of the benchmark's own that says when it is ready; returns it with what it said. */
export async function startHelper(place, args) {
  const child = start(place, [process.execPath, ...args], { hasChannel: true })
  return { child, hello: await nextMessage(child) }
}

/** Sends a message and waits for the answer's result. */
export async function ask(child, message) {
  child.send(message)
  const { result } = await nextMessage(child)
  return result
}

/** Ends a process; one that does not go by itself is made to. */
export async function stop(child) {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = once(child, 'exit')
  const force = setTimeout(() => child.kill('SIGKILL'), GRACE_MS)
  child.kill('SIGTERM')
  await gone
  clearTimeout(force)
}
