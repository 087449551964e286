/** Finds the session of a request by its id, a response or its conversation, and counts it there. */
import { hashOf, nameOf } from '../../core/hash.ts'
import type { Request } from '../../core/request.ts'
import { countRequest } from '../../core/session/count-request.ts'
import { callsLast, type RequestFacts } from '../../core/session/request-facts.ts'
import { type Changed, NEW_SESSION, type RunState } from '../../core/session/session.ts'
import { adoptFirst, type CountedRequest } from '../../core/session/transitions.ts'
import type { DialectRequest } from '../../dialect/dialect.ts'
import type { RawHeaders } from '../../http/headers.ts'
import { idOf, LINKS, type SessionKey, type Store, sessionKey } from '../../store/store.ts'
import { runEnded } from '../../telemetry/event.ts'
import { countFault, unlessLost } from '../fault.ts'
import type { Services } from '../services.ts'
import { explicitSessionId, presentable } from './identity.ts'
import { keepTranscript } from './keep-transcript.ts'
import { type FoundSession, handleOf, type SessionHandle, UNCLAIMED_USAGE } from './session-handle.ts'

/** Returns the session of a request. What a store that fails would know counts as unknown. */
export async function findSession(
  services: Services,
  headers: RawHeaders,
  tenant: string,
  asked: DialectRequest,
  facts: RequestFacts,
): Promise<FoundSession> {
  const { store, identity, emit } = services
  const { previous = asked.firstItem === undefined ? undefined : presentable(asked.firstItem) } = facts
  const linked =
    previous === undefined
      ? undefined
      : await unlessLost(emit, store.value(LINKS, sessionKey(tenant, previous)), undefined)
  const name = explicitSessionId(headers, asked, identity)
  const conversation = asked.isConversation ? facts.previous : undefined
  const rest = { tenant, linked, conversation, isNamed: name !== undefined }
  // The client's name for a session may be a secret, and of any length: the store knows its hash.
  if (name !== undefined) return { id: hashOf(name), name, ...rest }
  if (linked) return { id: linked.id, name: linked.session, begun: linked.begun, ...rest }
  const derived = await unlessLost(emit, derivedSession(store, tenant, facts), undefined)
  return { id: derived?.id, name: derived?.id, prompt: derived?.prompt, ...rest }
}

/**
 * Returns the session of a conversation: it is derived from the first answer that the conversation's first request did
 * not hold, as examples in a prompt are answers too. So of the answers that may have begun it, the oldest one counts
 * that has a session, or whose prompt was sent as a first request. Where none is known, the newest one begins a
 * session. `undefined` for a first request. Rejects if the store fails.
 */
async function derivedSession(
  store: Store,
  tenant: string,
  facts: RequestFacts,
): Promise<{ readonly id: string; readonly prompt: string } | undefined> {
  const sessions = facts.beginnings().map(({ id, prompt }) => ({ id: nameOf(tenant, id), prompt }))
  const newest = sessions.at(-1)
  if (sessions.length === 1 && !facts.endsInUserMessage) return newest
  for (const session of sessions) {
    if ((await store.get(sessionKey(tenant, session.id))) !== undefined) return session
    if ((await store.value(UNCLAIMED_USAGE, sessionKey(tenant, session.prompt))).length > 0) return session
  }
  // A prompt ends with a message of the user after an answer that calls no tool.
  return facts.endsInUserMessage && !callsLast(facts) ? undefined : newest
}

/** Counts a request. If the store fails, the request is counted by its transcript alone. */
export async function openSession(
  services: Services,
  request: Request,
  found: FoundSession,
): Promise<{ readonly handle: SessionHandle; readonly runState: RunState }> {
  const { facts, thread } = request
  const key = found.id === undefined ? undefined : sessionKey(found.tenant, found.id)
  const counted = { fingerprint: facts.fingerprint, thread }
  const { session, result: runState } = await countIn(services, request, found, key, counted)
  if (runState.loopFault) countFault(services.emit, runState.loopFault, 'loop_guard')
  const begun = key === undefined ? session : undefined
  const transcript = keepTranscript(services, request, key, runState)
  const handle = handleOf({ services, request, found, key, counted, begun, runState, transcript })
  return { handle, runState }
}

async function countIn(
  { store, emit, now }: Services,
  request: Request,
  { tenant, prompt, begun = NEW_SESSION }: FoundSession,
  key: SessionKey | undefined,
  counted: CountedRequest,
): Promise<Changed<RunState>> {
  if (key === undefined) return countRequest(begun, request)
  try {
    const { session, result } = await store.update(key, (before = begun) => {
      const changed = countRequest(before, request)
      return { session: changed.session, result: changed }
    })
    if (result.ended) emit(runEnded(result.ended, idOf(key)))
    if (prompt === undefined || !result.isNew || result.iteration !== 2) return { session, result }
    // The session got its id with its second request: the first answer counts too.
    // Among conversations with the same beginning any answer will do.
    const first = await store.updateValue(UNCLAIMED_USAGE, sessionKey(tenant, prompt), (waiting) => ({
      value: waiting.length > 1 ? waiting.slice(0, -1) : undefined,
      result: waiting.at(-1),
    }))
    if (!first) return { session, result }
    const at = now()
    const adopt = (after = session) => adoptFirst(after, counted, result, first, at, request.tools)
    return { session, result: await store.update(key, adopt) }
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    return countRequest(begun, request)
  }
}
