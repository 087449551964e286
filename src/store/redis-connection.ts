/**
 * A connection to Redis that is used only while Redis answers:
 *
 * - the caller gives up a command that is not answered in time; the command settles later;
 * - the third in a row drops the connection, and so does an answer that this server accepts no writes;
 * - then every command is rejected at once, until a new connection has written something;
 * - where a steady connection breaks, commands wait for the next one as long as for an answer: a process that was frozen
 *   finds its connection broken;
 * - a connection to a cluster is kept as long as a part of it can be used.
 */
import { codeOf, errorOf, ignore } from '../core/thrown.ts'
import type { ConnectionSettings, RedisClient } from './redis-client.ts'
import { NotDoneError } from './replicated-values.ts'

/** What a connection is used for, and its callbacks. */
export interface ConnectionHooks {
  /**
   * Checks a new connection; rejects if it cannot be used, and another one is made later. Returns why a part of a
   * cluster cannot be used; `undefined` if all parts can. `parts`: the number of servers that hold a part of all keys.
   */
  readonly probe: (send: Send, parts: number) => Promise<unknown>
  /** Each connection subscribes to this channel, and `heard` gets its messages. */
  readonly channel: string
  readonly heard: (message: string) => void
  /** Called when Redis becomes usable as a whole, or no longer is; `problem` says why not. */
  readonly changed: (isUp: boolean, problem: string | undefined) => void
  readonly answered: (ms: number) => void
  /** Called when all commands that were not answered in time are settled. */
  readonly settled: () => void
}

/**
 * Sends a command. Rejects if Redis refuses it, is down, or does not answer in time; with a NotDoneError if Redis has
 * certainly not carried it out.
 */
export type Send = (command: readonly string[]) => Promise<unknown>

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
const UNUSABLE_WITHIN = 200

const LEAST_VERSION = '6.2'

function newState(settings: ConnectionSettings, hooks: ConnectionHooks) {
  return {
    library: undefined as typeof import('./redis-client.ts') | undefined,
    /** The client in use, or the one that connects. */
    client: undefined as RedisClient | undefined,
    retry: undefined as NodeJS.Timeout | undefined,
    settings,
    hooks,
    isCluster: (settings.cluster?.length ?? 0) > 0,
    isUp: false,
    /** False also if a part of a cluster cannot be used. */
    isWhole: false,
    isClosed: false,
    problem: '',
    upSince: 0,
    /** How often in a row no answer came in time. Commands that were under way at the same time count once. */
    misses: 0,
    missedAt: 0,
    /** Commands wait until then for the next connection; those that do. */
    returnsBy: Number.NEGATIVE_INFINITY,
    waiting: new Set<() => void>(),
    /** Commands that their callers have given up. */
    late: 0,
    retryMs: FIRST_RETRY_MS,
  }
}

type State = ReturnType<typeof newState>

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

function reasonOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === '') return reasonOf(error.errors[0])
  // The message of an error of TLS has addresses and lines of its source around what went wrong.
  if (error instanceof Error && 'reason' in error && codeOf(error)?.startsWith('ERR_SSL_')) return String(error.reason)
  return errorOf(error).message
}

/** Reports a problem once each time that Redis fails, and not for each failed attempt to connect. */
function report(state: State, error: unknown): void {
  const isNews = state.problem === ''
  state.isWhole = false
  state.problem = reasonOf(error)
  if (isNews && !state.isClosed) state.hooks.changed(false, state.problem)
}

/** Connects again a little later, or checks again whether all parts of a cluster can be used. */
function plan(state: State): void {
  clearTimeout(state.retry)
  const again = () => void (state.client ? check(state, state.client) : connect(state))
  state.retry = setTimeout(again, state.retryMs * (0.75 + Math.random() / 2)).unref()
  state.retryMs = Math.min(LAST_RETRY_MS, state.retryMs * 2)
}

/** Stops using the client, which may never have connected. */
async function leave(state: State): Promise<void> {
  const { client } = state.client ?? {}
  state.client = undefined
  state.isUp = false
  if (client?.isOpen) await client.destroy()
}

/** A client, or a part of a cluster, can no longer be used. A client that is not in use any more is left alone. */
function fail(state: State, client: RedisClient, error: unknown): void {
  if (state.client !== client) return
  if (state.isCluster && state.isUp) {
    const isNews = state.isWhole
    report(state, error)
    if (isNews) plan(state)
    return
  }
  const now = performance.now()
  if (state.isUp && now - state.upSince > STEADY_MS) state.retryMs = FIRST_RETRY_MS
  // One that breaks again and again is not worth the wait.
  const isFirst = state.isUp && now - state.returnsBy > LAST_RETRY_MS
  leave(state).catch(ignore)
  report(state, error)
  if (state.isClosed) return
  const isAnswered = state.library && error instanceof state.library.ErrorReply
  if (isFirst && !isAnswered && !(error instanceof LateError)) {
    state.returnsBy = now + state.settings.timeout
    void connect(state)
  } else plan(state)
}

