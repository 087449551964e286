/** What the first answers of conversations took that nothing names before their second request. */
import type { FirstAnswer } from '../core/session/session.ts'
import type { SessionKey, Store, ValueKind } from '../store/store.ts'

/** How many conversations that began alike may wait for their second request. */
const MAX_WAITING = 64

/** Oldest first. */
const UNCLAIMED_USAGE: ValueKind<readonly FirstAnswer[]> = { name: 'unclaimed_usage', empty: [] }

/** Keeps the first answer of a conversation that has no name yet, under a key made of what was asked. */
export function keepUnclaimed(store: Store, key: SessionKey, first: FirstAnswer): Promise<void> {
  return store.updateValue(UNCLAIMED_USAGE, key, (waiting) => ({
    value: [...waiting, first].slice(-MAX_WAITING),
    result: undefined,
  }))
}

/** Takes the newest one out that was kept under a key: of several conversations that began alike, any will do. */
export function takeUnclaimed(store: Store, key: SessionKey): Promise<FirstAnswer | undefined> {
  return store.updateValue(UNCLAIMED_USAGE, key, (waiting) => ({
    value: waiting.length > 1 ? waiting.slice(0, -1) : undefined,
    result: waiting.at(-1),
  }))
}
