/** The data of replicas in Redis. Every method rejects if Redis fails; this process keeps no copies here. */

import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { ignore } from '../core/thrown.ts'
import type { ConnectionSettings } from './redis-client.ts'
import { type ConnectionHooks, createConnection, type RedisConnection, type Send } from './redis-connection.ts'
import { NOT_STORED, NotDoneError, type RemoteValues, type Versioned } from './replicated-values.ts'
import { idOfKey, type RecentKeys, type RecentPlace, type SessionKey } from './store.ts'
import { createSessionForm, createValueForm, type StoredForm } from './stored-session.ts'

/** How to reach Redis, and which keys to use. */
export interface RedisSettings extends ConnectionSettings {
  readonly prefix: string
}

/** Characters of one value. Sessions are made smaller long before they reach this. */
const MAX_VALUE = 4_194_304

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

/** Milliseconds since the epoch by the clock of Redis, which all replicas share. */
const NOW = `local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)`

/** Notes in a sorted set that a session lives for so many milliseconds. */
const NOTE = `${NOW}
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return 1`

/**
 * Returns how many sessions of a sorted set live, and the time. Drops at most 500 others, as a script blocks the
 * server.
 */
const COUNT = `${NOW}
local expired = redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, 500)
if #expired > 0 then redis.call('ZREM', KEYS[1], unpack(expired)) end
return {redis.call('ZCOUNT', KEYS[1], now, '+inf'), now}`

const scriptOf = (text: string) => ({ text, sha: createHash('sha1').update(text).digest('hex') })
const SCRIPTS = { replace: scriptOf(REPLACE), note: scriptOf(NOTE), count: scriptOf(COUNT) }

/** Runs a script by its hash; sends the whole script to a server that does not know it. */
async function run(send: Send, name: keyof typeof SCRIPTS, key: string, args: readonly string[]): Promise<unknown> {
  const { sha, text } = SCRIPTS[name]
  try {
    return await send(['EVALSHA', sha, '1', key, ...args])
  } catch (error) {
    if (!(error instanceof Error) || !error.message.startsWith('NOSCRIPT')) throw error
    return send(['EVAL', text, '1', key, ...args])
  }
}

/**
 * Reads a value, stored as its operations `o` and itself `v`. @throws if a version of Governor with another form wrote
 * it.
 */
function decode<Value>(reply: unknown, form: StoredForm<Value>): Versioned<Value> {
  const [schema, data] = reply as readonly (string | null)[]
  if (typeof data !== 'string') return NOT_STORED
  if (schema !== form.schema) throw new NotDoneError('written by another version of Governor')
  const { o, v }: { readonly o: readonly string[]; readonly v: unknown } = JSON.parse(data)
  return { operations: o, value: form.read(v) }
}

/** Values whose keys begin with `prefix`, stored in a form. `written` is called after each write. */
function createRemoteValues<Value>(
  { send, isUp }: RedisConnection,
  prefix: string,
  form: StoredForm<Value>,
  written?: (key: SessionKey, isNew: boolean) => void,
): RemoteValues<Value> {
  return {
    isUp,
    read: async (key) => decode(await send(['HMGET', `${prefix}{${key}}`, 's', 'd']), form),
    async replace(key, expected, { operations, value }, ttl) {
      const before = expected.operations[0] ?? ''
      const data = value === undefined ? '' : JSON.stringify({ o: operations, v: form.write(value) })
      if (data.length > MAX_VALUE) throw new NotDoneError('too large to be kept')
      const args = [before, operations[0] ?? '', form.schema, data, String(ttl)]
      const reply = await run(send, 'replace', `${prefix}{${key}}`, args)
      if (Array.isArray(reply)) return decode(reply, form)
      written?.(key, before === '')
      return undefined
    },
  }
}

/** The environment of a remote store. */
interface RemoteOptions {
  readonly ttl: number
  /** Returns milliseconds since the epoch. */
  readonly now: () => number
  /** Identifies this process. */
  readonly replica: string
}

/** How often per lifetime the place of a session in the list is renewed, at least, and after how many milliseconds. */
const RENEWALS = 8
const RENEWED_AFTER = 60_000
const RENEWED_AT_ONCE = 10_000

/** Keys that one command reads of the list, roughly, so that no command holds up those of other replicas. */
const STEP = '100'

/** Returns the name of the index of all sessions, or of those with an id, by the time at which they end. */
function indexOf(prefix: string, id?: string): string {
  return id === undefined ? `${prefix}{sessions}` : `${prefix}n:{${id}}`
}

/** Yields the keys of all sessions, or of those with one of `ids`, in steps; a key may come twice. */
async function* keysOf(send: Send, prefix: string, ids?: readonly string[]): AsyncGenerator<readonly SessionKey[]> {
  for (const id of ids ?? [undefined]) {
    let cursor = '0'
    do {
      const command = ['ZSCAN', indexOf(prefix, id), cursor, 'COUNT', STEP]
      // One late answer does not end a list.
      const reply = await send(command).catch(() => send(command))
      const [next, entries] = reply as readonly [string, readonly SessionKey[]]
      yield entries.filter((_, at) => at % 2 === 0)
      cursor = next
    } while (cursor !== '0')
  }
}

const NEWEST: RecentPlace = [Number.MAX_SAFE_INTEGER, 0]