/** Resolves when the next connection can be used, or when commands do not wait for it any longer. */
function returned(state: State): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer)
      state.waiting.delete(done)
      resolve()
    }
    const timer = setTimeout(done, state.returnsBy - performance.now())
    state.waiting.add(done)
  })
}

/** Returns whether a connection can be used, or commands wait for the next one. */
function isUpSoon({ isUp, isClosed, returnsBy }: State): boolean {
  return isUp || (!isClosed && performance.now() < returnsBy)
}

/** Sends a command, and waits for its answer at most as long as a command may take. */
async function sendCommand(state: State, client: RedisClient, command: readonly string[]): Promise<unknown> {
  const { hooks, library, settings } = state
  const began = performance.now()
  const sent = client.send(command)
  try {
    const reply = await within(sent, settings.timeout, `no answer within ${settings.timeout} ms`)
    state.misses = 0
    hooks.answered(performance.now() - began)
    return reply
  } catch (error) {
    if (!(error instanceof LateError)) {
      const isReply = library && error instanceof library.ErrorReply
      if (!isReply || UNUSABLE.test(reasonOf(error).slice(0, UNUSABLE_WITHIN))) fail(state, client, error)
      throw isReply || library?.isUnsent(error) ? new NotDoneError(reasonOf(error)) : error
    }
    // The outcome will be known when the answer arrives.
    state.late++
    const arrived = () => {
      state.late--
      if (state.late === 0 && state.isUp) hooks.settled()
    }
    sent.then(arrived, arrived)
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
  const { mode, version = '' } = ((await client.send(['HELLO'])) ?? {}) as { mode?: string; version?: string }
  if (version.localeCompare(LEAST_VERSION, 'en', { numeric: true }) < 0)
    throw new Error(`version ${version} is too old: ${LEAST_VERSION} or newer is needed`)
  if (mode === 'cluster' && !state.isCluster) throw new Error('this is a cluster: name its servers in redis.cluster')
  if (mode === 'sentinel') throw new Error('this is a Sentinel: name it in redis.sentinel.nodes, and no server')
}

/** Checks a client, and uses it; rejects if a new one fails. Checks it again later if a part of a cluster fails. */
async function check(state: State, client: RedisClient): Promise<void> {
  if (state.client !== client || state.isWhole) return
  const isNew = !state.isUp
  let problem: unknown
  try {
    problem = await state.hooks.probe((command) => sendCommand(state, client, command), client.parts?.() ?? 1)
  } catch (error) {
    if (isNew) throw error
    problem = error
  }
  if (state.client !== client) return
  state.isUp = true
  for (const done of [...state.waiting]) done()
  if (problem !== undefined) {
    report(state, problem)
    plan(state)
    return
  }
  state.isWhole = true
  state.problem = ''
  state.misses = 0
  state.upSince = performance.now()
  state.hooks.changed(true, undefined)
}

/** Connects. Never rejects: a failed connection is made again later. */
async function connect(state: State): Promise<void> {
  const library = await import('./redis-client.ts')
  state.library = library
  if (state.isClosed) return
  const { CONNECT_MS, createRedisClient } = library
  const { channel, heard } = state.hooks
  const made = createRedisClient(state.settings, (error) => fail(state, made, error))
  state.client = made
  try {
    await within(made.client.connect(), CONNECT_MS, `no connection within ${CONNECT_MS} ms`)
    await within(checkServer(state, made), CONNECT_MS, `no answer within ${CONNECT_MS} ms`)
    await within(made.client.subscribe(channel, heard), CONNECT_MS, 'not subscribed in time')
    await check(state, made)
  } catch (error) {
    const why = made.why?.()
    const isLate = error instanceof LateError && why !== undefined
    fail(state, made, isLate ? new LateError(`${error.message}: ${reasonOf(why)}`) : error)
  }
}

/** Creates a connection that is made by `open`, and made again when it fails. */
export function createConnection(settings: ConnectionSettings, hooks: ConnectionHooks) {
  const state = newState(settings, hooks)
  return {
    isUp: () => isUpSoon(state),
    isWhole: () => state.isWhole,
    async send(command: readonly string[]): Promise<unknown> {
      if (!state.isUp && isUpSoon(state)) await returned(state)
      if (!state.isUp || !state.client) throw new NotDoneError(state.problem)
      return sendCommand(state, state.client, command)
    },
    /** Connects for the first time; resolves when that succeeded or failed. */
    open: () => connect(state),
    close(): void {
      state.isClosed = true
      state.isWhole = false
      state.problem = 'closed'
      clearTimeout(state.retry)
      leave(state).catch(ignore)
    },
  }
}

/** A connection that is made again when it fails. */
export type RedisConnection = ReturnType<typeof createConnection>
