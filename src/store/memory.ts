/** The store in the memory of this process: bounded in number, age and size, and lost at its end. */
import type { Session } from '../core/session/session.ts'
import { createFairCache } from './fair-cache.ts'
import { sizeOfSession } from './session-size.ts'
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
/**
 * Bytes of all links, which may hold pending results, as a share of those of all sessions, on top of them.
 */
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

/**
 * Returns what keeps values, each made by `create`: one for all kinds of small values, and one for each kind
 * of large ones, whose bytes `sizeOf` returns.
 */
export function createKeepers<Keeper>(create: (sizeOf: ((value: unknown) => number) | undefined) => Keeper) {
  const small = create(undefined)
  const large = new Map<string, Keeper>()
  return {
    of<Value>({ name, sizeOf }: ValueKind<Value>): Keeper {
      if (!sizeOf) return small
      const keeper = large.get(name) ?? create((value) => sizeOf(value as Value))
      large.set(name, keeper)
      return keeper
    },
    all: () => [small, ...large.values()],
  }
}

/** Returns the key of a value of some kind. */
export function keyOfValue({ name }: { readonly name: string }, key: SessionKey): SessionKey {
  return `${key} ${name}` as SessionKey
}

/** Creates a store in memory. `now` returns milliseconds that only grow and are never 0. */
export function createMemoryStore(limits: MemoryLimits, now: () => number = () => performance.now()): Store {
  const { maxSessions: max, ttl, maxBytes } = limits
  const sessions = createFairCache<Session>({ max, ttl, maxBytes, sizeOf: sizeOfSession, now })
  const links = createFairCache<Link>({
    max: max * LINKS_PER_SESSION,
    ttl,
    maxBytes: Math.max(1, Math.floor(maxBytes * SHARE_OF_LINKS)),
    sizeOf: sizeOfLink,
    now,
  })
  const maxValues = Math.max(max, LEAST_VALUES)
  const values = createKeepers((sizeOf) =>
    createFairCache<unknown>(
      sizeOf ? { max, ttl, maxBytes, sizeOf, now } : { max: maxValues, ttl, maxBytes: maxValues, sizeOf: () => 1, now },
    ),
  )
  return {
    async update(key, change) {
      const entry = sessions.get(key)
      const { session, result } = change(entry?.value)
      sessions.set(key, session, entry)
      return result
    },
    get: async (key) => sessions.get(key)?.value,
    async *all(ids) {
      for (const key of sessions.keys()) {
        if (ids && !ids.includes(idOfKey(key))) continue
        const session = sessions.peek(key)
        if (session) yield { key, session }
      }
    },
    async link(tenant, response, link) {
      const key = sessionKey(tenant, response)
      links.set(key, link, links.get(key))
    },
    linked: async (tenant, response) => links.get(sessionKey(tenant, response))?.value,
    value: async <Value>(kind: ValueKind<Value>, key: SessionKey) =>
      (values.of(kind).peek(keyOfValue(kind, key)) ?? kind.empty) as Value,
    async updateValue<Value, Result>(kind: ValueKind<Value>, key: SessionKey, change: ValueChange<Value, Result>) {
      const cache = values.of(kind)
      const name = keyOfValue(kind, key)
      const entry = cache.get(name)
      const { value, result } = change((entry?.value ?? kind.empty) as Value)
      if (value === undefined) cache.delete(name)
      else cache.set(name, value, entry, kind.ttl)
      return result
    },
    ...createChannels(),
    count: async () => sessions.size,
  }
}