/** Returns `least` keys of an index, those that live longest first, and all that live so many milliseconds longer. */
async function recentKeys(
  send: Send,
  index: string,
  least: number,
  life: number,
  [score, passed] = NEWEST,
): Promise<RecentKeys> {
  const [total, now] = (await run(send, 'count', index, [])) as readonly [number, number]
  const keys: SessionKey[] = []
  for (;;) {
    const range = ['ZRANGE', index, String(score), String(now), 'BYSCORE', 'REV', 'LIMIT', String(passed), STEP]
    const found = (await send([...range, 'WITHSCORES'])) as readonly (readonly [SessionKey, number])[]
    for (const [key, at] of found) {
      if (keys.length >= least && at < now + life) return { keys, next: [score, passed], total }
      passed = at === score ? passed + 1 : 1
      score = at
      keys.push(key)
    }
    if (found.length < Number(STEP)) return { keys, next: undefined, total }
  }
}

/** Returns the keys that a message of the channel names: none if a probe sent it, or another program. */
function keysIn(message: string): readonly SessionKey[] {
  try {
    const keys: unknown = JSON.parse(message)
    return Array.isArray(keys) ? keys.filter((key): key is SessionKey => typeof key === 'string') : []
  } catch {
    return []
  }
}

const MAX_KEYS = 500

/** Milliseconds between two looks at the clock of the server. */
const CLOCK_MS = 30_000

/** Keys per server of a cluster that a probe writes, so that it most likely meets each of them. */
const PROBES_PER_PART = 16

/** Checks whether a server takes writes and allows every command in use; loads the scripts. */
async function probePart(send: Send, key: string): Promise<void> {
  await run(send, 'note', key, ['probe', '1000'])
  await run(send, 'count', key, [])
  await send(['ZSCAN', key, '0'])
  await run(send, 'replace', `${key}:value`, ['', '1', '0', '{}', '1000'])
  await run(send, 'replace', `${key}:value`, ['1', '2', '0', '', '1000'])
  await send(['HMGET', `${key}:value`, 's', 'd'])
}

/**
 * Probes the servers of a cluster with keys that are spread over them. It writes something, as a server without memory
 * refuses only what takes some. Resolves with a problem of some of them. @throws if none answers as it should.
 */
async function probeParts(send: Send, parts: number, keyAt: (at: number) => string): Promise<unknown> {
  const probes: Promise<void>[] = []
  const count = parts === 1 ? 1 : parts * PROBES_PER_PART
  for (let at = 0; at < count; at++) probes.push(probePart(send, keyAt(at)))
  const failures = (await Promise.allSettled(probes)).filter((result) => result.status === 'rejected')
  const problem: unknown = failures[0]?.reason
  if (failures.length === count) throw problem
  return problem
}

/** The clock of the server, which says which day it is for all replicas, in milliseconds ahead of this process's. */
function createClock(send: Send, key: string, now: () => number) {
  let ahead = 0
  let seenAt = Number.NEGATIVE_INFINITY
  const look = async () => {
    seenAt = performance.now()
    const before = now()
    const [, time] = (await run(send, 'count', key, [])) as readonly [number, number]
    ahead = time - (before + now()) / 2
  }
  return {
    look,
    ahead(): number {
      if (performance.now() - seenAt > CLOCK_MS) look().catch(ignore)
      return ahead
    },
  }
}

/** Creates the store in Redis. `heard` gets the keys of sessions that have changed in any replica. */
export function createRedis(
  settings: RedisSettings,
  hooks: Pick<ConnectionHooks, 'changed' | 'answered' | 'settled'>,
  { ttl, now, replica }: RemoteOptions,
  heard: (keys: readonly SessionKey[]) => void,
) {
  const { prefix } = settings
  const channel = `${prefix}session-changes`
  const renewedAfter = Math.max(1, Math.min(RENEWED_AFTER, Math.floor(ttl / RENEWALS)))
  const bounds = { max: RENEWED_AT_ONCE, ttl: renewedAfter, ttlResolution: 0 }
  const renewed = new LRUCache<SessionKey, true>({ ...bounds, perf: { now } })
  const life = String(ttl + renewedAfter)
  const connection = createConnection(settings, {
    ...hooks,
    async probe(send, parts) {
      const problem = await probeParts(send, parts, (at) => `${prefix}{probe${at}}:${replica}`)
      await send(['PUBLISH', channel, '[]'])
      return problem
    },
    channel,
    heard(message) {
      const keys = keysIn(message)
      if (keys.length > 0) heard(keys)
    },
  })
  const { send } = connection
  const clock = createClock(send, `${prefix}{clock}`, now)
  return {
    ...connection,
    async open(): Promise<void> {
      await connection.open()
      await clock.look().catch(ignore)
    },
    ahead: clock.ahead,
    sessions: createRemoteValues(connection, `${prefix}s:`, createSessionForm(), (key, isNew) => {
      if (!isNew && renewed.has(key)) return
      renewed.set(key, true)
      const noted = [indexOf(prefix), indexOf(prefix, idOfKey(key))].map((name) => run(send, 'note', name, [key, life]))
      // If that fails, a later write notes the session.
      Promise.all(noted).catch(() => renewed.delete(key))
    }),
    values: createRemoteValues(connection, `${prefix}v:`, createValueForm()),
    keys: (ids?: readonly string[]) => keysOf(send, prefix, ids),
    count: async () => Number(((await run(send, 'count', indexOf(prefix), [])) as readonly unknown[])[0]),
    recent: (least: number, within: number, from?: RecentPlace) =>
      recentKeys(send, indexOf(prefix), least, ttl - within, from),
    /** Says in all replicas which sessions have changed. */
    async announce(changed: readonly SessionKey[]): Promise<void> {
      for (let at = 0; at < changed.length; at += MAX_KEYS)
        await send(['PUBLISH', channel, JSON.stringify(changed.slice(at, at + MAX_KEYS))])
    },
  }
}

/** The store that replicas share, without copies. */
export type RemoteStore = ReturnType<typeof createRedis>
