/**
 * A connection to Redis that is used only while Redis answers. A command that is not answered in time is given up by its
 * caller, and settles later; the connection is dropped at the third in a row, and at an answer that this server accepts no
 * writes. Then every command is rejected at once, until a new connection has written something. A connection to a cluster is
 * kept as long as a part of it can be used.
 */
import type { ErrorReply } from '@redis/client'
import type { ConnectionSettings, RedisClient } from './redis-client.ts'

/** Callbacks of a connection. */
export interface ConnectionHooks {
  /**
   * Checks a new connection; rejects if it cannot be used, and another one is made later. Returns why a part of a cluster
   * cannot be used; `undefined` if all parts can. `parts`: the number of servers that hold a part of all keys each.
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

/** Sends one command; `deadline` is on `performance.now()`. Rejects if Redis refuses it, is down, or does not answer by then. */
export type Send = (command: readonly string[], deadline: number) => Promise<unknown>

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

/** The store cannot be used. */
class StoreDownError extends Error {
  override readonly name: string = 'StoreDownError'
}

/** The store did not answer in time. */
class LateError extends StoreDownError {
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
 * Rejects after so many milliseconds. The timer has to fire twice, and sockets are read after it, so that a busy process
 * reads an answer that has come before it rejects.
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

function isReply(state: State, error: unknown): error is ErrorReply {
  return state.library !== undefined && error instanceof state.library.ErrorReply
}

function messageOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === '') return messageOf(error.errors[0])
  return error instanceof Error ? error.message : String(error)
}

function isCluster({ settings }: State): boolean {
  return (settings.cluster?.length ?? 0) > 0
}

/** Drops a connection and plans the next one. */
function drop(state: State, client: RedisClient, error: unknown): void {
  if (state.client !== client) return
  state.client = undefined
  client.destroy()
  const now = performance.now()
  if (state.isUp && now - state.upSince > STEADY_MS) state.retryMs = FIRST_RETRY_MS
  state.isUp = false
  report(state, error)
  if (state.isClosed) return
  plan(state, () => void connect(state))
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
  state.retry = setTimeout(attempt, state.retryMs * (0.75 + Math.random() / 2))
  state.retry.unref()
  state.retryMs = Math.min(LAST_RETRY_MS, state.retryMs * 2)
}

/** A client, or a part of a cluster, can no longer be used. */
function fail(state: State, client: RedisClient, error: unknown): void {
  if (state.client !== client) return
  if (!isCluster(state) || !state.isUp) return drop(state, client, error)
  const isNews = state.isWhole
  report(state, error)
  if (isNews) plan(state, () => void check(state, client))
}

/** Looks whether all parts of a cluster can be used again. */
async function check(state: State, client: RedisClient): Promise<void> {
  if (state.client !== client || state.isWhole) return
  const problem = await probed(state, client).catch((error: unknown) => error)
  if (state.client !== client) return
  if (problem === undefined) return rise(state)
  report(state, problem)
  plan(state, () => void check(state, client))
}

function rise(state: State): void {
  state.isWhole = true
  state.problem = ''
  state.misses = 0
  state.upSince = performance.now()
  state.hooks.changed(true, undefined)
}

/** Notes that a command was not answered in time. Its outcome will be known when `sent` settles. */
function miss(
  state: State,
  client: RedisClient,
  sent: Promise<unknown>,
  began: number,
  error: unknown,
): void {
  state.late++
  const settle = () => {
    state.late--
    if (state.late === 0 && state.isUp) state.hooks.settled()
  }
  sent.then(settle, settle)
  if (began < state.missedAt) return
  state.missedAt = performance.now()
  state.misses++
  if (state.misses >= MAX_MISSES) fail(state, client, error)
}

