/**
 * The pauses that operators have set. Replicas share them by their store. A process with a store in memory keeps them
 * in a small file, so that they survive a restart; all Governors that have this file share it.
 */
import { setTimeout as pause } from 'node:timers/promises'
import { parseObject } from '../core/json-object.ts'
import { type Pause, pausesIn, withPause } from '../core/operator/pause.ts'
import { errorOf } from '../core/thrown.ts'
import { readShared, replaceShared, whileLocked } from './shared-file.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from './store.ts'

/** Milliseconds between two looks at what others have changed. */
const LOOK_MS = 500

/** The form of the value: other versions of Governor read it as far as they know its fields. */
interface StoredPauses {
  readonly version: 1
  readonly pauses: readonly Pause[]
}

/** It is kept for ten years: a pause without an end must not end by itself. */
const PAUSES: ValueKind<StoredPauses> = { name: 'pauses', ttl: 315_360_000_000, empty: { version: 1, pauses: [] } }
const KEY = sessionKey(SHARED, 'pauses')

interface PausesOptions {
  readonly store: Store
  /** `store`: replicas share them. A path: the file. Unset: they are in memory alone. */
  readonly kept: 'store' | { readonly file: string } | undefined
  /** Called for each change, also one of another process. */
  readonly changed: (pauses: readonly Pause[]) => void
  /** Called with why the file cannot be used, for people. */
  readonly failed: (problem: string) => void
}

/** Changes pauses; pure, as it may run twice. */
type PausesChange = (pauses: readonly Pause[]) => readonly Pause[]

/** Where pauses are kept beside the memory of this process. @throws if that fails. */
interface Keeper {
  read(): Promise<readonly Pause[] | undefined>
  change(by: PausesChange): Promise<readonly Pause[]>
}

/**
 * Keeps pauses in the store. Where no pause holds any more, it says so; where it has nothing, it can't be reached or
 * has lost it, and those of this process hold on. `here` returns them.
 */
function inStore(store: Store, here: () => readonly Pause[]): Keeper {
  const known = (stored: StoredPauses) => (stored === PAUSES.empty ? undefined : (pausesIn(stored) ?? []))
  return {
    read: async () => known(await store.value(PAUSES, KEY)),
    change: (by) =>
      store.updateValue(PAUSES, KEY, (before) => {
        const changed = by(known(before) ?? here())
        // Replicas compare pauses: each has one form.
        const pauses = pausesIn({ pauses: changed }) ?? []
        return { value: { ...before, version: 1 as const, pauses }, result: changed }
      }),
  }
}

function inFile(file: string, failed: (problem: string) => void): Keeper {
  const setAside = (name: string) => failed(`${file} holds no pauses: it is ${name} now`)
  const pausesInText = (text: string) => pausesIn(parseObject(text))
  const read = async () => (await readShared(file, pausesInText, `${file}.unreadable`, setAside)) ?? []
  return {
    read,
    change: (by) =>
      whileLocked(file, async () => {
        const pauses = by(await read())
        await replaceShared(file, { version: 1, pauses } satisfies StoredPauses)
        return pauses
      }),
  }
}

/** Returns a text that is the same for the same pauses, whether they were set here or have been stored. */
const textOf = (pauses: readonly Pause[]) => JSON.stringify(pausesIn({ pauses }))

const unchanged: PausesChange = (pauses) => pauses

/** The pauses as this process knows them, and what of them its keeper does not know yet. `here` gets each change. */
function createCopy(keeper: Keeper | undefined, failed: (problem: string) => void, here: () => void) {
  /** Said once until it works again. */
  let hasFailed = false
  /** Changes so far, and those of them that are not written yet. */
  let changes = 0
  let underWay = 0
  const copy = {
    current: [] as readonly Pause[],
    /** What could not be written is in this process alone. */
    isAlone: false,
    /** The pauses that are: they are written with the next change. */
    alone: [] as readonly Pause[],
    take(pauses: readonly Pause[]): void {
      if (textOf(pauses) === textOf(copy.current)) return
      copy.current = pauses
      here()
    },
    /** Takes what the keeper answers. `written`: the pauses that it knows then; unset: it was only asked. */
    async takeFrom(answer: Promise<readonly Pause[] | undefined> | undefined, written?: readonly Pause[]) {
      const asked = changes
      const isAskedBetween = !written && underWay > 0
      try {
        const pauses = await answer
        if (copy.isAlone && !written) return
        hasFailed = false
        copy.alone = copy.alone.filter((one) => !written?.includes(one))
        copy.isAlone = copy.alone.length > 0
        // An answer that was asked for before a change here, or while one is written, may not know it.
        const isNewest = asked === changes && !isAskedBetween && underWay <= Number(written !== undefined)
        if (pauses && isNewest) copy.take(copy.alone.reduce(withPause, pauses))
      } catch (error) {
        if (!hasFailed) failed(errorOf(error).message)
        hasFailed = true
        if (!written) return
        copy.isAlone = true
        copy.alone = copy.current.filter((one) => copy.alone.includes(one) || written.includes(one))
      }
    },
    /** Writes a change that has set some pauses here. Never rejects. */
    async write(by: PausesChange, set: readonly Pause[]) {
      const { alone } = copy
      underWay++
      const answer = keeper?.change((pauses) => by(alone.reduce(withPause, pauses)))
      await copy.takeFrom(answer, [...alone, ...set])
      underWay--
    },
    /** Changes them here at once. */
    change(by: PausesChange) {
      changes++
      const before = copy.current
      copy.take(by(before))
      const set = copy.current.filter((one) => !before.includes(one))
      return copy.write(by, set)
    },
  }
  return copy
}

/** Opens the pauses; nothing is read before `open`. */
export function createPauses({ store, kept, changed, failed }: PausesOptions) {
  const keeper = kept === 'store' ? inStore(store, () => copy.current) : kept && inFile(kept.file, failed)
  const listeners = new Set<() => void>()
  const copy = createCopy(keeper, failed, () => {
    changed(copy.current)
    for (const listener of listeners) listener()
  })
  let timer: NodeJS.Timeout | undefined
  const look = () => copy.takeFrom(keeper?.read())
  return {
    /** Those that were set, also some whose time is over. */
    get current() {
      return copy.current
    },
    /** Changes them here at once. Resolves when every replica knows it; never rejects. */
    async change(by: PausesChange): Promise<void> {
      await copy.change(by)
      // The others have looked twice by then.
      if (kept === 'store' && !copy.isAlone) await pause(2 * LOOK_MS)
    },
    /** Calls back after each change; returns a function that ends it. */
    subscribe(listener: () => void): () => void {
      listeners.add(listener)
      return () => void listeners.delete(listener)
    },
    /** Reads them, and goes on to look for changes of others. Never rejects. */
    async open(): Promise<void> {
      await look()
      if (keeper) timer = setInterval(look, LOOK_MS).unref()
    },
    /** Call it when the store can be reached again: it may have lost everything. Never rejects. */
    async restore(): Promise<void> {
      if (copy.alone.length > 0) await copy.write(unchanged, [])
      else if (keeper && copy.current.length > 0) await copy.takeFrom(keeper.change(unchanged))
    },
    close: () => clearInterval(timer),
  }
}
