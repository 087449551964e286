/** The data of replicas in Redis. Every method rejects if Redis fails; this process keeps no copies here. */
import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { hashOf } from '../core/hash.ts'
import type { Session } from '../core/session/session.ts'
import type { Cell, RemoteCells } from './cells.ts'
import { NO_CELL } from './cells.ts'
import {
  type ConnectionHooks,
  type ConnectionSettings,
  createConnection,
  type RedisConnection,
  type Send,
} from './redis-connection.ts'
import { type Link, type SessionKey, SNAPSHOT_MS, type Store, type StoreHealth } from './store.ts'

/** How to reach Redis, and which keys to use. */
export interface RedisSettings extends ConnectionSettings {
  /** Prefix of every key and channel. */
  readonly prefix: string
}

/** The version of the form of values. A replica neither reads nor overwrites a newer one. */
const SCHEMA = 1

/** Characters of one value. Sessions are made smaller long before they reach this. */
const MAX_VALUE = 4_194_304

/** A value that a newer version of Governor wrote, or that is too large. */
class ValueError extends Error {
  override readonly name = 'ValueError'
}

/**
 * Replaces a value if it has the expected version (`''`: no value), else returns the current value. An empty new value
 * removes it. Fields: v version, s schema, d data.
 */
const REPLACE = `if (redis.call('HGET', KEYS[1], 'v') or '') ~= ARGV[1] then
  return redis.call('HMGET', KEYS[1], 's', 'd')
end
if ARGV[4] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'v', ARGV[2], 's', ARGV[3], 'd', ARGV[4])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
return 1`

const REPLACE_SHA = createHash('sha1').update(REPLACE).digest('hex')

/** Runs the script by its hash; sends the whole script to a server that does not know it. */
async function replace(send: Send, key: string, args: readonly string[], deadline: number): Promise<unknown> {
  try {
    return await send(['EVALSHA', REPLACE_SHA, '1', key, ...args], deadline)
  } catch (error) {
    if (!(error instanceof Error) || !error.message.startsWith('NOSCRIPT')) throw error
    return send(['EVAL', REPLACE, '1', key, ...args], deadline)
  }
}

/** A value in Redis: its operations and the value itself. */
interface Stored<Value> {
  readonly o: readonly string[]
  readonly v: Value
}

/** @throws {ValueError} if a newer version of Governor wrote it. */
function decode<Value>(reply: unknown): Cell<Value> {
  const [schema, data] = reply as readonly (string | null)[]
  if (typeof data !== 'string') return NO_CELL
  if (Number(schema) > SCHEMA) throw new ValueError('written by a newer version of Governor')
  const { o, v } = JSON.parse(data) as Stored<Value>
  return { operations: o, value: v }
}

/** @throws {ValueError} if it is too large. */
function encode(value: unknown): string {
  const data = JSON.stringify(value)
  if (data.length > MAX_VALUE) throw new ValueError('too large to be kept')
  return data
}

function createRemoteCells<Value>(
  connection: RedisConnection,
  nameOf: (key: SessionKey) => string,
  written: (key: SessionKey, isNew: boolean, ttl: number) => void,
): RemoteCells<Value> {
  const { send, isUp } = connection
  return {
    isUp,
    async read(key, deadline) {
      return decode(await send(['HMGET', nameOf(key), 's', 'd'], deadline))
    },
    async replace(key, expected, next, ttl, deadline) {
      const before = expected.operations[0] ?? ''
      const { operations, value } = next
      const data = value === undefined ? '' : encode({ o: operations, v: value })
      const args = [before, operations[0] ?? '', String(SCHEMA), data, String(ttl)]
      const reply = await replace(send, nameOf(key), args, deadline)
      if (Array.isArray(reply)) return decode(reply)
      written(key, before === '', ttl)
      return undefined
    },
  }
}

/** The store that replicas share, without copies; `deadline` is on `performance.now()`. */
export interface RemoteStore
  extends Pick<RedisConnection, 'isUp' | 'open' | 'close' | 'subscribe' | 'unsubscribe'> {
  readonly sessions: RemoteCells<Session>
  readonly values: RemoteCells<unknown>
  link(tenant: string, response: string, link: Link, deadline: number): Promise<void>
  linked(tenant: string, response: string, deadline: number): Promise<Link | undefined>
  list: Store['list']
  publish: Store['publish']
  health(): Promise<StoreHealth>
}

/** The lifetime and the clock of a remote store. */
export interface RemoteOptions {
  /** Milliseconds for which an unused session is kept. */
  readonly ttl: number
  /** Milliseconds since the epoch. */
  readonly now: () => number
}

/** How often per lifetime the place of a session in the list is renewed. */
const RENEWALS = 8
const RENEWED_AT_ONCE = 10_000

/**
 * Lists within so many milliseconds share a snapshot. Short, because a session that began since is not in it; not 0, because a
 * table that asks every second would otherwise leave a copy of the index per second in Redis for half a minute.
 */
const REUSED_MS = 2_000

