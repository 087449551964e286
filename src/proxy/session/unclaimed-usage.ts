/** Keeps the usage of first answers until the second request gives their conversation an id. */
import type { FirstAnswer } from '../../core/session/session.ts'
import type { SessionKey, Store, ValueKind } from '../../store/store.ts'

/** How many conversations with the same beginning may wait for their second request. */
const MAX_WAITING = 64

/** Oldest first. */
const UNCLAIMED_USAGE: ValueKind<readonly FirstAnswer[]> = { name: 'unclaimed_usage', empty: [] }

/** Keeps the first answer of a conversation that has no id yet, under a key made from its prompt. */
export function keepUnclaimed(store: Store, key: SessionKey, first: FirstAnswer): Promise<void> {
  return store.updateValue(UNCLAIMED_USAGE, key, (waiting) => ({
    value: [...waiting, first].slice(-MAX_WAITING),
    result: undefined,
  }))
}

/** Removes and returns the newest answer under a key: among conversations with the same beginning any will do. */
export function takeUnclaimed(store: Store, key: SessionKey): Promise<FirstAnswer | undefined> {
  return store.updateValue(UNCLAIMED_USAGE, key, (waiting) => ({
    value: waiting.length > 1 ? waiting.slice(0, -1) : undefined,
    result: waiting.at(-1),
  }))
}

/** Returns whether a first answer waits under a key. */
export async function hasUnclaimed(store: Store, key: SessionKey): Promise<boolean> {
  return (await store.value(UNCLAIMED_USAGE, key)).length > 0
}
