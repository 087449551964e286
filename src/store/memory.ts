/** Sessions in this process's memory: lost with it, bounded in number, age and size. */
import type { Session, Thread } from '../core/session/session.ts'
import { Shelf } from './shelf.ts'
import {
  type Link,
  type SessionKey,
  SNAPSHOT_MS,
  type Store,
  sessionKey,
  type ValueChange,
  type ValueKind,
} from './store.ts'

export interface MemoryLimits {
  readonly maxSessions: number
  /** Milliseconds since a session was last used. */
  readonly ttl: number
  /** Bytes that all sessions together may take, roughly. */
  readonly maxBytes: number
}

/** So many small values are kept however few sessions there may be. */
const LEAST_VALUES = 2_000

/** What a hash and its place in an array take, roughly, in bytes. */
const BYTES_PER_HASH = 96
const BYTES_PER_THREAD = 512
/** How many responses are remembered by id, for each session that there may be. */
const LINKS_PER_SESSION = 4
/** They may hold results that are to be sent along: what all of them take, beside the sessions. */
const SHARE_OF_LINKS = 0.25
const BYTES_PER_LINK = 256
/** A window of calls and outcomes, and names of messages. */
const BYTES_PER_GUARD = 8_192
/** A call that only its response told of. */
const BYTES_PER_CALL = 384

function sizeOfThread({
  userMessageHashes,
  assistantHashes,
  responses,
  continuedFrom,
  loopState,
  errors,
  run,
}: Thread): number {
  const hashes =
    userMessageHashes.length +
    assistantHashes.length +
    run.recentRequests.length +
    (responses?.length ?? 0) +
    (continuedFrom?.length ?? 0)
  let size = BYTES_PER_THREAD + hashes * BYTES_PER_HASH
  if (loopState) size += BYTES_PER_GUARD + (loopState.pendingCalls?.length ?? 0) * BYTES_PER_CALL
  for (const { newest } of errors ?? []) size += BYTES_PER_CALL + newest.body.length * 2
  if (run.finalAnswer) size += run.finalAnswer.text.length * 2
  return size
}

function sizeOf({ threads, forgotten, contexts }: Session): number {
  let size = BYTES_PER_THREAD + (contexts?.reductions.length ?? 0) * BYTES_PER_CALL
  size += (forgotten?.length ?? 0) * BYTES_PER_HASH
  for (const thread of threads) size += sizeOfThread(thread)
  return size
}

function sizeOfLink({ pendingResults = [], begun }: Link): number {
  const own = BYTES_PER_LINK + (begun ? sizeOf(begun) : 0)
  return pendingResults.reduce((sum, text) => sum + text.length * 2, own)
}

/** The pages of a list: which sessions there are, as of some moment. */
interface Snapshot {
  readonly id: number
  readonly takenAt: number
  readonly keys: readonly SessionKey[]
}

/** Lists what is on a shelf. The newest two snapshots are kept: a page of the one before may be asked for as the next is taken. */
function createList(sessions: Shelf<Session>, now: () => number): Store['list'] {
  let snapshots: readonly Snapshot[] = []
  const isYounger = ({ takenAt }: Snapshot, age: number) => now() - takenAt < age
  const currentSnapshot = (): Snapshot => {
    const [newest] = snapshots
    if (newest && isYounger(newest, SNAPSHOT_MS)) return newest
    const next = { id: (newest?.id ?? 0) + 1, takenAt: now(), keys: sessions.keys() }
    snapshots = newest ? [next, newest] : [next]
    return next
  }
  return async (limit, cursor) => {
    const [id, start = 0] = cursor === undefined ? [] : cursor.split('-').map(Number)
    const snapshot =
      cursor === undefined
        ? currentSnapshot()
        : snapshots.find((one) => one.id === id && isYounger(one, 2 * SNAPSHOT_MS))
    if (!snapshot) return undefined
    const listed = snapshot.keys.slice(start, start + limit).flatMap((key) => {
      const session = sessions.peek(key)
      return session ? [{ key, session }] : []
    })
    const next = start + limit
    return { sessions: listed, cursor: next < snapshot.keys.length ? `${snapshot.id}-${next}` : undefined }
  }
}

function createChannels(): Pick<Store, 'publish' | 'subscribe'> {
  const channels = new Map<string, Set<(message: string) => void>>()
  return {
    async publish(channel, message) {
      for (const listener of channels.get(channel) ?? []) listener(message)
    },
    async subscribe(channel, listener) {
      // One function may subscribe twice, and ends one of the two.
      const own = (message: string) => listener(message)
      const listeners = channels.get(channel) ?? new Set()
      channels.set(channel, listeners.add(own))
      return async () => {
        listeners.delete(own)
        if (listeners.size === 0 && channels.get(channel) === listeners) channels.delete(channel)
      }
    },
  }
}

/** `now` gives milliseconds that only grow, from any point on but 0. */
export function createMemoryStore(limits: MemoryLimits, now: () => number = () => performance.now()): Store {
  const { maxSessions: max, ttl, maxBytes } = limits
  const sessions = new Shelf<Session>({ max, ttl, maxBytes, sizeOf, now })
  const links = new Shelf<Link>({
    max: max * LINKS_PER_SESSION,
    ttl,
    maxBytes: Math.max(1, Math.floor(maxBytes * SHARE_OF_LINKS)),
    sizeOf: sizeOfLink,
    now,
  })
  const maxValues = Math.max(max, LEAST_VALUES)
  // Each of them is small, and bounded by whoever writes it.
  const values = new Shelf<unknown>({ max: maxValues, ttl, maxBytes: maxValues, sizeOf: () => 1, now })
  const nameOf = (kind: string, key: SessionKey) => `${key} ${kind}` as SessionKey
  return {
    async update(key, change) {
      const known = sessions.get(key)
      const { session, result } = change(known?.value)
      sessions.put(key, session, known)
      return result
    },
    get: async (key) => sessions.get(key)?.value,
    list: createList(sessions, now),
    async link(tenant, response, link) {
      const name = sessionKey(tenant, response)
      links.put(name, link, links.get(name))
    },
    linked: async (tenant, response) => links.get(sessionKey(tenant, response))?.value,
    value: async <Value>({ name, empty }: ValueKind<Value>, key: SessionKey) =>
      (values.peek(nameOf(name, key)) ?? empty) as Value,
    async updateValue<Value, Result>(
      kind: ValueKind<Value>,
      key: SessionKey,
      change: ValueChange<Value, Result>,
    ) {
      const name = nameOf(kind.name, key)
      const known = values.get(name)
      const { value, result } = change((known?.value ?? kind.empty) as Value)
      if (value === undefined) values.delete(name)
      else values.put(name, value, known, kind.ttl)
      return result
    },
    ...createChannels(),
    health: async () => ({ sessions: sessions.size }),
  }
}
