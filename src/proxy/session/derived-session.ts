/** Finds the session of a conversation for which the client sends no id. */
import { nameOf } from '../../core/hash.ts'
import type { Beginning, RequestFacts } from '../../core/session/request-facts.ts'
import { callsLast } from '../../core/session/thread.ts'
import { type Store, sessionKey } from '../../store/store.ts'
import { hasUnclaimed } from './unclaimed-usage.ts'

/** The session of a conversation. */
export interface DerivedSession {
  readonly id: string
  /** Identifies the conversation's first request. */
  readonly prompt: string
}

/**
 * Returns the session of a conversation: it is derived from the first answer that the conversation's first request did not hold, as
 * examples in a prompt are answers too. So of the answers that may have begun it, the oldest one counts that has a session, or
 * whose prompt was sent as a first request. Where none is known, the newest one begins a session. `undefined` for a first request.
 * Rejects if the store fails.
 */
export async function derivedSession(
  store: Store,
  tenant: string,
  facts: RequestFacts,
): Promise<DerivedSession | undefined> {
  const sessionOf = ({ id, prompt }: Beginning) => ({ id: nameOf(tenant, id), prompt })
  const beginnings = facts.beginnings()
  const newest = beginnings.at(-1)
  if (!newest) return undefined
  if (beginnings.length === 1 && !facts.endsInUserMessage) return sessionOf(newest)
  for (const beginning of beginnings) {
    const session = sessionOf(beginning)
    const isKnown = (await store.get(sessionKey(tenant, session.id))) !== undefined
    if (isKnown || (await hasUnclaimed(store, sessionKey(tenant, session.prompt)))) return session
  }
  // A prompt ends with a message of the user after an answer that calls no tool.
  return facts.endsInUserMessage && !callsLast(facts) ? undefined : sessionOf(newest)
}
