/** The store of several replicas: a remote store, and this replica's memory for times when that fails. */
import { setTimeout } from 'node:timers/promises'
import { doubted, lacking, mergeSessions } from '../core/session/merge.ts'
import type { Session } from '../core/session/session.ts'
import { createChanges, createKeepers, keyOfValue, type MemoryLimits } from './memory.ts'
import type { ConnectionHooks, RedisConnection } from './redis-connection.ts'
import { createRedis, type RedisSettings, type RemoteStore } from './redis-data.ts'
import { createReplicatedValues, type ReplicatedValues } from './replicated-values.ts'
import {
  idOfKey,
  type ListedSession,
  type SessionKey,
  type Store,
  sizeOfSession,
  type ValueChange,
  type ValueKind,
} from './store.ts'

/** The limits and callbacks of the store. */
export interface ReplicatedOptions extends Pick<ConnectionHooks, 'changed' | 'answered'> {
  readonly now: () => number
  /** Identifies this process: random, as no other may have it. */
  readonly replica: string
  readonly limits: MemoryLimits
  /** Called for each call that the remote store did not execute. */
  readonly lost: () => void
}

/** A store that replicas share, with its connection to the remote store. */
export interface ReplicatedStore extends Store, Pick<RedisConnection, 'isWhole' | 'open'> {
  /** Writes what waits, and ends the connection. */
  close(): Promise<void>
  /** Writes the changes that the remote store missed, as it does by itself when that is back. */
  heal(): Promise<unknown>
}

/** Bytes of one session in memory. The least recently used threads, of many sub-agents, are dropped first. */
const MAX_SESSION = 1_048_576
/** The number of small values, whose size their writers bound. */
const MAX_VALUES = 10_000
/** Milliseconds after which an unknown link is looked up again: the replica that writes it may be late. */
const LATE_MS = 10

/** Milliseconds after which all replicas have written what they changed while Redis was away. */
const WRITTEN_MS = 5_000

/** Returns the session without its least recently used threads if it is too large. */
function boundSession(session: Session): Session {
  let { threads } = session
  while (threads.length > 1 && sizeOfSession({ ...session, threads }) > MAX_SESSION) threads = threads.slice(1)
  return threads === session.threads ? session : { ...session, threads }
}

/**
 * Merges values. A list loses what this process removed, and gets what it added. An object gets the fields that this
 * process changed; a field that is a list in both is merged as a list.
 */
function mergeValues(base: unknown, local: unknown, remote: unknown): unknown {
  if (!Array.isArray(remote)) {
    const unchanged = new Map(Object.entries(base ?? {}))
    const there = new Map(Object.entries(remote ?? {}))
    for (const [key, value] of Object.entries(local ?? {})) {
      const [before, theirs] = [unchanged.get(key), there.get(key)]
      if (before === value) continue
      const areLists = Array.isArray(value) && Array.isArray(theirs)
      there.set(key, areLists ? (mergeValues(before, value, theirs) ?? []) : value)
    }
    return Object.fromEntries(there)
  }
  const byText = (list: unknown) =>
    new Map(Array.isArray(list) ? list.map((item: unknown) => [JSON.stringify(item), item]) : [])
  const [before, after] = [byText(base), byText(local)]
  const all = remote.filter((item) => !before.has(JSON.stringify(item)) || after.has(JSON.stringify(item)))
  const known = byText(all)
  for (const [text, item] of after) if (!before.has(text) && !known.has(text)) all.push(item)
  return all.length === 0 ? undefined : all
}

/** Sessions that are read at once, at first and at most, and their bytes: all are to be read in the time of one. */
const FIRST_READ = 4
const MOST_READ = 64
const MOST_BYTES = 262_144

/** Yields all sessions; those that this replica knows if the remote store fails. */
async function* allSessions(
  remote: RemoteStore,
  sessions: ReplicatedValues<Session>,
  ids: readonly string[] | undefined,
  missed: () => void,
  given: readonly SessionKey[] | undefined,
): AsyncGenerator<ListedSession> {
  const seen = new Set<SessionKey>()
  let most = FIRST_READ
  async function* read(keys: readonly SessionKey[]) {
    const unseen = keys.filter((key) => !seen.has(key))
    for (let from = 0; from < unseen.length; ) {
      const part = unseen.slice(from, from + most)
      from += part.length
      let bytes = 1
      const late = () => {
        bytes = Number.POSITIVE_INFINITY
        missed()
      }
      const found = await Promise.all(part.map((key) => sessions.get(key, late)))
      for (const session of found) if (session) bytes += sizeOfSession(session)
      most = Math.max(1, Math.min(MOST_READ, 2 * most, Math.floor((MOST_BYTES * part.length) / bytes)))
      for (const [at, key] of part.entries()) {
        seen.add(key)
        const session = found[at]
        if (session) yield { key, session }
      }
    }
  }
  if (given) return yield* read(given)
  try {
    for await (const keys of remote.keys(ids)) yield* read(keys)
    return
  } catch {
    missed()
  }
  yield* read(sessions.keys().filter((key) => !ids || ids.includes(idOfKey(key))))
}

