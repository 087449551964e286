/** Counts requests that Governor does not guard, or only in part, and says so once for each session. */
import type { Gap } from '../core/gaps.ts'
import { NEW_SESSION } from '../core/session/session.ts'
import { isFirst } from '../store/shared-values.ts'
import { idOf, type SessionKey, type Store, sessionKey } from '../store/store.ts'
import { unlessLost } from './fault.ts'
import type { Services } from './services.ts'
import type { FoundSession } from './session/find-session.ts'

/** Counts a gap. Where no session is known, it is said once of the tenant. Never rejects. */
export async function noteGap(
  { store, emit }: Services,
  reason: Gap,
  { tenant, id, name }: Pick<FoundSession, 'tenant' | 'id' | 'name'>,
): Promise<void> {
  const key = id === undefined ? undefined : sessionKey(tenant, id)
  const isNews = await unlessLost(emit, isNew(store, reason, tenant, key), false)
  emit({ kind: 'failed_open', reason, isNews, session: name, apiId: key && idOf(key) })
}

/** Adds a gap to its session, if that is stored, and returns whether it is the first of its kind there. */
async function isNew(store: Store, gap: Gap, tenant: string, key: SessionKey | undefined): Promise<boolean> {
  if (!key || !(await store.get(key))) return isFirst(store, `gap ${gap} ${key ?? tenant}`)
  return store.update(key, (session = NEW_SESSION) => {
    const { gaps = [] } = session
    const result = !gaps.includes(gap)
    return { session: result ? { ...session, gaps: [...gaps, gap] } : session, result }
  })
}
