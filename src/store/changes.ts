/** Announces changed sessions to all processes that share a store, at most four times a second. */
import type { SessionKey, Store } from './store.ts'

const CHANNEL = 'session-changes'
/** Milliseconds for which changes are collected. */
const GATHER_MS = 250
/** Keys in one message. */
const MAX_KEYS = 500

/** A store that notes which of its sessions change. */
export interface WatchedStore {
  readonly store: Store
  /** Ends the announcements. */
  close(): void
}

/** Returns the store with announcements of its changes. `lost` is called if the store can't publish them. */
export function watchStore(inner: Store, lost: () => void): WatchedStore {
  let changed = new Set<SessionKey>()
  let timer: NodeJS.Timeout | undefined
  const tell = () => {
    timer = undefined
    const keys = [...changed]
    changed = new Set()
    for (let at = 0; at < keys.length; at += MAX_KEYS)
      inner.publish(CHANNEL, JSON.stringify(keys.slice(at, at + MAX_KEYS))).catch(lost)
  }
  const note = (key: SessionKey) => {
    changed.add(key)
    timer ??= setTimeout(tell, GATHER_MS).unref()
  }
  return {
    store: {
      ...inner,
      update(key, change) {
        const result = inner.update(key, change)
        result.then(
          () => note(key),
          () => undefined,
        )
        return result
      },
    },
    close: () => clearTimeout(timer),
  }
}

/** Calls back with the keys of sessions that changed in any process; resolves to a function that ends it. */
export function subscribeToChanges(
  store: Store,
  listener: (keys: readonly SessionKey[]) => void,
): Promise<() => Promise<void>> {
  return store.subscribe(CHANNEL, (message) => {
    const keys: unknown = JSON.parse(message)
    if (Array.isArray(keys)) listener(keys.filter((key): key is SessionKey => typeof key === 'string'))
  })
}
