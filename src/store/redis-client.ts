/** The three kinds of clients: of one server, of servers that Sentinels watch, and of a cluster. */
import { createClient, createCluster, createSentinel, type RedisClientOptions } from '@redis/client'

export { ErrorReply } from '@redis/client'

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
  /** URLs of some servers of a cluster; empty if it is none. */
  readonly cluster?: readonly string[] | undefined
  /** The name of the server that Sentinels watch, and their addresses; no addresses if there are none. */
  readonly sentinel?: SentinelSettings | undefined
  /** Milliseconds that a command may take. */
  readonly timeout: number
}

/** The Sentinels that know which server is the primary one. */
export interface SentinelSettings {
  readonly name: string
  /** `redis://` URLs of Sentinels, with their user and password if needed. */
  readonly nodes: readonly string[]
}

/** A client that is used until it fails. */
export interface RedisClient {
  /** The servers that hold a part of all keys each. */
  parts(): number
  connect(): Promise<unknown>
  /** Sends a command, whose key, if it has one, decides to which server. */
  send(command: readonly string[]): Promise<unknown>
  /** Asks a server about itself. */
  hello(): Promise<unknown>
  subscribe(channel: string, listener: (message: string) => void): Promise<unknown>
  unsubscribe(channel: string): Promise<unknown>
  destroy(): unknown
}

/** Milliseconds that a connection may take to be made. */
export const CONNECT_MS = 1_000
/** Milliseconds between pings, and for which a connection may be silent: finds dead connections. */
const PING_MS = 1_000
const SILENCE_MS = 2_000
/** Milliseconds between two attempts to connect to a server of a cluster, at most. */
const LAST_RETRY_MS = 1_000
/** Milliseconds after which a server of a cluster that is gone is looked for at another address. */
const REFRESH_MS = 500

/** Its own timeout makes an AbortSignal for each command, and does not cover one that is on the wire. */
const COMMAND_OPTIONS = { timeout: 0 }

function nodeOptions(
  { url, username, password, tls }: ConnectionSettings,
  reconnectStrategy: false | ((retries: number) => number),
) {
  const { protocol } = new URL(url)
  const socket = { connectTimeout: CONNECT_MS, socketTimeout: SILENCE_MS, reconnectStrategy }
  return {
    RESP: 3,
    disableOfflineQueue: true,
    maintNotifications: 'disabled',
    disableClientInfo: true,
    pingInterval: PING_MS,
    ...(username === undefined ? {} : { username }),
    ...(password === undefined ? {} : { password }),
    socket: tls || protocol === 'rediss:' ? { ...socket, tls: true, ...tls } : socket,
  } satisfies RedisClientOptions
}

/** Returns the user and the password of a URL, as options. */
function credentialsIn(url = '') {
  const { username, password } = new URL(url)
  return {
    ...(username === '' ? {} : { username: decodeURIComponent(username) }),
    ...(password === '' ? {} : { password: decodeURIComponent(password) }),
  }
}

const HELLO = ['HELLO']

function singleClient(settings: ConnectionSettings, failed: (error: unknown) => void): RedisClient {
  const options = nodeOptions(settings, false)
  const client = createClient({ url: settings.url, ...options, commandOptions: COMMAND_OPTIONS })
  client.on('error', failed)
  return {
    parts: () => 1,
    connect: () => client.connect(),
    send: (command) => client.sendCommand(command as string[]),
    hello: () => client.sendCommand(HELLO),
    subscribe: (channel, listener) => client.subscribe(channel, listener),
    unsubscribe: (channel) => client.unsubscribe(channel),
    destroy: () => client.isOpen && client.destroy(),
  }
}

function sentinelClient(
  settings: ConnectionSettings,
  { name, nodes }: SentinelSettings,
  failed: (error: unknown) => void,
): RedisClient {
  const client = createSentinel({
    name,
    sentinelRootNodes: nodes.map((node) => {
      const { hostname, port } = new URL(node)
      return { host: hostname, port: Number(port || 26_379) }
    }),
    RESP: 3,
    nodeClientOptions: { ...credentialsIn(settings.url), ...nodeOptions(settings, false) },
    sentinelClientOptions: {
      ...nodeOptions({ ...settings, username: undefined, password: undefined }, false),
      ...credentialsIn(nodes[0]),
    },
    commandOptions: COMMAND_OPTIONS,
    // Else each command would wait until the one before is answered.
    reserveClient: true,
    maxCommandRediscovers: 1,
  })
  // Errors of single Sentinels: the others know the primary server too.
  client.on('error', () => {})
  client.on('client-error', ({ type, error }) => {
    if (type === 'MASTER') failed(error)
  })
  // The first one that it finds is a change too.
  let isConnected = false
  client.on('topology-change', ({ type }) => {
    if (isConnected && type === 'MASTER_CHANGE') failed(new Error('another server has become the primary one'))
  })
  return {
    parts: () => 1,
    async connect() {
      await client.connect()
      isConnected = true
    },
    send: (command) => client.sendCommand(false, command as string[]),
    hello: () => client.sendCommand(false, HELLO),
    subscribe: (channel, listener) => client.subscribe(channel, listener),
    unsubscribe: (channel) => client.unsubscribe(channel),
    destroy: () => client.isOpen && client.destroy().catch(() => undefined),
  }
}

function clusterClient(
  settings: ConnectionSettings,
  cluster: readonly string[],
  failed: (error: unknown) => void,
): RedisClient {
  const [first = ''] = cluster
  const retry = (retries: number) => Math.min(LAST_RETRY_MS, 50 * 2 ** Math.min(retries, 10))
  const options = { ...credentialsIn(first), ...nodeOptions({ ...settings, url: first }, retry) }
  const client = createCluster({
    rootNodes: cluster.map((url) => ({ url, ...options })),
    defaults: options,
    RESP: 3,
    commandOptions: COMMAND_OPTIONS,
    topologyRefreshOnReconnectionAttemptStrategy: REFRESH_MS,
  })
  client.on('error', failed)
  client.on('node-error', failed)
  return {
    parts: () => client.masters.length,
    connect: () => client.connect(),
    send(command) {
      const [name = '', first, , third] = command
      const key = name === 'PUBLISH' ? undefined : name.startsWith('EVAL') ? third : first
      return client.sendCommand(key, false, command as string[])
    },
    async hello() {
      const [node] = client.masters
      return node && (await client.nodeClient(node)).sendCommand(HELLO)
    },
    subscribe: (channel, listener) => client.subscribe(channel, listener),
    unsubscribe: (channel) => client.unsubscribe(channel),
    destroy: () => client.isOpen && client.destroy(),
  }
}

/** Creates a client of the servers in the settings; calls `failed` when it, or a part of it, can no longer be used. */
export function createRedisClient(settings: ConnectionSettings, failed: (error: unknown) => void): RedisClient {
  const { cluster = [], sentinel } = settings
  if (cluster.length > 0) return clusterClient(settings, cluster, failed)
  if (sentinel && sentinel.nodes.length > 0) return sentinelClient(settings, sentinel, failed)
  return singleClient(settings, failed)
}