/** Waits for an answer until the deadline. */
async function answer(
  state: State,
  client: RedisClient,
  sent: Promise<unknown>,
  deadline: number,
): Promise<unknown> {
  const began = performance.now()
  try {
    const reply = await within(sent, deadline - began, `no answer within ${state.settings.timeout} ms`)
    state.misses = 0
    state.hooks.answered(performance.now() - began)
    return reply
  } catch (error) {
    const isUnusable = UNUSABLE.test(messageOf(error).slice(0, UNUSABLE_WITHIN))
    if (error instanceof LateError) miss(state, client, sent, began, error)
    else if (!isReply(state, error) || isUnusable) fail(state, client, error)
    throw error
  }
}

/** Rejects a server that is too old, or that needs another kind of client. */
async function checkServer(state: State, client: RedisClient): Promise<void> {
  const { mode, version = '' } = ((await client.hello()) ?? {}) as { mode?: string; version?: string }
  const [major = 0, minor = 0] = version.split('.').map(Number)
  const [leastMajor, leastMinor] = LEAST_VERSION
  if (major < leastMajor || (major === leastMajor && minor < leastMinor))
    throw new StoreDownError(`version ${version} is too old: ${LEAST_VERSION.join('.')} or newer is needed`)
  if (mode === 'cluster' && !isCluster(state))
    throw new StoreDownError('this is a cluster: name its servers in redis.cluster')
  if (mode === 'sentinel')
    throw new StoreDownError('this is a Sentinel: name it in redis.sentinel.nodes, and no server')
}

function probed(state: State, client: RedisClient): Promise<unknown> {
  return state.hooks.probe(
    (command, deadline) => answer(state, client, client.send(command), deadline),
    client.parts(),
  )
}

/** Returns why a part of a cluster cannot be used. Rejects if the connection cannot be used. */
async function prepare(state: State, client: RedisClient, connectMs: number): Promise<unknown> {
  await within(client.connect(), connectMs, `no connection within ${connectMs} ms`)
  await within(checkServer(state, client), connectMs, `no answer within ${connectMs} ms`)
  const problem = await probed(state, client)
  const { probeChannel } = state.hooks
  const channels = [...state.channels, [probeChannel, () => {}] as const]
  const subscribed = channels.map(([channel, listener]) => client.subscribe(channel, listener))
  await within(Promise.all(subscribed), connectMs, 'not subscribed in time')
  await within(client.unsubscribe(probeChannel), connectMs, 'not unsubscribed in time')
  return problem
}

/** Connects. Never rejects: a failed connection is made again later. */
async function connect(state: State): Promise<void> {
  const library = await import('./redis-client.ts')
  state.library = library
  if (state.isClosed) return
  const client = library.createRedisClient(state.settings, (error) => fail(state, client, error))
  state.client = client
  try {
    const problem = await prepare(state, client, library.CONNECT_MS)
    if (state.client !== client) return
    state.isUp = true
    if (problem === undefined) return rise(state)
    report(state, problem)
    plan(state, () => void check(state, client))
  } catch (error) {
    drop(state, client, error)
  }
}

function close(state: State): void {
  state.isClosed = true
  state.isUp = false
  state.isWhole = false
  state.problem = 'closed'
  clearTimeout(state.retry)
  const { client } = state
  state.client = undefined
  client?.destroy()
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
  const inUse = () => (state.isUp ? state.client : undefined)
  const soon = () => performance.now() + settings.timeout
  return {
    isUp: () => state.isUp,
    isWhole: () => state.isWhole,
    async send(command, deadline) {
      const client = inUse()
      if (!client) throw new StoreDownError(state.problem)
      return answer(state, client, client.send(command), deadline)
    },
    async subscribe(channel, listener) {
      state.channels.set(channel, listener)
      const client = inUse()
      if (client) await answer(state, client, client.subscribe(channel, listener), soon())
    },
    async unsubscribe(channel) {
      state.channels.delete(channel)
      const client = inUse()
      if (client) await answer(state, client, client.unsubscribe(channel), soon())
    },
    open: () => connect(state),
    close: () => close(state),
  }
}
