/** Counts requests that Governor does not guard, or only in part, and says so once for each session. */
import type { Gap } from '../core/gaps.ts'
import { NEW_SESSION } from '../core/session/session.ts'
import { isFirst } from '../store/shared-values.ts'
import { sessionKey } from '../store/store.ts'
import { unlessLost } from './fault.ts'
import type { Services } from './services.ts'
import { namesOf, type SessionPlace } from './session/find-session.ts'

/** Counts a gap, which is news once in its session, or of its tenant where no session is known. Never rejects. */
export async function noteGap({ store, emit }: Services, reason: Gap, found: SessionPlace): Promise<void> {
  const { tenant, id } = found
  const key = id === undefined ? undefined : sessionKey(tenant, id)
  const isNew = async () => {
    if (!key || !(await store.get(key))) return isFirst(store, `gap ${reason} ${key ?? tenant}`)
    return store.update(key, (session = NEW_SESSION) => {
      const { gaps = [] } = session
      const result = !gaps.includes(reason)
      return { session: result ? { ...session, gaps: [...gaps, reason] } : session, result }
    })
  }
  const isNews = await unlessLost(emit, isNew(), false)
  emit({ kind: 'failed_open', reason, isNews, ...namesOf(found) })
}
