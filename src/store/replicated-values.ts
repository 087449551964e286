/**
 * Values that replicas share by compare-and-set, and that each replica changes alone while the store cannot be reached.
 *
 * A replica makes each change on its own recent copy. If another replica was faster, it gets the current value and runs
 * the change again. Changes of a value that come during a write are written together in the next one. If the store
 * fails, changes are kept here with the value from which they began, and merged when the store is back.
 */
import { LRUCache } from 'lru-cache'
import { atMost } from '../core/bounds/cache-bound.ts'
import { ignore } from '../core/thrown.ts'
import { type CacheLimits, createFairCache } from './fair-cache.ts'
import type { SessionKey, ValueChange } from './store.ts'

/** A value with the newest operation of each replica that wrote it; the first is the newest, and the version. */
export interface Versioned<Value> {
  readonly operations: readonly string[]
  readonly value: Value | undefined
}

/** A value that was never written, or was forgotten. */
export const NOT_STORED: Versioned<never> = { operations: [], value: undefined }

/** How many replicas are remembered as writers of one value. */
const MAX_WRITERS = 32

/** The store has certainly not carried out what it was asked for. */
export class NotDoneError extends Error {
  override readonly name = 'NotDoneError'
}

/** Values in a store that all replicas reach. Rejects if the store fails or answers too late. */
export interface RemoteValues<Value> {
  isUp(): boolean
  read(key: SessionKey): Promise<Versioned<Value>>
  /**
   * Writes `next` if the value is still `expected` and returns `undefined`; else returns the current value. Rejects
   * with a NotDoneError if it is certain that nothing was written.
   */
  replace(
    key: SessionKey,
    expected: Versioned<Value>,
    next: Versioned<Value>,
    ttl: number,
  ): Promise<Versioned<Value> | undefined>
}

/** How values are kept, merged and bounded. */
interface ReplicationOptions<Value> extends CacheLimits<Value> {
  readonly remote: RemoteValues<Value>
  /** Merges `local`, which began as `base`, with the store's value. `isLost`: the store has lost its data since. */
  readonly merge: (
    base: Value | undefined,
    local: Value | undefined,
    remote: Value,
    isLost: boolean,
  ) => Value | undefined
  /**
   * Marks a value that the store cannot confirm: other replicas may have changed it since. If it is set, a value that
   * the store has lost is written again, or merged with what others wrote since.
   */
  readonly doubt?: (value: Value) => Value
  /** Marks a value of the store while other replicas may have changes of it that the store does not have yet. */
  readonly lacking?: (value: Value) => Value
  readonly bound?: (value: Value) => Value
  readonly replica: string
  /** Called for each change that the store did not execute. */
  readonly lost: () => void
}

/** Changes that were made here while the store could not be reached. */
interface OfflineChanges<Value> {
  readonly base: Value | undefined
  readonly local: Value | undefined
  /** Writes whose outcome is unknown, with the local value after each. */
  readonly unconfirmed: readonly { readonly operation: string; readonly local: Value | undefined }[]
}

/** This replica's copy of a value. */
interface Copy<Value> {
  /** The store's value when it was last read or written. */
  readonly stored: Versioned<Value>
  readonly offline?: OfflineChanges<Value> | undefined
}

interface PendingChange<Value> {
  readonly change: Change<Value, unknown>
  readonly ttl: number
  readonly resolve: (result: never) => void
  readonly reject: (error: unknown) => void
  /**
   * What the last run returned, or threw. As a function that settles the change, it let V8 move every request with its
   * body to the old generation, and collect the whole heap all the time.
   */
  outcome: { readonly result: unknown } | { readonly error: unknown }
}

type Change<Value, Result> = ValueChange<Value | undefined, Result>

/** So many races can be lost only if something goes on writing without end. */
const MAX_ATTEMPTS = 100

const HEALED_AT_ONCE = 16

/** A server tells its replicas what was written, and is known to have failed, within so many milliseconds. */
const REPLICATED_MS = 10_000
const MAX_WRITTEN = 10_000

/** For so many milliseconds a change that may wait does so, and for so many keys at once. */
const WAIT_MS = 50
const MAX_KEYS_WAITING = 10_000

/** How many unconfirmed writes are kept. The next successful write confirms them, and few get no answer in a row. */
const MAX_UNCONFIRMED = 8

const NOT_RUN = { result: undefined }

function valueIn<Value>(copy: Copy<Value> | undefined): Value | undefined {
  return copy?.offline ? copy.offline.local : copy?.stored.value
}

/** Returns the place of an operation among all those of its replica. */
function placeOf(operation: string): number {
  return Number.parseInt(operation.slice(operation.lastIndexOf('.') + 1), 36)
}

