/**
 * Values that replicas share by compare-and-set, and that each replica changes alone while the store cannot be reached.
 *
 * A replica makes each change on its own recent copy. If another replica was faster, it gets the current value and runs
 * the change again. Changes of a value that come during a write are written together in the next one. If the store fails,
 * the changes are kept here together with the value from which they began, and merged when the store is back.
 */
import { createShelf, type Entry, entryOf, peekValue, type Shelf, setValue } from './shelf.ts'
import type { SessionKey } from './store.ts'

/** A value with the newest operation of each replica that wrote it. The first one is the newest and is the version. */
export interface Cell<Value> {
  readonly operations: readonly string[]
  /** `undefined`: no value. */
  readonly value: Value | undefined
}

/** The cell of a value that was never written, or was forgotten. */
export const NO_CELL: Cell<never> = { operations: [], value: undefined }

/** How many replicas are remembered as writers of one value. */
const MAX_WRITERS = 32

/** Cells in a store that all replicas reach. Its methods reject if the store fails; `deadline` is on `performance.now()`. */
export interface RemoteCells<Value> {
  isUp(): boolean
  read(key: SessionKey, deadline: number): Promise<Cell<Value>>
  /** Writes `next` if the cell is `expected` and returns `undefined`; else returns the current cell. */
  replace(
    key: SessionKey,
    expected: Cell<Value>,
    next: Cell<Value>,
    ttl: number,
    deadline: number,
  ): Promise<Cell<Value> | undefined>
}

/** How cells are kept, merged and bounded. */
export interface CellOptions<Value> {
  readonly remote: RemoteCells<Value>
  /**
   * Merges `local`, which began as `base` and may have been removed, with the store's value. `isLost`: the store has lost its
   * data since, and nobody knows what the two have in common; then there is no `base`.
   */
  readonly merge: (
    base: Value | undefined,
    local: Value | undefined,
    remote: Value,
    isLost: boolean,
  ) => Value | undefined
  /** If the store has lost a value, this replica's copy is written again, or merged with what others have written since. */
  readonly restores: boolean
  /** Marks a value that the store cannot confirm: other replicas may have changed it since. */
  readonly doubt: (value: Value) => Value
  /** Returns a value that is small enough to be kept. */
  readonly bound: (value: Value) => Value
  /** Returns the bytes of a value in memory, roughly. */
  readonly sizeOf: (value: Value) => number
  /** The number of copies. */
  readonly max: number
  /** The bytes of all copies. */
  readonly maxBytes: number
  /** Milliseconds since the last change until a value is forgotten. */
  readonly ttl: number
  /** Milliseconds that the store may take for one answer. */
  readonly timeout: number
  readonly now: () => number
  /** The unique name of this replica. */
  readonly replica: string
  /** Called for each change that the store did not execute. */
  readonly lost: () => void
}

/** An operation whose outcome is unknown, with this replica's value after it. */
interface Unsettled<Value> {
  readonly operation: string
  readonly local: Value | undefined
}

/** A value that was changed here while the store could not be reached. */
interface Detached<Value> {
  readonly base: Value | undefined
  readonly local: Value | undefined
  readonly unsettled: readonly Unsettled<Value>[]
}

/** The copy of one value. */
interface Slot<Value> {
  /** The store's cell when it was last read or written. */
  readonly known: Cell<Value>
  readonly detached?: Detached<Value> | undefined
}

/** A change that waits or is being written. */
interface Waiting<Value> {
  /** Runs the change; returns the same value if the change throws. */
  readonly apply: (value: Value | undefined) => Value | undefined
  /** Gives the caller the result of the last run. */
  readonly settle: () => void
  readonly fail: (error: unknown) => void
  readonly ttl: number
}

interface Replica<Value> {
  readonly options: CellOptions<Value>
  readonly slots: Shelf<Slot<Value>>
  /** Waiting changes, for each key that is being written. */
  readonly queues: Map<SessionKey, Waiting<Value>[]>
  operations: number
}

/** Values with copies in this replica. */
export interface Cells<Value> {
  update<Result>(
    key: SessionKey,
    change: (value: Value | undefined) => { readonly value: Value | undefined; readonly result: Result },
    ttl?: number,
  ): Promise<Result>
  /** Returns the store's value; if the store fails, this replica's copy, and calls `missed`. */
  get(key: SessionKey, missed?: () => void): Promise<Value | undefined>
  /** Returns this replica's copy. */
  peek(key: SessionKey): Value | undefined
  /** Returns the keys of all copies. */
  keys(): SessionKey[]
  /** Writes the changes that were made while the store failed. */
  heal(): Promise<void>
}