function createValues(
  remote: RemoteStore,
  { limits, ...shared }: Pick<ReplicatedOptions, 'limits' | 'now' | 'lost'> & { readonly replica: string },
): Pick<Store, 'value' | 'updateValue'> & Required<Pick<Store, 'copyOf'>> & { heal(): Promise<unknown> } {
  const keepers = createKeepers(limits, MAX_VALUES, (bounds) =>
    createReplicatedValues<unknown>({
      ...shared,
      ...bounds,
      remote: remote.values,
      merge: mergeValues,
    }),
  )
  return {
    async value<Value>(kind: ValueKind<Value>, key: SessionKey) {
      const kept = keepers.of(kind)
      const name = keyOfValue(kind, key)
      let found = await kept.get(name)
      if (found === undefined && kind.isNeverRemoved) found = kept.copyOf(name)
      if (found === undefined && kind.mayBeLate && remote.isUp()) {
        await setTimeout(LATE_MS)
        found = await kept.get(name)
      }
      return (found ?? kind.empty) as Value
    },
    copyOf: <Value>(kind: ValueKind<Value>, key: SessionKey) =>
      keepers.of(kind).copyOf(keyOfValue(kind, key)) as Value | undefined,
    updateValue: <Value, Result>(kind: ValueKind<Value>, key: SessionKey, change: ValueChange<Value, Result>) =>
      keepers.of(kind).update(keyOfValue(kind, key), (before) => change((before ?? kind.empty) as Value), kind.ttl),
    heal: () => Promise.all(keepers.all().map((kept) => kept.heal())),
  }
}

/** Creates the store. No call rejects, or waits longer than the timeout, because of the remote store. */
export function createReplicatedStore(settings: RedisSettings, options: ReplicatedOptions): ReplicatedStore {
  const { limits, now, replica, lost } = options
  const shared = { limits, now, replica, lost }
  const heal = () => Promise.all([sessions.heal(), values.heal()])
  let hasFailed = false
  let backAt = Number.NEGATIVE_INFINITY
  const mayLack = () => hasFailed || performance.now() - backAt < WRITTEN_MS
  const hooks = {
    answered: options.answered,
    settled: () => void heal(),
    changed(isUp: boolean, problem: string | undefined) {
      options.changed(isUp, problem)
      if (isUp && hasFailed) backAt = performance.now()
      hasFailed = !isUp
      if (isUp) void heal()
      else sessions.suspect()
    },
  }
  const changes = createChanges((keys) => remote.announce(keys).catch(() => changes.tell(keys)))
  const remote = createRedis(settings, hooks, { ttl: limits.ttl, now, replica }, changes.tell)
  const values = createValues(remote, shared)
  const sessions = createReplicatedValues<Session>({
    ...shared,
    ...limits,
    remote: remote.sessions,
    merge: (base, local, theirs, isLost) => (local ? mergeSessions(base, local, theirs, isLost) : theirs),
    doubt: doubted,
    lacking: (session) => (mayLack() ? lacking(session) : session),
    bound: boundSession,
    sizeOf: sizeOfSession,
  })
  return {
    async update(key, change, mayWait) {
      const changed = (before: Session | undefined) => {
        const { session, result } = change(before)
        return { value: session, result }
      }
      const result = await sessions.update(key, changed, limits.ttl, mayWait)
      changes.note(key)
      return result
    },
    get: sessions.get,
    value: values.value,
    copyOf: values.copyOf,
    updateValue: values.updateValue,
    all: (ids, missed = () => {}, keys) => allSessions(remote, sessions, ids, missed, keys),
    recent: remote.recent,
    subscribe: changes.subscribe,
    ahead: remote.ahead,
    mayLack,
    count: () => remote.count().catch(() => sessions.keys().length),
    isWhole: remote.isWhole,
    open: remote.open,
    async close() {
      await sessions.flush()
      remote.close()
    },
    heal,
  }
}