/** Returns the newest operation of a replica; `undefined` if none of it is known. */
function newestOf(replica: string, operations: readonly string[]): string | undefined {
  return operations.find((operation) => operation.startsWith(`${replica}.`))
}

/** Returns the changes of a replica that are still missing in the store, given the operations that it knows. */
function missingIn<Value>(
  replica: string,
  operations: readonly string[],
  changes: OfflineChanges<Value>,
): OfflineChanges<Value> {
  const newest = newestOf(replica, operations)
  if (newest === undefined) return changes
  const at = changes.unconfirmed.findLastIndex(({ operation }) => placeOf(operation) <= placeOf(newest))
  const done = changes.unconfirmed[at]
  return done ? { ...changes, base: done.local, unconfirmed: changes.unconfirmed.slice(at + 1) } : changes
}

function startOf<Value>(
  { doubt, merge, replica }: ReplicationOptions<Value>,
  copy: Copy<Value> | undefined,
  { operations, value }: Versioned<Value>,
): Value | undefined {
  if (!copy) return value
  const { stored, offline } = copy
  if (value === undefined) return offline ? offline.local : stored.value && doubt?.(stored.value)
  // If our newest operation is gone, the store lost its data and another replica began the value again.
  const newest = newestOf(replica, stored.operations)
  const known = newestOf(replica, operations)
  const isGone = newest !== undefined && (known === undefined || placeOf(known) < placeOf(newest))
  if (doubt && isGone) {
    const merged = merge(undefined, valueIn(copy), value, true)
    return merged && doubt(merged)
  }
  if (!offline) return value
  const { base, local } = missingIn(replica, operations, offline)
  return merge(base, local, value, false)
}

function applyAll<Value>(
  { bound }: ReplicationOptions<Value>,
  pending: readonly PendingChange<Value>[],
  start: Value | undefined,
): Value | undefined {
  let value = start
  for (const one of pending) {
    try {
      const { value: next, result } = one.change(value)
      one.outcome = { result }
      value = next
    } catch (error) {
      one.outcome = { error }
    }
  }
  return value === undefined || !bound ? value : bound(value)
}

/** Makes the changes on this replica's copy only. `operation`: the write whose outcome is unknown. */
function changeOffline<Value>(
  { options, copies }: State<Value>,
  key: SessionKey,
  pending: readonly PendingChange<Value>[],
  stored: Versioned<Value>,
  operation: string | undefined,
): void {
  const copy = copies.get(key)
  const before = copy?.offline
    ? missingIn(options.replica, stored.operations, copy.offline)
    : { base: stored.value, local: startOf(options, copy, stored), unconfirmed: [] }
  const { doubt } = options
  const start = before.local !== undefined && doubt ? doubt(before.local) : before.local
  const local = applyAll(options, pending, start)
  const added = operation === undefined ? [] : [{ operation, local }]
  let unconfirmed = [...before.unconfirmed, ...added]
  // Once the first one is made, the store refuses the others, as they expect the value before it.
  if (unconfirmed.length > MAX_UNCONFIRMED) unconfirmed = unconfirmed.toSpliced(1, 1)
  copies.set(key, { stored, offline: { base: before.base, local, unconfirmed } }, pending[0]?.ttl)
  for (const _ of pending) options.lost()
}

/** Makes changes in the store, or in the copy if that fails. */
async function writePending<Value>(
  state: State<Value>,
  key: SessionKey,
  pending: readonly PendingChange<Value>[],
): Promise<void> {
  const { options, copies } = state
  const { remote, replica } = options
  const copy = copies.get(key)
  const ttl = pending[0]?.ttl ?? options.ttl
  const operation = `${replica}.${(state.operations++).toString(36)}`
  let current: Versioned<Value> = copy?.stored ?? NOT_STORED
  let isSent = false
  if (!remote.isUp()) return changeOffline(state, key, pending, current, undefined)
  try {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const start = startOf(options, copy, current)
      const value = applyAll(options, pending, start && options.lacking ? options.lacking(start) : start)
      const others = current.operations.filter((other) => !other.startsWith(`${replica}.`))
      const next = { operations: [operation, ...others].slice(0, MAX_WRITERS), value }
      isSent = true
      const found = await remote.replace(key, current, next, ttl)
      isSent = false
      if (found === undefined) {
        copies.set(key, { stored: value === undefined ? NOT_STORED : next }, ttl)
        if (options.doubt) state.written.set(key, true)
        return
      }
      current = found
    }
  } catch (error) {
    if (error instanceof NotDoneError) isSent = false
  }
  changeOffline(state, key, pending, current, isSent ? operation : undefined)
}

