/**
 * The pauses that operators have set. Replicas share them by their store. A process with a store in memory keeps them
 * in a small file, so that they survive a restart; all Governors that have this file share it.
 */
import { setTimeout as pause } from 'node:timers/promises'
import { type Pause, pausesIn } from '../core/operator/pause.ts'
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
        const pauses = by(known(before) ?? here())
        return { value: { ...before, version: 1 as const, pauses }, result: pauses }
      }),
  }
}

/** Returns the pauses in a file's text; `undefined` if it holds none. */
function pausesInText(text: string): readonly Pause[] | undefined {
  try {
    return pausesIn(JSON.parse(text))
  } catch {
    // No JSON.
    return undefined
  }
}

function inFile(file: string, failed: (problem: string) => void): Keeper {
  const setAside = (name: string) => failed(`${file} holds no pauses: it is ${name} now`)
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

/** Opens the pauses; nothing is read before `open`. */
export function createPauses({ store, kept, changed, failed }: PausesOptions) {
  const keeper = kept === 'store' ? inStore(store, () => current) : kept && inFile(kept.file, failed)
  const listeners = new Set<() => void>()
  let timer: NodeJS.Timeout | undefined
  /** Said once until it works again. */
  let hasFailed = false
  /** What could not be written is in this process alone. */
  let isAlone = false
  let current: readonly Pause[] = []
  /** Changes so far, and those of them that are not written yet. */
  let changes = 0
  let underWay = 0
  const take = (pauses: readonly Pause[]): void => {
    if (textOf(pauses) === textOf(current)) return
    current = pauses
    changed(pauses)
    for (const listener of listeners) listener()
  }
  /** Takes what the keeper answers. Never rejects. */
  const takeFrom = async (answer: Promise<readonly Pause[] | undefined> | undefined, isChange: boolean) => {
    const asked = changes
    try {
      const pauses = await answer
      if (isAlone && !isChange) return
      hasFailed = false
      isAlone = false
      // An answer that was asked for before a change here, or while one is written, may not know it.
      if (pauses && asked === changes && underWay <= Number(isChange)) take(pauses)
    } catch (error) {
      if (!hasFailed) failed(errorOf(error).message)
      hasFailed = true
      isAlone ||= isChange
    }
  }
  const look = () => takeFrom(keeper?.read(), false)
  return {
    /** Those that were set, also some whose time is over. */
    get current() {
      return current
    },
    /** Changes them here at once. Resolves when every replica knows it; never rejects. */
    async change(by: PausesChange): Promise<void> {
      changes++
      underWay++
      take(by(current))
      await takeFrom(keeper?.change(by), true)
      underWay--
      // The others have looked twice by then.
      if (kept === 'store' && !isAlone) await pause(2 * LOOK_MS)
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
      if (keeper && current.length > 0) await takeFrom(keeper.change(unchanged), false)
    },
    close: () => clearInterval(timer),
  }
}
