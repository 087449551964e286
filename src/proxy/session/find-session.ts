/** Finds the session of a request by its id, a response or its conversation, and links responses to it. */
import { hashOf, nameOf } from '../../core/hash.ts'
import { callsLast, type RequestFacts } from '../../core/session/request-facts.ts'
import type { FirstAnswer, Session } from '../../core/session/session.ts'
import type { DialectRequest } from '../../dialect/dialect.ts'
import type { RawHeaders } from '../../http/headers.ts'
import { LINKS, type Link, type SessionKey, type Store, sessionKey, type ValueKind } from '../../store/store.ts'
import type { Answered } from '../../usage/response-observer.ts'
import { unlessLost } from '../fault.ts'
import type { Services } from '../services.ts'
import { explicitSessionId, presentable } from './identity.ts'

/** The session of a request. */
export interface FoundSession {
  readonly tenant: string
  /** Its id in the store; unset if nothing identifies the session yet. */
  readonly id?: string | undefined
  /** Its id as the client knows it; set where `id` is. */
  readonly name?: string | undefined
  /** The client sends this id itself. */
  readonly isNamed: boolean
  /** Identifies the conversation's first request; set if the session is derived from how the conversation began. */
  readonly prompt?: string | undefined
  /** The first state of a session that the store does not contain yet; unset if that is not known. */
  readonly begun?: Session | undefined
  /** What is known of the response that the request continues. */
  readonly linked?: Link | undefined
  /** The id of the conversation that the provider adds the response to. */
  readonly conversation?: string | undefined
}

/** What Governor adds when the client continues from a response. */
export type PendingResults = Pick<Link, 'pendingResults' | 'redirectTo'>

/** First answers, kept until the second request gives their conversation an id, by prompt; oldest first. */
const UNCLAIMED_USAGE: ValueKind<readonly FirstAnswer[]> = { name: 'unclaimed_usage', empty: [] }

/** How many conversations with the same beginning may wait for their second request. */
const MAX_WAITING = 64

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

/** Keeps the usage of an answer to a prompt until a second request shows which session it belongs to. */
export function keepFirstAnswer(store: Store, tenant: string, prompt: string, first: FirstAnswer): Promise<void> {
  return store.updateValue(UNCLAIMED_USAGE, sessionKey(tenant, prompt), (waiting) => ({
    value: [...waiting.slice(1 - MAX_WAITING), first],
    result: undefined,
  }))
}

/** Removes the newest answer to a prompt from those that wait, and returns it; `undefined` if none waits. */
export function takeFirstAnswer(store: Store, tenant: string, prompt: string): Promise<FirstAnswer | undefined> {
  return store.updateValue(UNCLAIMED_USAGE, sessionKey(tenant, prompt), (waiting) => ({
    value: waiting.length > 1 ? waiting.slice(0, -1) : undefined,
    result: waiting.at(-1),
  }))
}

/** Returns the ids by which the client may continue from an answer. */
export function idsIn(
  { conversation: kept }: FoundSession,
  answer: Pick<Answered, 'id' | 'conversation'>,
): readonly string[] {
  const { id, conversation = kept } = answer
  const ids = id === undefined ? [] : [presentable(id)]
  return conversation === undefined ? ids : [...ids, presentable(conversation)]
}

/** Returns the id of the session that begins when a client continues from its first response. */
export function idBegunBy(response: string): string {
  return nameOf('response', response)
}

/**
 * Links responses to the session of a request, so that a client can continue from them. `begun`: the session, where it
 * has no id yet; it is stored when a client continues from one of the responses.
 */
export async function linkResponses(
  store: Store,
  { tenant, id, name = '' }: FoundSession,
  responses: readonly string[],
  begun?: Session,
): Promise<void> {
  if (responses.length === 0) return
  const unnamed = idBegunBy(responses[0] ?? '')
  const to: Link = id === undefined ? { id: unnamed, session: unnamed, ...(begun && { begun }) } : { id, session: name }
  await Promise.all(responses.map((response) => linkTo(store, sessionKey(tenant, response), to)))
}

/** Keeps what the provider waits for when the client continues from a response. Rejects if the store fails. */
export async function linkResults(
  store: Store,
  { tenant, id, name = '' }: FoundSession,
  response: string,
  pending: PendingResults,
): Promise<void> {
  const place = sessionKey(tenant, presentable(response))
  const link = (await store.value(LINKS, place)) ?? (id === undefined ? undefined : { id, session: name })
  if (link) await linkTo(store, place, { ...link, ...pending })
}

function linkTo(store: Store, response: SessionKey, link: Link): Promise<void> {
  return store.updateValue(LINKS, response, () => ({ value: link, result: undefined }))
}
