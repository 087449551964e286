/** The store of several replicas: a remote store, and this replica's memory for times when that fails. */
import { setTimeout } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { doubted, mergeSessions } from '../core/session/merge.ts'
import type { Session } from '../core/session/session.ts'
import { createKeepers, createMemoryStore, keyOfValue, type MemoryLimits } from './memory.ts'
import type { RemoteStore } from './redis.ts'
import { createReplicatedValues, type ReplicatedValues } from './replicated-values.ts'
import { sizeOfSession } from './session-size.ts'
import { idOfKey, type Link, type ListedSession, type SessionKey, type Store, type ValueKind } from './store.ts'

/** The limits and callbacks of the store. */
export interface ReplicatedOptions {
  readonly limits: MemoryLimits
  /** Returns milliseconds that only grow and are never 0. */
  readonly now: () => number
  /** The unique name of this replica. */
  readonly replica: string
  /** Called for each call that the remote store did not execute. */
  readonly lost: () => void
}

/** A store that can catch up after a failure of the remote store. */
export interface ReplicatedStore extends Store {
  /** Writes the changes that the remote store missed; call it when that is back. */
  heal(): Promise<void>
}

/** Bytes of one session in memory. The least recently used threads, of many sub-agents, are dropped first. */
const MAX_SESSION = 1_048_576
/** The number of small values, whose size their writers bound. */
const MAX_VALUES = 10_000
/** Milliseconds after which an unknown link is looked up again: the replica that writes it may be late. */
const LATE_MS = 10
/** How many links are kept for a remote store that missed them. */
const MAX_MISSED = 2_000

/** Returns the session without its least recently used threads if it is too large. */
function boundSession(session: Session): Session {
  let { threads } = session
  while (threads.length > 1 && sizeOfSession({ ...session, threads }) > MAX_SESSION) threads = threads.slice(1)
  return threads === session.threads ? session : { ...session, threads }
}

/**
 * Merges small values: a list gets the items that were added and removed here, an object its changed fields.
 */
function mergeValues(base: unknown, local: unknown, remote: unknown): unknown {
  if (!Array.isArray(remote)) {
    const unchanged = new Map(Object.entries(base ?? {}))
    const changes = Object.entries(local ?? {}).filter(([key, value]) => unchanged.get(key) !== value)
    return { ...(remote as object), ...Object.fromEntries(changes) }
  }
  const textOf = (item: unknown) => JSON.stringify(item)
  const listOf = (list: unknown): readonly unknown[] => (Array.isArray(list) ? list : [])
  const before = new Set(listOf(base).map(textOf))
  const after = new Set(listOf(local).map(textOf))
  const kept = remote.filter((item) => !before.has(textOf(item)) || after.has(textOf(item)))
  const known = new Set(kept.map(textOf))
  const added = listOf(local).filter((item) => !before.has(textOf(item)) && !known.has(textOf(item)))
  const all = [...kept, ...added]
  return all.length === 0 ? undefined : all
}

/** Writes links to both stores; those that the remote store missed are written when it is back. */
function createLinks(remote: RemoteStore, memory: Store, { lost }: ReplicatedOptions) {
  const missed = new LRUCache<string, Parameters<Store['link']>>({ max: MAX_MISSED })
  const write = async (...[tenant, response, link]: Parameters<Store['link']>) => {
    try {
      await remote.link(tenant, response, link)
    } catch {
      lost()
      missed.set(`${tenant} ${response}`, [tenant, response, link])
    }
  }
  return {
    async link(tenant: string, response: string, link: Link) {
      const kept = memory.link(tenant, response, link)
      await write(tenant, response, link)
      await kept
    },
    async linked(tenant: string, response: string) {
      const own = await memory.linked(tenant, response)
      try {
        const found = (await remote.linked(tenant, response)) ?? own
        if (found) return found
        await setTimeout(LATE_MS)
        return await remote.linked(tenant, response)
      } catch {
        lost()
        return own
      }
    },
    async heal() {
      const links = [...missed.rvalues()]
      missed.clear()
      for (const link of links) if (link) await write(...link)
    },
  }
}