/** Writes the pending changes of a key until none is left, and settles them. */
async function writeAll<Value>(state: State<Value>, key: SessionKey, queue: PendingChange<Value>[]): Promise<void> {
  while (queue.length > 0) {
    const pending = queue.splice(0)
    try {
      await writePending(state, key, pending)
      for (const { outcome, resolve, reject } of pending) {
        if ('error' in outcome) reject(outcome.error)
        else resolve(outcome.result as never)
      }
    } catch (error) {
      // The value does not belong to its kind: later changes must not wait for ever.
      for (const { reject } of pending) reject(error)
    }
  }
  state.queues.delete(key)
}

/** Writes the changes of a key that wait. Never rejects. */
async function writeWaiting<Value>(state: State<Value>, key: SessionKey): Promise<void> {
  clearTimeout(state.waiting.get(key))
  state.waiting.delete(key)
  await writeAll(state, key, state.queues.get(key) ?? [])
}

/** Writes the values that the store may not have as they are here. */
async function healAll<Value>(
  { options: { remote }, copies, unsure }: State<Value>,
  write: (key: SessionKey) => Promise<void>,
): Promise<void> {
  const changed = copies.keys().filter((key) => copies.peek(key)?.offline !== undefined || unsure.has(key))
  unsure.clear()
  const next = async () => {
    for (let key = changed.pop(); key !== undefined && remote.isUp(); key = changed.pop())
      // If a value can't be merged, the next request that uses it fails in the same way and reports it.
      await write(key).catch(ignore)
  }
  await Promise.all(Array.from({ length: HEALED_AT_ONCE }, next))
  // The store has failed again.
  for (const key of changed) unsure.add(key)
}

function newState<Value>(options: ReplicationOptions<Value>) {
  return {
    options,
    copies: createFairCache<Copy<Value>>({
      ...options,
      sizeOf(copy) {
        const value = valueIn(copy)
        return value === undefined ? 1 : options.sizeOf(value)
      },
    }),
    queues: new Map<SessionKey, PendingChange<Value>[]>(),
    /** What was written last: a server that takes over may not have it. */
    written: new LRUCache<SessionKey, true>({ ...atMost(MAX_WRITTEN), ttl: REPLICATED_MS }),
    /** What may be lost with a server that has failed. */
    unsure: new Set<SessionKey>(),
    /** The timers of queues that wait for a further change before they are written. */
    waiting: new Map<SessionKey, NodeJS.Timeout>(),
    operations: 0,
  }
}

type State<Value> = ReturnType<typeof newState<Value>>

/** Creates the values of one kind. */
export function createReplicatedValues<Value>(options: ReplicationOptions<Value>) {
  const { remote, lost } = options
  const state = newState(options)
  const { copies, queues, unsure, waiting } = state
  const copyOf = (key: SessionKey) => valueIn(copies.peek(key))
  const update = <Result>(
    key: SessionKey,
    change: Change<Value, Result>,
    ttl = options.ttl,
    mayWait = false,
  ): Promise<Result> =>
    new Promise((resolve, reject) => {
      const pending: PendingChange<Value> = { change, ttl, resolve, reject, outcome: NOT_RUN }
      const queue = queues.get(key)
      if (queue) queue.push(pending)
      else queues.set(key, [pending])
      if (mayWait && !queue && waiting.size < MAX_KEYS_WAITING) {
        const timer = setTimeout(() => writeWaiting(state, key), WAIT_MS)
        waiting.set(key, timer)
      } else if (!queue || (!mayWait && waiting.has(key))) void writeWaiting(state, key)
    })
  return {
    update,
    /** Returns the store's value; if the store fails, this replica's copy, and calls `missed`. */
    async get(key: SessionKey, missed = lost): Promise<Value | undefined> {
      if (waiting.has(key)) await writeWaiting(state, key)
      if (copies.peek(key)?.offline || !remote.isUp()) return copyOf(key)
      try {
        return (await remote.read(key)).value
      } catch {
        missed()
        return copyOf(key)
      }
    },
    copyOf,
    keys: copies.keys,
    /** Writes the changes that wait. */
    async flush(): Promise<void> {
      await Promise.all([...waiting.keys()].map((key) => writeWaiting(state, key)))
    },
    /** Call it when the store fails: what was written a moment ago may be lost with it. */
    suspect(): void {
      for (const key of state.written.keys()) unsure.add(key)
    },
    /** Writes the changes that were made while the store failed, and what it may have lost. */
    heal: () => healAll(state, (key) => update(key, (value) => ({ value, result: undefined }))),
  }
}

/** Values of one kind, with copies in this replica. */
export type ReplicatedValues<Value> = ReturnType<typeof createReplicatedValues<Value>>