/** So many races can be lost only if something goes on writing without end. */
const MAX_ATTEMPTS = 100

/** How many values are healed at a time. */
const HEALED_AT_ONCE = 16

/** How many unsettled operations are kept. The next successful write settles them, and few fail in a row. */
const MAX_UNSETTLED = 4

function peek<Value>(slot: Slot<Value> | undefined): Value | undefined {
  return slot?.detached ? slot.detached.local : slot?.known.value
}

function settled<Value>(detached: Detached<Value>, operations: readonly string[]): Detached<Value> {
  const at = detached.unsettled.findLastIndex(({ operation }) => operations.includes(operation))
  const done = detached.unsettled[at]
  return done
    ? { base: done.local, local: detached.local, unsettled: detached.unsettled.slice(at + 1) }
    : detached
}

/** Returns whether this replica made an operation. */
function isOwn<Value>({ options }: Replica<Value>, operation: string): boolean {
  return operation.startsWith(`${options.replica}.`)
}

/**
 * Returns whether the store has lost its data since this replica last wrote the value, which another replica has begun anew: a
 * cell holds the newest operation of each writer.
 */
function wasBegunAnew<Value>(
  replica: Replica<Value>,
  { known, detached }: Slot<Value>,
  { operations }: Cell<Value>,
): boolean {
  const newest = known.operations.find((operation) => isOwn(replica, operation))
  const isSettled = detached?.unsettled.some(({ operation }) => operations.includes(operation))
  return newest !== undefined && !operations.includes(newest) && !isSettled
}

function doubted<Value>({ doubt }: CellOptions<Value>, value: Value | undefined): Value | undefined {
  return value === undefined ? undefined : doubt(value)
}

/** Returns the value to which waiting changes apply, given the store's cell. */
function startOf<Value>(replica: Replica<Value>, slot: Slot<Value> | undefined, current: Cell<Value>) {
  const { options } = replica
  const { value } = current
  if (!slot) return value
  const { known, detached } = slot
  if (value === undefined)
    return detached ? detached.local : options.restores ? doubted(options, known.value) : undefined
  if (options.restores && wasBegunAnew(replica, slot, current))
    return doubted(options, options.merge(undefined, peek(slot), value, true))
  if (!detached) return value
  const { base, local } = settled(detached, current.operations)
  return options.merge(base, local, value, false)
}

function applyAll<Value>(
  { options }: Replica<Value>,
  waiting: readonly Waiting<Value>[],
  start: Value | undefined,
): Value | undefined {
  const value = waiting.reduce((before, { apply }) => apply(before), start)
  return value === undefined ? undefined : options.bound(value)
}

function put<Value>(
  { slots }: Replica<Value>,
  key: SessionKey,
  slot: Slot<Value>,
  entry: Entry<Slot<Value>> | undefined,
  ttl: number,
): void {
  // The entry may have been dropped since.
  setValue(slots, key, slot, entry && entryOf(slots, key) === entry ? entry : undefined, ttl)
}

/** Makes the changes on this replica's copy only. `operation`: the write whose outcome is unknown. */
function keepHere<Value>(
  replica: Replica<Value>,
  key: SessionKey,
  waiting: readonly Waiting<Value>[],
  current: Cell<Value>,
  operation: string | undefined,
): void {
  const entry = entryOf(replica.slots, key)
  const slot = entry?.value
  const before: Detached<Value> = slot?.detached
    ? settled(slot.detached, current.operations)
    : { base: current.value, local: startOf(replica, slot, current), unsettled: [] }
  const local = applyAll(replica, waiting, doubted(replica.options, before.local))
  const unsettled = operation === undefined ? [] : [{ operation, local }]
  const detached: Detached<Value> = {
    base: before.base,
    local,
    unsettled: [...before.unsettled, ...unsettled].slice(-MAX_UNSETTLED),
  }
  put(replica, key, { known: current, detached }, entry, waiting[0]?.ttl ?? replica.options.ttl)
  for (const { settle } of waiting) {
    settle()
    replica.options.lost()
  }
}

