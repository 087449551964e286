/**
 * Notices that a store has lost all its data although the connection to it held (FLUSHALL): a value that all replicas
 * share is another one then.
 */
import { ignore } from '../core/thrown.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from './store.ts'

/** Milliseconds between two looks. */
const LOOK_MS = 1_000

/** Set by the first replica that finds none; kept for ten years. */
const MARK: ValueKind<{ readonly mark: string }> = { name: 'mark', ttl: 315_360_000_000, empty: { mark: '' } }
const KEY = sessionKey(SHARED, 'mark')

/** Creates the watch of a store. `lost`: called after each loss; what it writes is waited for at the end. */
export function createLossWatch(store: Store, newMark: () => string, lost: () => Promise<unknown>) {
  let timer: NodeJS.Timeout | undefined
  let seen = ''
  const look = async () => {
    let { mark } = await store.value(MARK, KEY)
    if (mark === seen && mark !== '') return
    const own = newMark()
    mark ||= await store.updateValue(MARK, KEY, (before) => {
      const value = before.mark ? before : { mark: own }
      return { value, result: value.mark }
    })
    const isLoss = seen !== '' && seen !== mark
    seen = mark
    if (isLoss) await lost()
  }
  return {
    /** Looks now, and goes on to. Never rejects. */
    async open(): Promise<void> {
      await look().catch(ignore)
      timer = setInterval(() => look().catch(ignore), LOOK_MS).unref()
    },
    /** Looks once more: what was lost since the last look is written before the process ends. Never rejects. */
    async close(): Promise<void> {
      clearInterval(timer)
      if (seen !== '') await look().catch(ignore)
    },
  }
}
