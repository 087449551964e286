/**
 * A connection to Redis that is used only while Redis answers:
 *
 * - the caller gives up a command that is not answered in time; the command settles later;
 * - the third in a row drops the connection, and so does an answer that this server accepts no writes;
 * - then every command is rejected at once, until a new connection has written something;
 * - a connection to a cluster is kept as long as a part of it can be used.
 */
import type { ConnectionSettings, RedisClient } from './redis-client.ts'

/** Callbacks of a connection. */
export interface ConnectionHooks {
  /**
   * Checks a new connection; rejects if it cannot be used, and another one is made later. Returns why a part of a
   * cluster cannot be used; `undefined` if all parts can. `parts`: the number of servers that hold a part of all keys.
   */
  readonly probe: (send: Send, parts: number) => Promise<unknown>
  /** A channel that only shows that channels can be used. */
  readonly probeChannel: string
  /** Called when Redis becomes usable as a whole, or no longer is; `problem` says why not. */
  readonly changed: (isUp: boolean, problem: string | undefined) => void
  /** Called with the milliseconds after which a command was answered. */
  readonly answered: (ms: number) => void
  /** Called when all commands that were not answered in time are settled. */
  readonly settled: () => void
}

/** Sends a command. Rejects if Redis refuses it, is down, or does not answer in time. */
export type Send = (command: readonly string[]) => Promise<unknown>

/** A connection that is made again when it fails. */
export interface RedisConnection {
  isUp(): boolean
  /** False also if a part of a cluster cannot be used. */
  isWhole(): boolean
  readonly send: Send
  /** Listens to a channel until `close`, also after a reconnection. */
  subscribe(channel: string, listener: (message: string) => void): Promise<void>
  unsubscribe(channel: string): Promise<void>
  /** Connects for the first time; resolves when that succeeded or failed. */
  open(): Promise<void>
  close(): void
}

/** Redis did not answer in time. */
class LateError extends Error {
  override readonly name = 'LateError'
}

/** Milliseconds between two attempts to connect, at first and at most. */
const FIRST_RETRY_MS = 50
const LAST_RETRY_MS = 1_000
/** After so many milliseconds without a fault, the wait begins at its minimum again. */
const STEADY_MS = 5_000
/** So many times in a row without an answer in time drop the connection. */
const MAX_MISSES = 3

/** Errors of a server that accepts no writes. Redis 6 wraps them in another error if they occur in a script. */
const UNUSABLE =
  /\b(?:READONLY|LOADING|CLUSTERDOWN|MASTERDOWN|MISCONF|OOM|NOREPLICAS|NOAUTH|NOPERM|BUSY|MOVED|CROSSSLOT)\b/
/** Characters of an error that are searched for them. */
const UNUSABLE_WITHIN = 200

/** The oldest version with every command that is used. */
const LEAST_VERSION = [6, 2] as const

interface State {
  readonly settings: ConnectionSettings
  readonly hooks: ConnectionHooks
  readonly channels: Map<string, (message: string) => void>
  library: typeof import('./redis-client.ts') | undefined
  /** The client in use, or the one that connects. */
  client: RedisClient | undefined
  isUp: boolean
  isWhole: boolean
  isClosed: boolean
  problem: string
  upSince: number
  /** How often in a row no answer came in time. Commands that were under way at the same time count once. */
  misses: number
  missedAt: number
  /** Commands that their callers have given up. */
  late: number
  retryMs: number
  retry: NodeJS.Timeout | undefined
}

/**
 * Rejects after so many milliseconds. The timer fires twice, and sockets are read after it, so that a busy
 * process reads an answer that has come before it rejects.
 */
function within<Result>(promise: Promise<Result>, ms: number, problem: string): Promise<Result> {
  return new Promise((resolve, reject) => {
    const half = Math.max(0, ms) / 2
    const fail = () => reject(new LateError(problem))
    let timer = setTimeout(() => {
      timer = setTimeout(() => setImmediate(fail), half)
    }, half)
    promise.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}

function messageOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === '') return messageOf(error.errors[0])
  return error instanceof Error ? error.message : String(error)
}

function isCluster({ settings }: State): boolean {
  return (settings.cluster?.length ?? 0) > 0
}

/** Reports a problem once each time that Redis fails, and not for each failed attempt to connect. */
function report(state: State, error: unknown): void {
  const isNews = state.problem === ''
  state.isWhole = false
  state.problem = messageOf(error)
  if (isNews && !state.isClosed) state.hooks.changed(false, state.problem)
}

function plan(state: State, attempt: () => void): void {
  clearTimeout(state.retry)
  state.retry = setTimeout(attempt, state.retryMs * (0.75 + Math.random() / 2)).unref()
  state.retryMs = Math.min(LAST_RETRY_MS, state.retryMs * 2)
}

/** Drops a connection and plans the next one. */
function drop(state: State, client: RedisClient, error: unknown): void {
  if (state.client !== client) return
  state.client = undefined
  client.destroy()
  if (state.isUp && performance.now() - state.upSince > STEADY_MS) state.retryMs = FIRST_RETRY_MS
  state.isUp = false
  report(state, error)
  if (!state.isClosed) plan(state, () => void connect(state))
}

/** A client, or a part of a cluster, can no longer be used. */
function fail(state: State, client: RedisClient, error: unknown): void {
  if (state.client !== client) return
  if (!isCluster(state) || !state.isUp) return drop(state, client, error)
  const isNews = state.isWhole
  report(state, error)
  if (isNews) plan(state, () => void check(state, client))
}