/** Creates an index of all sessions by the time at which they end, for lists and for their number. */
function createIndex(
  { send }: RedisConnection,
  prefix: string,
  timeout: number,
  { ttl, now }: RemoteOptions,
) {
  const index = `${prefix}{sessions}`
  const soon = () => performance.now() + timeout
  const renewed = new LRUCache<SessionKey, true>({
    max: RENEWED_AT_ONCE,
    ttl: Math.max(1, Math.floor(ttl / RENEWALS)),
    perf: { now },
    ttlResolution: 0,
  })
  const dropExpired = () => send(['ZREMRANGEBYSCORE', index, '-inf', String(now())], soon())
  let newest: { readonly name: string; readonly takenAt: number } | undefined
  return {
    /** Notes that a session was written. If its place in the list cannot be renewed, a later write does that. */
    written(key: SessionKey, isNew: boolean): void {
      if (!isNew && renewed.has(key)) return
      renewed.set(key, true)
      const ends = now() + ttl + ttl / RENEWALS
      const done = Promise.all([
        send(['ZADD', index, String(ends), key], soon()),
        send(['PEXPIRE', index, String(Math.ceil(2 * ttl))], soon()),
      ])
      done.catch(() => renewed.delete(key))
    },
    async count(): Promise<number> {
      const [, count] = await Promise.all([dropExpired(), send(['ZCARD', index], soon())])
      return Number(count)
    },
    /** Takes a snapshot, unless a recent one exists; returns its name. */
    async snapshot(name: string): Promise<string> {
      if (newest && now() - newest.takenAt < REUSED_MS) return newest.name
      const copy = `${index}:${name}`
      await Promise.all([
        dropExpired(),
        send(['ZRANGESTORE', copy, index, '0', '-1'], soon()),
        send(['PEXPIRE', copy, String(SNAPSHOT_MS + 2 * REUSED_MS)], soon()),
      ])
      newest = { name, takenAt: now() }
      return name
    },
    /** Returns keys of a snapshot from `start` on, and their total number; 0 if the snapshot has expired. */
    async keys(name: string, start: number, limit: number) {
      const copy = `${index}:${name}`
      const [keys, size] = await Promise.all([
        send(['ZRANGE', copy, String(start), String(start + limit - 1)], soon()),
        send(['ZCARD', copy], soon()),
      ])
      return { keys: keys as readonly SessionKey[], size: Number(size) }
    },
  }
}

/** A cursor names a snapshot and how far it was read. */
const CURSOR = /^([0-9a-f]{16})-(\d{1,9})$/

function createList(
  index: ReturnType<typeof createIndex>,
  sessions: RemoteCells<Session>,
  timeout: number,
  newId: () => string,
): Store['list'] {
  return async (limit, cursor) => {
    const [, id = '', from = '0'] = cursor === undefined ? ['', newId()] : (CURSOR.exec(cursor) ?? [])
    if (id === '') return undefined
    const name = cursor === undefined ? await index.snapshot(id) : id
    const start = Number(from)
    const { keys, size } = await index.keys(name, start, limit)
    if (size === 0) return cursor === undefined ? { sessions: [], cursor: undefined } : undefined
    const deadline = performance.now() + timeout
    const listed = await Promise.all(
      keys.map(async (key) => {
        // A session that a newer version wrote is left out.
        const { value: session } = await sessions.read(key, deadline).catch((error: unknown) => {
          if (error instanceof ValueError) return NO_CELL
          throw error
        })
        return session ? [{ key, session }] : []
      }),
    )
    const next = start + limit
    return { sessions: listed.flat(), cursor: next < size ? `${name}-${next}` : undefined }
  }
}

/** Creates the store in Redis. `newId` returns 16 random hex digits. */
export function createRedis(
  settings: RedisSettings,
  hooks: Omit<ConnectionHooks, 'probe'>,
  options: RemoteOptions,
  newId: () => string,
): RemoteStore {
  const { prefix, timeout } = settings
  const probeKey = `${prefix}{probe}:${newId()}`
  const probe = (send: Send) =>
    replace(send, probeKey, ['', '1', String(SCHEMA), '', '1'], performance.now() + timeout)
  const connection = createConnection(settings, { ...hooks, probe })
  const { send } = connection
  const index = createIndex(connection, prefix, timeout, options)
  const sessions = createRemoteCells<Session>(connection, (key) => `${prefix}s:{${key}}`, index.written)
  const values = createRemoteCells<unknown>(
    connection,
    (key) => `${prefix}v:{${key}}`,
    () => {},
  )
  // Providers choose the ids of responses.
  const linkName = (tenant: string, response: string) => `${prefix}l:{${hashOf(tenant, response)}}`
  return {
    isUp: connection.isUp,
    open: connection.open,
    close: connection.close,
    subscribe: (channel, listener) => connection.subscribe(prefix + channel, listener),
    unsubscribe: (channel) => connection.unsubscribe(prefix + channel),
    sessions,
    values,
    async link(tenant, response, link, deadline) {
      const data = encode({ s: SCHEMA, l: link })
      await send(['SET', linkName(tenant, response), data, 'PX', String(options.ttl)], deadline)
    },
    async linked(tenant, response, deadline) {
      const data = await send(['GET', linkName(tenant, response)], deadline)
      if (typeof data !== 'string') return undefined
      const { s, l } = JSON.parse(data) as { readonly s: number; readonly l: Link }
      return s > SCHEMA ? undefined : l
    },
    list: createList(index, sessions, timeout, newId),
    async publish(channel, message) {
      await send(['PUBLISH', prefix + channel, message], performance.now() + timeout)
    },
    health: async () => ({ sessions: await index.count() }),
  }
}
