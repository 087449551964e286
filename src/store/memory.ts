/** The store in the memory of this process: bounded in number, age and size, and lost when the process ends. */
import type { Session } from '../core/session/session.ts'
import { sizeOfSession } from './session-size.ts'
import { createShelf, entryOf, peekValue, type Shelf, setValue } from './shelf.ts'
import {
  idOfKey,
  type Link,
  type SessionKey,
  type Store,
  sessionKey,
  type ValueChange,
  type ValueKind,
} from './store.ts'

/** The bounds of a memory store. */
export interface MemoryLimits {
  readonly maxSessions: number
  /** Milliseconds since the last use of a session. */
  readonly ttl: number
  /** Bytes of all sessions, roughly. */
  readonly maxBytes: number
}

/** The number of small values that are kept even if fewer sessions are allowed. */
const LEAST_VALUES = 2_000

/** Response ids that are remembered for each session that is allowed. */
const LINKS_PER_SESSION = 4
/** Bytes of all links, which may hold pending results, as a share of the bytes of all sessions. They come on top. */
const SHARE_OF_LINKS = 0.25
const BYTES_PER_LINK = 256
function sizeOfLink({ pendingResults = [], begun }: Link): number {
  const size = BYTES_PER_LINK + (begun ? sizeOfSession(begun) : 0)
  return pendingResults.reduce((sum, text) => sum + text.length * 2, size)
}

function createChannels(): Pick<Store, 'publish' | 'subscribe'> {
  const channels = new Map<string, Set<(message: string) => void>>()
  return {
    async publish(channel, message) {
      for (const listener of channels.get(channel) ?? []) listener(message)
    },
    async subscribe(channel, listener) {
      // A function that subscribes twice ends one of its subscriptions at a time.
      const subscription = (message: string) => listener(message)
      const listeners = channels.get(channel) ?? new Set()
      channels.set(channel, listeners.add(subscription))
      return async () => {
        listeners.delete(subscription)
        if (listeners.size === 0 && channels.get(channel) === listeners) channels.delete(channel)
      }
    },
  }
}

/** Returns the shelf of each kind of values: one for all kinds with small values, one for each kind with large ones. */
function createValueShelves({ maxSessions: max, ttl, maxBytes }: MemoryLimits, now: () => number) {
  const maxValues = Math.max(max, LEAST_VALUES)
  // Each value is small, and bounded by the code that writes it.
  const small = createShelf<unknown>({ max: maxValues, ttl, maxBytes: maxValues, sizeOf: () => 1, now })
  const large = new Map<string, Shelf<unknown>>()
  return <Value>({ name, sizeOf }: ValueKind<Value>): Shelf<unknown> => {
    if (!sizeOf) return small
    const known = large.get(name)
    if (known) return known
    const shelf = createShelf<unknown>({
      max,
      ttl,
      maxBytes,
      sizeOf: (value) => sizeOf(value as Value),
      now,
    })
    large.set(name, shelf)
    return shelf
  }
}

/** Creates a store in memory. `now` returns milliseconds that only grow and are never 0. */
export function createMemoryStore(limits: MemoryLimits, now: () => number = () => performance.now()): Store {
  const { maxSessions: max, ttl, maxBytes } = limits
  const sessions = createShelf<Session>({ max, ttl, maxBytes, sizeOf: sizeOfSession, now })
  const links = createShelf<Link>({
    max: max * LINKS_PER_SESSION,
    ttl,
    maxBytes: Math.max(1, Math.floor(maxBytes * SHARE_OF_LINKS)),
    sizeOf: sizeOfLink,
    now,
  })
  const valuesOf = createValueShelves({ maxSessions: max, ttl, maxBytes }, now)
  const valueName = (kind: string, key: SessionKey) => `${key} ${kind}` as SessionKey
  return {
    async update(key, change) {
      const entry = entryOf(sessions, key)
      const { session, result } = change(entry?.value)
      setValue(sessions, key, session, entry)
      return result
    },
    get: async (key) => entryOf(sessions, key)?.value,
    async *all(ids) {
      for (const key of [...sessions.entries.keys()]) {
        if (ids && !ids.includes(idOfKey(key))) continue
        const session = peekValue(sessions, key)
        if (session) yield { key, session }
      }
    },
    async link(tenant, response, link) {
      const name = sessionKey(tenant, response)
      setValue(links, name, link, entryOf(links, name))
    },
    linked: async (tenant, response) => entryOf(links, sessionKey(tenant, response))?.value,
    value: async <Value>(kind: ValueKind<Value>, key: SessionKey) =>
      (peekValue(valuesOf(kind), valueName(kind.name, key)) ?? kind.empty) as Value,
    async updateValue<Value, Result>(
      kind: ValueKind<Value>,
      key: SessionKey,
      change: ValueChange<Value, Result>,
    ) {
      const values = valuesOf(kind)
      const name = valueName(kind.name, key)
      const entry = entryOf(values, name)
      const { value, result } = change((entry?.value ?? kind.empty) as Value)
      if (value === undefined) values.entries.delete(name)
      else setValue(values, name, value, entry, kind.ttl)
      return result
    },
    ...createChannels(),
    health: async () => ({ sessions: sessions.entries.size }),
  }
}
