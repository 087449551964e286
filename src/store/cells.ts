/**
 * Values that replicas share by compare-and-set, and go on changing by themselves while the store can't be reached.
 *
 * A replica tries each change on its own recent copy; where another replica was faster it gets the current value and runs
 * the change again. Changes of one value that come while another is on its way are written together. Where the store fails,
 * the changes are kept here beside the value they began from, and joined with the store's value when it is back.
 */
import { createShelf, type Entry, entryOf, peekValue, type Shelf, setValue } from './shelf.ts'
import type { SessionKey } from './store.ts'

/** A value with the newest operation of each replica that wrote it, the newest first: that one is its version. */
export interface Cell<Value> {
  readonly operations: readonly string[]
  /** `undefined`: there is none. */
  readonly value: Value | undefined
}

/** Where nothing was written, or it was forgotten. */
export const NO_CELL: Cell<never> = { operations: [], value: undefined }

/** More replicas do not write one value at a time. */
const MAX_WRITERS = 32

/** Cells in a store that all replicas reach. Its methods reject where the store fails; `deadline` is on `performance.now()`. */
export interface RemoteCells<Value> {
  isUp(): boolean
  read(key: SessionKey, deadline: number): Promise<Cell<Value>>
  /** Writes `next` if the cell is `expected`; returns `undefined` where it did, else the cell that is there. */
  replace(
    key: SessionKey,
    expected: Cell<Value>,
    next: Cell<Value>,
    ttl: number,
    deadline: number,
  ): Promise<Cell<Value> | undefined>
}

export interface CellOptions<Value> {
  readonly remote: RemoteCells<Value>
  /** Joins `local`, which began as `base` and may have been removed, with the store's value. */
  readonly merge: (base: Value | undefined, local: Value | undefined, remote: Value) => Value | undefined
  /** A value that the store has lost is written again from this replica's copy. */
  readonly restores: boolean
  /** Makes a value small enough to be kept. */
  readonly bound: (value: Value) => Value
  /** Bytes that a value takes in memory, roughly. */
  readonly sizeOf: (value: Value) => number
  /** Bounds of the copies. */
  readonly max: number
  readonly maxBytes: number
  /** Milliseconds since the last change. */
  readonly ttl: number
  /** Milliseconds that the store may take for one answer. */
  readonly timeout: number
  readonly now: () => number
  /** Names this replica; no other one has it. */
  readonly replica: string
  /** Called for each change that the store did not take. */
  readonly lost: () => void
}

/** An operation whose end is not known, and what this replica's value was with it. */
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

/** What a replica knows of one value. */
interface Slot<Value> {
  /** As the store had it last. */
  readonly known: Cell<Value>
  readonly detached?: Detached<Value> | undefined
}

/** One change that waits, or is on its way. */
interface Waiting<Value> {
  /** Runs the change; returns the value as it was where the change throws. */
  readonly apply: (value: Value | undefined) => Value | undefined
  /** Gives its caller what came of the last run. */
  readonly settle: () => void
  readonly fail: (error: unknown) => void
  readonly ttl: number
}

interface Replica<Value> {
  readonly options: CellOptions<Value>
  readonly slots: Shelf<Slot<Value>>
  /** What waits for each key that a write is on its way for. */
  readonly queues: Map<SessionKey, Waiting<Value>[]>
  operations: number
}

export interface Cells<Value> {
  update<Result>(
    key: SessionKey,
    change: (value: Value | undefined) => { readonly value: Value | undefined; readonly result: Result },
    ttl?: number,
  ): Promise<Result>
  /** As the store has it; as this replica has it where the store can't be asked. */
  get(key: SessionKey): Promise<Value | undefined>
  /** What this replica knows, without asking the store. */
  peek(key: SessionKey): Value | undefined
  /** Keys of all copies. */
  keys(): SessionKey[]
  /** Writes what was changed while the store could not be reached. */
  heal(): Promise<void>
}

