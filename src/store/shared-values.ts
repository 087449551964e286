/** Small values that processes share, with a copy of those in use: read at once, at most half a minute old. */
import { LRUCache } from 'lru-cache'
import { SHARED, type Store, sessionKey, type ValueKind } from './store.ts'

/** Milliseconds after which a copy is asked for anew. */
const FRESH_MS = 30_000

/** Copies of one kind; names hold what clients choose. */
const MAX_COPIES = 2_000

export interface SharedValues<Value> {
  /** The copy; the kind's empty value where there is none. */
  copyOf(name: string): Value
  /** Brings the copy up to date where it is older than half a minute; one that can't be had stays as it is. */
  refresh(name: string): Promise<void>
  /** Changes the copy at once and the value for all processes. `by` is pure, and returns the same value where nothing changes. */
  change(name: string, by: (value: Value) => Value): void
}

/** `lost` is called where the store fails. */
export function createSharedValues<Value extends object>(
  store: Store,
  kind: ValueKind<Value>,
  lost: () => void,
): SharedValues<Value> {
  const copies = new LRUCache<string, { readonly value: Value; readonly askedAt: number }>({
    max: MAX_COPIES,
  })
  const copyOf = (name: string): Value => copies.get(name)?.value ?? kind.empty
  const keep = (name: string, value: Value) => copies.set(name, { value, askedAt: performance.now() })
  return {
    copyOf,
    async refresh(name) {
      const known = copies.get(name)
      if (known && performance.now() - known.askedAt < FRESH_MS) return
      // Other requests use the copy meanwhile.
      keep(name, copyOf(name))
      try {
        keep(name, await store.value(kind, sessionKey(SHARED, name)))
      } catch {
        lost()
      }
    },
    change(name, by) {
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
