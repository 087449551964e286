/**
 * A connection to Redis that is used only while Redis answers in time. It is dropped at the first command without an
 * answer, or with an answer that this server accepts no writes. Then every command is rejected at once, until a new
 * connection has written something.
 */
import type { ErrorReply, RedisClientOptions } from '@redis/client'

type Library = typeof import('@redis/client')
type Client = ReturnType<Library['createClient']>

/** Certificates and keys in PEM. */
export interface TlsSettings {
  readonly ca?: Buffer | undefined
  readonly cert?: Buffer | undefined
  readonly key?: Buffer | undefined
}

/** Where Redis is, and how to connect. */
export interface ConnectionSettings {
  /** `redis://` or `rediss://`, with user, password and database if needed. */
  readonly url: string
  readonly username?: string | undefined
  readonly password?: string | undefined
  readonly tls?: TlsSettings | undefined
  /** Milliseconds that a command may take. */
  readonly timeout: number
}

/** Callbacks of a connection. */
export interface ConnectionHooks {
  /** Checks a new connection; rejects if it cannot be used, and another one is made later. */
  readonly probe: (send: Send) => Promise<unknown>
  /** Called when Redis becomes usable or unusable; `problem` says why not. */
  readonly changed: (isUp: boolean, problem: string | undefined) => void
  /** Called with the milliseconds after which a command was answered. */
  readonly answered: (ms: number) => void
}

/** Sends one command; `deadline` is on `performance.now()`. Rejects if Redis refuses it, is down, or does not answer by then. */
export type Send = (command: readonly string[], deadline: number) => Promise<unknown>

/** A connection that is made again when it fails. */
export interface RedisConnection {
  isUp(): boolean
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
  override readonly name = 'StoreDownError'
}

/** Milliseconds that a connection may take to be made. */
const CONNECT_MS = 1_000
/** Milliseconds between two attempts to connect, at first and at most. */
const FIRST_RETRY_MS = 50
const LAST_RETRY_MS = 1_000
/** After so many milliseconds without a fault, the wait begins at its minimum again. */
const STEADY_MS = 5_000
/** Milliseconds between pings, and for which a connection may be silent: finds dead connections without traffic. */
const PING_MS = 1_000
const SILENCE_MS = 2_000

/** Errors of a server that accepts no writes. Redis 6 wraps them in another error if they occur in a script. */
const UNUSABLE = /\b(?:READONLY|LOADING|CLUSTERDOWN|MASTERDOWN|MISCONF|OOM|NOREPLICAS|NOAUTH|BUSY)\b/
/** Characters of an error that are searched for them. */
const UNUSABLE_WITHIN = 200

interface State {
  readonly settings: ConnectionSettings
  readonly hooks: ConnectionHooks
  readonly channels: Map<string, (message: string) => void>
  library: Library | undefined
  /** The client in use, or the one that connects. */
  client: Client | undefined
  isUp: boolean
  isClosed: boolean
  problem: string
  upSince: number
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
    const fail = () => reject(new StoreDownError(problem))
    let timer = setTimeout(() => {
      timer = setTimeout(() => setImmediate(fail), half)
    }, half)
    promise.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}

function optionsOf({ url, username, password, tls }: ConnectionSettings): RedisClientOptions {
  const { protocol } = new URL(url)
  const socket = { connectTimeout: CONNECT_MS, socketTimeout: SILENCE_MS, reconnectStrategy: false as const }
  return {
    url,
    RESP: 3,
    disableOfflineQueue: true,
    maintNotifications: 'disabled',
    disableClientInfo: true,
    pingInterval: PING_MS,
    // Its own timeout makes an AbortSignal for each command, and does not cover one that is on the wire.
    commandOptions: { timeout: 0 },
    ...(username === undefined ? {} : { username }),
    ...(password === undefined ? {} : { password }),
    socket: tls || protocol === 'rediss:' ? { ...socket, tls: true, ...tls } : socket,
  }
}

function isReply(state: State, error: unknown): error is ErrorReply {
  return state.library !== undefined && error instanceof state.library.ErrorReply
}

function messageOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === '') return messageOf(error.errors[0])
  return error instanceof Error ? error.message : String(error)
}

/** Drops a connection and plans the next one. */
function drop(state: State, client: Client, error: unknown): void {
  if (state.client !== client) return
  state.client = undefined
  if (client.isOpen) client.destroy()
  const now = performance.now()
  if (state.isUp && now - state.upSince > STEADY_MS) state.retryMs = FIRST_RETRY_MS
  const problem = messageOf(error)
  // Reported once each time that Redis fails, and not for each failed attempt to connect.
  const isNews = state.problem === ''
  state.isUp = false
  state.problem = problem
  if (state.isClosed) return
  if (isNews) state.hooks.changed(false, problem)
  state.retry = setTimeout(() => void connect(state), state.retryMs * (0.75 + Math.random() / 2))
  state.retry.unref()
  state.retryMs = Math.min(LAST_RETRY_MS, state.retryMs * 2)
}

/** Sends a command with this client, also before it is in use. */
async function sendBy(
  state: State,
  client: Client,
  command: readonly string[],
  deadline: number,
): Promise<unknown> {
  const began = performance.now()
  const { timeout } = state.settings
  try {
    const sent = client.sendCommand(command)
    const reply = await within(sent, deadline - began, `no answer within ${timeout} ms`)
    state.hooks.answered(performance.now() - began)
    return reply
  } catch (error) {
    const isUnusable = UNUSABLE.test(messageOf(error).slice(0, UNUSABLE_WITHIN))
    if (!isReply(state, error) || isUnusable) drop(state, client, error)
    throw error
  }
}

/** Connects. Never rejects: a failed connection is made again later. */
async function connect(state: State): Promise<void> {
  state.library ??= await import('@redis/client')
  if (state.isClosed) return
  const client = state.library.createClient(optionsOf(state.settings)) as Client
  state.client = client
  client.on('error', (error) => drop(state, client, error))
  try {
    await within(client.connect(), CONNECT_MS, `no connection within ${CONNECT_MS} ms`)
    await state.hooks.probe((command, deadline) => sendBy(state, client, command, deadline))
    for (const [channel, listener] of state.channels) await client.subscribe(channel, listener)
  } catch (error) {
    return drop(state, client, error)
  }
  if (state.client !== client) return
  state.isUp = true
  state.problem = ''
  state.upSince = performance.now()
  state.hooks.changed(true, undefined)
}

function close(state: State): void {
  state.isClosed = true
  state.isUp = false
  state.problem = 'closed'
  clearTimeout(state.retry)
  const { client } = state
  state.client = undefined
  if (client?.isOpen) client.destroy()
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
    isClosed: false,
    problem: '',
    upSince: 0,
    retryMs: FIRST_RETRY_MS,
    retry: undefined,
  }
  const inUse = () => (state.isUp ? state.client : undefined)
  return {
    isUp: () => state.isUp,
    async send(command, deadline) {
      const client = inUse()
      if (!client) throw new StoreDownError(state.problem)
      return sendBy(state, client, command, deadline)
    },
    async subscribe(channel, listener) {
      state.channels.set(channel, listener)
      const client = inUse()
      if (client)
        await within(client.subscribe(channel, listener), settings.timeout, 'not subscribed in time')
    },
    async unsubscribe(channel) {
      state.channels.delete(channel)
      const client = inUse()
      if (client) await within(client.unsubscribe(channel), settings.timeout, 'not unsubscribed in time')
    },
    open: () => connect(state),
    close: () => close(state),
  }
}
