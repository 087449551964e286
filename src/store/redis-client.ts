/** The three kinds of clients: of one server, of servers that Sentinels watch, and of a cluster. */

import {
  ClientClosedError,
  ClientOfflineError,
  createClient,
  createCluster,
  createSentinel,
  type RedisClientOptions,
} from '@redis/client'

export { ErrorReply } from '@redis/client'

/** Where Redis is, and how to connect. An empty text, or list, is not set. */
export interface ConnectionSettings {
  /** `redis://` or `rediss://`, with user, password and database if needed. */
  readonly url: string
  readonly username?: string
  readonly password?: string
  readonly tls?:
    | { readonly ca?: Buffer | undefined; readonly cert?: Buffer | undefined; readonly key?: Buffer | undefined }
    | undefined
  /** URLs of some servers of a cluster; empty if Redis is no cluster. */
  readonly cluster?: readonly string[]
  /** The name of the server that Sentinels watch, and their `redis://` URLs, with user and password if needed. */
  readonly sentinel?: { readonly name: string; readonly nodes: readonly string[] }
  readonly timeout: number
}

/** A client that is used until it fails. */
export interface RedisClient {
  readonly client: {
    readonly isOpen: boolean
    connect(): Promise<unknown>
    subscribe(channel: string, listener: (message: string) => void): Promise<unknown>
    destroy(): unknown
  }
  /** Returns the number of servers of a cluster that hold a part of all keys each. */
  readonly parts?: () => number
  /** Returns why it has not connected, if more is known than that it has not. */
  readonly why?: () => unknown
  /** Sends a command, whose key, if it has one, decides to which server. */
  readonly send: (command: readonly string[]) => Promise<unknown>
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

/**
 * Options of all clients. The client's own timeout makes an AbortSignal for each command, and does not cover one that
 * is on the wire.
 */
const COMMANDS = { RESP: 3, commandOptions: { timeout: 0 } } as const

/** Returns whether a client without a connection rejected a command. */
export function isUnsent(error: unknown): boolean {
  return error instanceof ClientOfflineError || error instanceof ClientClosedError
}

function isEncrypted(url: string): boolean {
  return new URL(url).protocol === 'rediss:'
}

/** Returns an address as the client expects it: where files are given for TLS, its protocol has to say so. */
function addressOf(url: string, tls: ConnectionSettings['tls']): string {
  return tls ? url.replace(/^redis:/i, 'rediss:') : url
}

function nodeOptions(
  { url, username, password, tls }: ConnectionSettings,
  reconnectStrategy: false | ((retries: number) => number) = false,
) {
  const socket = { connectTimeout: CONNECT_MS, socketTimeout: SILENCE_MS, reconnectStrategy }
  return {
    RESP: 3,
    disableOfflineQueue: true,
    maintNotifications: 'disabled',
    disableClientInfo: true,
    pingInterval: PING_MS,
    ...(username ? { username } : {}),
    ...(password ? { password } : {}),
    socket: tls || isEncrypted(url) ? { ...socket, tls: true, ...tls } : socket,
  } satisfies RedisClientOptions
}

function credentialsIn(url = '') {
  const { username, password } = new URL(url)
  return {
    ...(username === '' ? {} : { username: decodeURIComponent(username) }),
    ...(password === '' ? {} : { password: decodeURIComponent(password) }),
  }
}

function sentinelClient(
  settings: ConnectionSettings,
  { name, nodes }: NonNullable<ConnectionSettings['sentinel']>,
  failed: (error: unknown) => void,
): RedisClient {
  // The Sentinels name a server without saying whether it speaks TLS: where one address does, all do.
  const url = nodes.find(isEncrypted) ?? settings.url
  const client = createSentinel({
    name,
    sentinelRootNodes: nodes.map((node) => {
      const { hostname, port } = new URL(node)
      return { host: hostname.replace(/^\[|\]$/g, ''), port: Number(port || 26_379) }
    }),
    ...COMMANDS,
    nodeClientOptions: { ...credentialsIn(settings.url), ...nodeOptions({ ...settings, url }) },
    sentinelClientOptions: {
      ...nodeOptions({ ...settings, url, username: '', password: '' }),
      ...credentialsIn(nodes[0]),
    },
    // Else each command would wait until the one before is answered.
    reserveClient: true,
    maxCommandRediscovers: 1,
  })
  let why: unknown
  // Errors of single Sentinels: the others know the primary server too.
  client.on('error', (error) => {
    if (error instanceof Error) why = error
  })
  client.on('topology-change', ({ type, node }) => {
    // The client says nothing of a server that it can't use, and asks the Sentinels for another.
    if (type === 'MASTER_CHANGE')
      why = new Error(`they name ${node.host}:${node.port}, which can't be used: check its user and password`)
  })
  client.on('client-error', ({ type, error }) => {
    if (type === 'MASTER') failed(error)
  })
  // The first one that it finds, before it is ready, is a change too.
  client.once('ready', () => {
    client.on('topology-change', ({ type }) => {
      if (type === 'MASTER_CHANGE') failed(new Error('another server has become the primary one'))
    })
  })
  return { client, why: () => why, send: (command) => client.sendCommand(false, [...command]) }
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
    rootNodes: cluster.map((url) => ({ url: addressOf(url, settings.tls), ...options })),
    defaults: options,
    ...COMMANDS,
    topologyRefreshOnReconnectionAttemptStrategy: REFRESH_MS,
  })
  client.on('error', failed)
  client.on('node-error', failed)
  return {
    client,
    parts: () => client.masters.length,
    send(command) {
      const [name = '', first, , third] = command
      const key = name === 'PUBLISH' ? undefined : name.startsWith('EVAL') ? third : first
      return client.sendCommand(key, false, [...command])
    },
  }
}

/** Creates a client of the servers in the settings; calls `failed` when it, or a part of it, can no longer be used. */
export function createRedisClient(settings: ConnectionSettings, failed: (error: unknown) => void): RedisClient {
  const { cluster = [], sentinel } = settings
  if (cluster.length > 0) return clusterClient(settings, cluster, failed)
  if (sentinel && sentinel.nodes.length > 0) return sentinelClient(settings, sentinel, failed)
  const client = createClient({ url: addressOf(settings.url, settings.tls), ...nodeOptions(settings), ...COMMANDS })
  client.on('error', failed)
  return { client, send: (command) => client.sendCommand(command) }
}
