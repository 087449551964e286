/** Finds the session of a request: by the id that the client sends, by a response that it continues, or by its conversation. */
import { hashOf, nameOf } from '../../core/hash.ts'
import type { Beginning, RequestFacts } from '../../core/session/request-facts.ts'
import { callsLast } from '../../core/session/thread.ts'
import type { DialectRequest } from '../../dialect/dialect.ts'
import type { RawHeaders } from '../../http/headers.ts'
import { type Store, sessionKey } from '../../store/store.ts'
import type { Services } from '../services.ts'
import { explicitSessionId, presentable } from './identity.ts'
import { type FoundSession, hasUnclaimed } from './links.ts'

/** Returns the session of a request. What a store that fails would know counts as unknown. */
export async function findSession(
  services: Services,
  headers: RawHeaders,
  tenant: string,
  asked: DialectRequest,
  facts: RequestFacts,
): Promise<FoundSession> {
  const { store, identity } = services
  const { previous = asked.firstItem === undefined ? undefined : presentable(asked.firstItem) } = facts
  const linked =
    previous === undefined ? undefined : await known(services, () => store.linked(tenant, previous))
  const name = explicitSessionId(headers, asked, identity)
  const conversation = asked.isConversation ? facts.previous : undefined
  const rest = { tenant, linked, conversation, isNamed: name !== undefined }
  // The client's name for a session may be a secret, and of any length: the store knows its hash.
  if (name !== undefined) return { ...rest, id: hashOf(name), name }
  if (linked) return { ...rest, id: linked.id, name: linked.session, begun: linked.begun }
  const derived = await known(services, () => derivedSession(store, tenant, facts))
  return { ...rest, id: derived?.id, name: derived?.id, prompt: derived?.prompt }
}

async function known<Value>({ emit }: Services, look: () => Promise<Value | undefined>) {
  try {
    return await look()
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    return undefined
  }
}

/**
 * Returns the session of a conversation: it is derived from the first answer that the conversation's first request did not hold, as
 * examples in a prompt are answers too. So of the answers that may have begun it, the oldest one counts that has a session, or
 * whose prompt was sent as a first request. Where none is known, the newest one begins a session. `undefined` for a first request.
 * Rejects if the store fails.
 */
async function derivedSession(
  store: Store,
  tenant: string,
  facts: RequestFacts,
): Promise<{ readonly id: string; readonly prompt: string } | undefined> {
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
