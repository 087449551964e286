/** The store in the memory of this process: bounded in number, age and size, and lost at its end. */
import type { Session } from '../core/session/session.ts'
import { type CacheLimits, createFairCache } from './fair-cache.ts'
import { idOfKey, type SessionKey, type Store, sizeOfSession, type ValueChange, type ValueKind } from './store.ts'

/** The bounds of a memory store: its sessions, and what each kind of values has in proportion to them. */
export type MemoryLimits = Pick<CacheLimits<never>, 'max' | 'ttl' | 'maxBytes'>

/** The number of small values that are kept even if fewer sessions are allowed. */
const LEAST_VALUES = 2_000

/** Milliseconds for which changes are collected. */
const GATHER_MS = 250

/** Collects the keys of changed sessions, and hands them to `send`, which tells the listeners of each process. */
export function createChanges(send?: (keys: readonly SessionKey[]) => void) {
  const listeners = new Set<(keys: readonly SessionKey[]) => void>()
  let changed = new Set<SessionKey>()
  const tell = (keys: readonly SessionKey[]): void => {
    for (const listener of listeners) listener(keys)
  }
  const end = () => {
    const keys = [...changed]
    changed = new Set()
    if (send) send(keys)
    else tell(keys)
  }
  return {
    tell,
    note(key: SessionKey): void {
      if (changed.size === 0) setTimeout(end, GATHER_MS).unref()
      changed.add(key)
    },
    subscribe(listener: (keys: readonly SessionKey[]) => void): () => void {
      listeners.add(listener)
      return () => void listeners.delete(listener)
    },
  }
}

/**
 * Returns what keeps the values of each kind, made by `create`: all small values together, `maxSmall` at most, and each
 * kind with room of its own.
 */
export function createKeepers<Keeper>(
  { max, maxBytes, ttl }: MemoryLimits,
  maxSmall: number,
  create: (limits: Omit<CacheLimits<unknown>, 'now'>) => Keeper,
) {
  const keepers = new Map<string, Keeper>()
  return {
    all: () => [...keepers.values()],
    of<Value>({ name, room }: ValueKind<Value>): Keeper {
      const place = room ? name : ''
      const known = keepers.get(place)
      if (known) return known
      const keeper = create(
        room
          ? {
              max: max * room.perSession,
              maxBytes: Math.max(1, Math.floor(maxBytes * room.share)),
              sizeOf: (value) => room.sizeOf(value as NonNullable<Value>),
              ttl,
            }
          : { max: maxSmall, maxBytes: maxSmall, sizeOf: () => 1, ttl },
      )
      keepers.set(place, keeper)
      return keeper
    },
  }
}

/** Returns the key of a value of some kind. */
export function keyOfValue({ name }: { readonly name: string }, key: SessionKey): SessionKey {
  return `${key} ${name}` as SessionKey
}

/** Creates a store in memory. `now` returns milliseconds that only grow and are never 0. */
export function createMemoryStore(limits: MemoryLimits, now: () => number = () => performance.now()): Store {
  const sessions = createFairCache<Session>({ ...limits, sizeOf: sizeOfSession, now })
  const values = createKeepers(limits, Math.max(limits.max, LEAST_VALUES), (bounds) =>
    createFairCache({ ...bounds, now }),
  )
  const changes = createChanges()
  return {
    async update(key, change) {
      const { session, result } = change(sessions.get(key))
      sessions.set(key, session)
      changes.note(key)
      return result
    },
    get: async (key) => sessions.get(key),
    async *all(ids, _, keys = sessions.keys()) {
      for (const key of keys) {
        if (ids && !ids.includes(idOfKey(key))) continue
        const session = sessions.peek(key)
        if (session) yield { key, session }
      }
    },
    value: async <Value>(kind: ValueKind<Value>, key: SessionKey) =>
      (values.of(kind).peek(keyOfValue(kind, key)) ?? kind.empty) as Value,
    async updateValue<Value, Result>(kind: ValueKind<Value>, key: SessionKey, change: ValueChange<Value, Result>) {
      const cache = values.of(kind)
      const name = keyOfValue(kind, key)
      const { value, result } = change((cache.get(name) ?? kind.empty) as Value)
      if (value === undefined) cache.delete(name)
      else cache.set(name, value, kind.ttl)
      return result
    },
    subscribe: changes.subscribe,
    count: async () => sessions.count(),
  }
}