/** So many races can be lost only if something goes on writing without end. */
const MAX_ATTEMPTS = 100

/** So many values are healed at a time. */
const HEALED_AT_ONCE = 16

/** An operation that was not settled is settled by the first write that succeeds after it; few fail in a row. */
const MAX_UNSETTLED = 4

function settled<Value>(detached: Detached<Value>, operations: readonly string[]): Detached<Value> {
  const at = detached.unsettled.findLastIndex(({ operation }) => operations.includes(operation))
  const done = detached.unsettled[at]
  return done
    ? { base: done.local, local: detached.local, unsettled: detached.unsettled.slice(at + 1) }
    : detached
}

/** The value that waiting changes are to be made on, given the store's cell. */
function startOf<Value>({ options }: Replica<Value>, slot: Slot<Value> | undefined, current: Cell<Value>) {
  const restored = options.restores ? slot?.known.value : undefined
  if (!slot?.detached) return current.value ?? restored
  const { base, local } = settled(slot.detached, current.operations)
  return current.value === undefined ? local : options.merge(base, local, current.value)
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
  // What was put there before may have been given up since.
  setValue(slots, key, slot, entry && entryOf(slots, key) === entry ? entry : undefined, ttl)
}

/** Makes the changes on this replica's own value. `operation`: of a write whose end is not known. */
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
  const local = applyAll(replica, waiting, before.local)
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

/** Makes changes in the store, or here where that fails. */
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
  const isMine = (other: string) => other.startsWith(`${options.replica}.`)
  let current: Cell<Value> = slot?.known ?? NO_CELL
  let isSent = false
  if (!options.remote.isUp()) return keepHere(replica, key, waiting, current, undefined)
  try {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const value = applyAll(replica, waiting, startOf(replica, slot, current))
      const others = current.operations.filter((other) => !isMine(other))
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

/** Writes what waits for a key until nothing does. */
async function writeAll<Value>(replica: Replica<Value>, key: SessionKey): Promise<void> {
  for (;;) {
    const waiting = replica.queues.get(key)
    if (!waiting || waiting.length === 0) break
    replica.queues.set(key, [])
    try {
      await write(replica, key, waiting)
    } catch (error) {
      // A value that is none of its kind: what comes after it must not wait for ever.
      for (const { fail } of waiting) fail(error)
    }
  }
  replica.queues.delete(key)
}

function enqueue<Value>(replica: Replica<Value>, key: SessionKey, one: Waiting<Value>): void {
  const queue = replica.queues.get(key)
  if (queue) {
    queue.push(one)
    return
  }
  replica.queues.set(key, [one])
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

function peek<Value>(slot: Slot<Value> | undefined): Value | undefined {
  return slot?.detached ? slot.detached.local : slot?.known.value
}

async function get<Value>({ options, slots }: Replica<Value>, key: SessionKey): Promise<Value | undefined> {
  const slot = peekValue(slots, key)
  if (slot?.detached || !options.remote.isUp()) return peek(slot)
  try {
    return (await options.remote.read(key, performance.now() + options.timeout)).value
  } catch {
    options.lost()
    return peek(peekValue(slots, key))
  }
}

async function heal<Value>(replica: Replica<Value>): Promise<void> {
  const { slots, options } = replica
  const detached = [...slots.entries.keys()].filter((key) => peekValue(slots, key)?.detached !== undefined)
  const next = async (): Promise<void> => {
    for (let key = detached.pop(); key !== undefined && options.remote.isUp(); key = detached.pop())
      // One that can't be joined is joined in vain by the request that uses it next, which says so.
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
    update: (key, change, ofItsKind) => update(replica, key, change, ofItsKind),
    get: (key) => get(replica, key),
    peek: (key) => peek(peekValue(replica.slots, key)),
    keys: () => [...replica.slots.entries.keys()],
    heal: () => heal(replica),
  }
}