/** Makes changes in the store, or in the copy if that fails. */
async function write<Value>(
  replica: Replica<Value>,
  key: SessionKey,
  waiting: readonly Waiting<Value>[],
): Promise<void> {
  const { options, slots } = replica
  const entry = entryOf(slots, key)
  const slot = entry?.value
  const [first] = waiting
  if (!first) return
  const { ttl } = first
  const operation = `${options.replica}.${(replica.operations++).toString(36)}`
  let current: Cell<Value> = slot?.known ?? NO_CELL
  let isSent = false
  if (!options.remote.isUp()) return keepHere(replica, key, waiting, current, undefined)
  try {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const value = applyAll(replica, waiting, startOf(replica, slot, current))
      const others = current.operations.filter((other) => !isOwn(replica, other))
      const next = { operations: [operation, ...others].slice(0, MAX_WRITERS), value }
      isSent = true
      // A lost race says that the store answers: each attempt has its own deadline.
      const deadline = performance.now() + options.timeout
      const found = await options.remote.replace(key, current, next, ttl, deadline)
      isSent = false
      if (found === undefined) {
        put(replica, key, { known: value === undefined ? NO_CELL : next }, entry, ttl)
        for (const { settle } of waiting) settle()
        return
      }
      current = found
    }
  } catch {}
  keepHere(replica, key, waiting, current, isSent ? operation : undefined)
}

/** Writes the waiting changes of a key until none is left. */
async function writeAll<Value>(replica: Replica<Value>, key: SessionKey): Promise<void> {
  for (;;) {
    const waiting = replica.queues.get(key)
    if (!waiting || waiting.length === 0) break
    replica.queues.set(key, [])
    try {
      await write(replica, key, waiting)
    } catch (error) {
      // The value does not belong to its kind: later changes must not wait for ever.
      for (const { fail } of waiting) fail(error)
    }
  }
  replica.queues.delete(key)
}

function enqueue<Value>(replica: Replica<Value>, key: SessionKey, change: Waiting<Value>): void {
  const queue = replica.queues.get(key)
  if (queue) {
    queue.push(change)
    return
  }
  replica.queues.set(key, [change])
  void writeAll(replica, key)
}

function update<Value, Result>(
  replica: Replica<Value>,
  key: SessionKey,
  change: (value: Value | undefined) => { readonly value: Value | undefined; readonly result: Result },
  ttl = replica.options.ttl,
): Promise<Result> {
  return new Promise((resolve, reject) => {
    let settle = () => {}
    enqueue(replica, key, {
      apply(value) {
        try {
          const { value: next, result } = change(value)
          settle = () => resolve(result)
          return next
        } catch (error) {
          settle = () => reject(error)
          return value
        }
      },
      settle: () => settle(),
      fail: reject,
      ttl,
    })
  })
}

async function get<Value>(
  { options, slots }: Replica<Value>,
  key: SessionKey,
  missed = options.lost,
): Promise<Value | undefined> {
  const slot = peekValue(slots, key)
  if (slot?.detached || !options.remote.isUp()) return peek(slot)
  try {
    return (await options.remote.read(key, performance.now() + options.timeout)).value
  } catch {
    missed()
    return peek(peekValue(slots, key))
  }
}

async function heal<Value>(replica: Replica<Value>): Promise<void> {
  const { slots, options } = replica
  const detached = [...slots.entries.keys()].filter((key) => peekValue(slots, key)?.detached !== undefined)
  const next = async (): Promise<void> => {
    for (let key = detached.pop(); key !== undefined && options.remote.isUp(); key = detached.pop())
      // If a value can't be merged, the next request that uses it fails in the same way and reports it.
      await update(replica, key, (value) => ({ value, result: undefined })).catch(() => undefined)
  }
  await Promise.all(Array.from({ length: HEALED_AT_ONCE }, next))
}

/** Creates the cells of one kind of values. */
export function createCells<Value>(options: CellOptions<Value>): Cells<Value> {
  const { max, maxBytes, ttl, now, sizeOf } = options
  const sizeOfSlot = (slot: Slot<Value>): number => {
    const value = peek(slot)
    return value === undefined ? 1 : sizeOf(value)
  }
  const replica: Replica<Value> = {
    options,
    slots: createShelf({ max, maxBytes, ttl, now, sizeOf: sizeOfSlot }),
    queues: new Map(),
    operations: 0,
  }
  return {
    update: (key, change, valueTtl) => update(replica, key, change, valueTtl),
    get: (key, missed) => get(replica, key, missed),
    peek: (key) => peek(peekValue(replica.slots, key)),
    keys: () => [...replica.slots.entries.keys()],
    heal: () => heal(replica),
  }
}