/** Waits for the answer to what was `sent`, at most as long as a command may take. */
async function answer(state: State, client: RedisClient, sent: Promise<unknown>): Promise<unknown> {
  const { hooks, library } = state
  const { timeout } = state.settings
  const began = performance.now()
  try {
    const reply = await within(sent, timeout, `no answer within ${timeout} ms`)
    state.misses = 0
    hooks.answered(performance.now() - began)
    return reply
  } catch (error) {
    if (!(error instanceof LateError)) {
      const isReply = library && error instanceof library.ErrorReply
      if (!isReply || UNUSABLE.test(messageOf(error).slice(0, UNUSABLE_WITHIN))) fail(state, client, error)
      throw error
    }
    // The outcome will be known when `sent` settles.
    state.late++
    const settle = () => {
      state.late--
      if (state.late === 0 && state.isUp) hooks.settled()
    }
    sent.then(settle, settle)
    if (began >= state.missedAt) {
      state.missedAt = performance.now()
      state.misses++
      if (state.misses >= MAX_MISSES) fail(state, client, error)
    }
    throw error
  }
}

/** Rejects a server that is too old, or that needs another kind of client. */
async function checkServer(state: State, client: RedisClient): Promise<void> {
  const { mode, version = '' } = ((await client.hello()) ?? {}) as { mode?: string; version?: string }
  const [major = 0, minor = 0] = version.split('.').map(Number)
  const [leastMajor, leastMinor] = LEAST_VERSION
  if (major < leastMajor || (major === leastMajor && minor < leastMinor))
    throw new Error(`version ${version} is too old: ${LEAST_VERSION.join('.')} or newer is needed`)
  if (mode === 'cluster' && !isCluster(state)) throw new Error('this is a cluster: name its servers in redis.cluster')
  if (mode === 'sentinel') throw new Error('this is a Sentinel: name it in redis.sentinel.nodes, and no server')
}

function probe(state: State, client: RedisClient): Promise<unknown> {
  return state.hooks.probe((command) => answer(state, client, client.send(command)), client.parts())
}

/** Uses a client after its probe; checks it again later if `problem` says why a part of a cluster fails. */
function use(state: State, client: RedisClient, problem: unknown): void {
  if (state.client !== client) return
  state.isUp = true
  if (problem !== undefined) {
    report(state, problem)
    plan(state, () => void check(state, client))
    return
  }
  state.isWhole = true
  state.problem = ''
  state.misses = 0
  state.upSince = performance.now()
  state.hooks.changed(true, undefined)
}

/** Looks whether all parts of a cluster can be used again. */
async function check(state: State, client: RedisClient): Promise<void> {
  if (state.client !== client || state.isWhole) return
  use(state, client, await probe(state, client).catch((error: unknown) => error))
}

/** Connects. Never rejects: a failed connection is made again later. */
async function connect(state: State): Promise<void> {
  const library = await import('./redis-client.ts')
  state.library = library
  if (state.isClosed) return
  const { CONNECT_MS, createRedisClient } = library
  const client = createRedisClient(state.settings, (error) => fail(state, client, error))
  state.client = client
  try {
    await within(client.connect(), CONNECT_MS, `no connection within ${CONNECT_MS} ms`)
    await within(checkServer(state, client), CONNECT_MS, `no answer within ${CONNECT_MS} ms`)
    const problem = await probe(state, client)
    const { probeChannel } = state.hooks
    const channels = [...state.channels, [probeChannel, () => {}] as const]
    const subscribed = channels.map(([channel, listener]) => client.subscribe(channel, listener))
    await within(Promise.all(subscribed), CONNECT_MS, 'not subscribed in time')
    await within(client.unsubscribe(probeChannel), CONNECT_MS, 'not unsubscribed in time')
    use(state, client, problem)
  } catch (error) {
    drop(state, client, error)
  }
}

/** Creates a connection, which `open` makes. */
export function createConnection(settings: ConnectionSettings, hooks: ConnectionHooks): RedisConnection {
  const state: State = {
    settings,
    hooks,
    channels: new Map(),
    library: undefined,
    client: undefined,
    isUp: false,
    isWhole: false,
    isClosed: false,
    problem: '',
    upSince: 0,
    misses: 0,
    missedAt: 0,
    late: 0,
    retryMs: FIRST_RETRY_MS,
    retry: undefined,
  }
  /** Does something with the client in use. */
  const withClient = async (send: (client: RedisClient) => Promise<unknown>): Promise<unknown> => {
    const client = state.isUp ? state.client : undefined
    if (!client) throw new Error(state.problem)
    return answer(state, client, send(client))
  }
  return {
    isUp: () => state.isUp,
    isWhole: () => state.isWhole,
    send: (command) => withClient((client) => client.send(command)),
    async subscribe(channel, listener) {
      state.channels.set(channel, listener)
      if (state.isUp) await withClient((client) => client.subscribe(channel, listener))
    },
    async unsubscribe(channel) {
      state.channels.delete(channel)
      if (state.isUp) await withClient((client) => client.unsubscribe(channel))
    },
    open: () => connect(state),
    close() {
      state.isClosed = true
      state.isUp = false
      state.isWhole = false
      state.problem = 'closed'
      clearTimeout(state.retry)
      const { client } = state
      state.client = undefined
      client?.destroy()
    },
  }
}
