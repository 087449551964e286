/** Small values that processes share, with copies of those in use, which are at most half a minute old. */
import { LRUCache } from 'lru-cache'
import { atMost } from '../core/bounds/cache-bound.ts'
import { hashOf } from '../core/hash.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from './store.ts'

/** Milliseconds after which a copy is read anew. */
const FRESH_MS = 30_000

/** The most copies of one kind: names contain texts that clients choose. */
const MAX_COPIES = 2_000

const DONE_ONCE: ValueKind<{ readonly isDone: boolean }> = { name: 'once', empty: { isDone: false } }

/** Returns true to the first process that asks about an occasion, for the lifetime of an unused session. */
export function isFirst(store: Store, occasion: string): Promise<boolean> {
  return store.updateValue(DONE_ONCE, sessionKey(SHARED, hashOf(occasion)), ({ isDone }) => ({
    value: { isDone: true },
    result: !isDone,
  }))
}

/** Creates the shared values of one kind; `lost` is called whenever the store fails. */
export function createSharedValues<Value extends object>(store: Store, kind: ValueKind<Value>, lost: () => void) {
  const copies = new LRUCache<string, { readonly value: Value; readonly readAt: number }>(atMost(MAX_COPIES))
  const copyOf = (name: string): Value => copies.get(name)?.value ?? kind.empty
  const keep = (name: string, value: Value) => copies.set(name, { value, readAt: performance.now() })
  return {
    /** Returns the copy; the kind's empty value if there is none. */
    copyOf,
    /** Reads the value again if the copy is older than half a minute. Never rejects: the copy stays. */
    async refresh(name: string): Promise<void> {
      const copy = copies.get(name)
      if (copy && performance.now() - copy.readAt < FRESH_MS) return
      // Marked as read before it is: other requests use the copy meanwhile.
      keep(name, copyOf(name))
      try {
        keep(name, await store.value(kind, sessionKey(SHARED, name)))
      } catch {
        lost()
      }
    },
    /** Changes the copy at once, then the value for all. `by` is pure, and returns the same object for no change. */
    change(name: string, by: (value: Value) => Value): void {
      const before = copyOf(name)
      const after = by(before)
      if (after === before) return
      keep(name, after)
      store
        .updateValue(kind, sessionKey(SHARED, name), (value) => {
          const next = by(value)
          return { value: next, result: next }
        })
        .then((value) => void keep(name, value), lost)
    },
  }
}

/** The shared values of one kind, with their copies. */
export type SharedValues<Value extends object> = ReturnType<typeof createSharedValues<Value>>