/** Passes messages between all replicas; within this replica only while the remote store is down. */
function createChannels(remote: RemoteStore, memory: Store): Pick<Store, 'publish' | 'subscribe'> {
  const listeners = new Map<string, number>()
  return {
    async publish(channel, message) {
      try {
        await remote.publish(channel, message)
      } catch {
        await memory.publish(channel, message)
      }
    },
    async subscribe(channel, listener) {
      const end = await memory.subscribe(channel, listener)
      const count = listeners.get(channel) ?? 0
      listeners.set(channel, count + 1)
      // A new connection subscribes again.
      if (count === 0)
        await remote.subscribe(channel, (message) => void memory.publish(channel, message)).catch(() => undefined)
      let isOver = false
      return async () => {
        if (isOver) return
        isOver = true
        await end()
        const left = (listeners.get(channel) ?? 1) - 1
        listeners.set(channel, left)
        if (left > 0) return
        listeners.delete(channel)
        await remote.unsubscribe(channel).catch(() => undefined)
      }
    },
  }
}

/** Yields all sessions; those that this replica knows if the remote store fails. */
async function* allSessions(
  remote: RemoteStore,
  sessions: ReplicatedValues<Session>,
  ids: readonly string[] | undefined,
  missed: () => void,
): AsyncGenerator<ListedSession> {
  const seen = new Set<SessionKey>()
  const read = async (keys: readonly SessionKey[]) => {
    const unseen = keys.filter((key) => !seen.has(key))
    for (const key of unseen) seen.add(key)
    const listed = unseen.map(async (key) => ({ key, session: await sessions.get(key, missed) }))
    return (await Promise.all(listed)).filter((one): one is ListedSession => one.session !== undefined)
  }
  try {
    for await (const keys of remote.keys(ids)) yield* await read(keys)
    return
  } catch {
    missed()
  }
  yield* await read(sessions.keys().filter((key) => !ids || ids.includes(idOfKey(key))))
}

/** Creates the store. No call rejects, or waits longer than the timeout, because of the remote store. */
export function createReplicatedStore(remote: RemoteStore, options: ReplicatedOptions): ReplicatedStore {
  const { limits, now } = options
  const { maxSessions: max, maxBytes, ttl } = limits
  const memory = createMemoryStore(limits, now)
  const sessions = createReplicatedValues<Session>({
    ...options,
    remote: remote.sessions,
    merge: (base, local, theirs, isLost) => (local ? mergeSessions(base, local, theirs, isLost) : theirs),
    restores: true,
    doubt: doubted,
    bound: boundSession,
    sizeOf: sizeOfSession,
    max,
    maxBytes,
    ttl,
  })
  const values = createKeepers((sizeOf) =>
    createReplicatedValues<unknown>({
      ...options,
      remote: remote.values,
      merge: mergeValues,
      restores: false,
      doubt: (value) => value,
      bound: (value) => value,
      ...(sizeOf ? { max, maxBytes, sizeOf } : { max: MAX_VALUES, maxBytes: MAX_VALUES, sizeOf: () => 1 }),
      ttl,
    }),
  )
  const links = createLinks(remote, memory, options)
  return {
    update: (key, change) =>
      sessions.update(key, (before) => {
        const { session, result } = change(before)
        return { value: session, result }
      }),
    get: (key) => sessions.get(key),
    link: links.link,
    linked: links.linked,
    value: async <Value>(kind: ValueKind<Value>, key: SessionKey) =>
      ((await values.of(kind).get(keyOfValue(kind, key))) ?? kind.empty) as Value,
    updateValue: (kind, key, change) =>
      values
        .of(kind)
        .update(
          keyOfValue(kind, key),
          (before) => change((before ?? kind.empty) as Parameters<typeof change>[0]),
          kind.ttl,
        ),
    all: (ids, missed = () => {}) => allSessions(remote, sessions, ids, missed),
    ...createChannels(remote, memory),
    count: () => remote.count().catch(() => sessions.keys().length),
    async heal() {
      await links.heal()
      await Promise.all([sessions, ...values.all()].map((kept) => kept.heal()))
    },
  }
}
