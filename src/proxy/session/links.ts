/** What the store holds so that later requests find their session: links from responses, first answers. */
import { nameOf } from '../../core/hash.ts'
import type { FirstAnswer, Session } from '../../core/session/session.ts'
import { LINKS, type Link, type SessionKey, type Store, sessionKey, type ValueKind } from '../../store/store.ts'
import type { Answered } from '../../usage/observe.ts'
import { presentable } from './identity.ts'

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

/** Returns the ids by which the client may continue from an answer. */
export function idsIn(
  { conversation: kept }: FoundSession,
  { id, conversation = kept }: Pick<Answered, 'id' | 'conversation'>,
): readonly string[] {
  return [id, conversation].flatMap((one) => (one === undefined ? [] : [presentable(one)]))
}

/** Returns the session of a response; `undefined` if it was never linked, or was forgotten. */
export function linkOf(store: Store, tenant: string, response: string): Promise<Link | undefined> {
  return store.value(LINKS, sessionKey(tenant, response))
}

function link(store: Store, tenant: string, response: string, to: Link): Promise<void> {
  return store.updateValue(LINKS, sessionKey(tenant, response), () => ({ value: to, result: undefined }))
}

/** Returns the name of a session that begins in the store when a client continues from this response. */
export function nameOfUnnamed(response: string): string {
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
  const unnamed = nameOfUnnamed(responses[0] ?? '')
  const to: Link = id === undefined ? { id: unnamed, session: unnamed, ...(begun && { begun }) } : { id, session: name }
  await Promise.all(responses.map((response) => link(store, tenant, response, to)))
}

/** What Governor adds when the client continues from a response. */
export type PendingResults = Pick<Link, 'pendingResults' | 'redirectTo'>

/** Adds to the link of a response what the request that continues from it needs. */
export async function linkPendingResults(
  store: Store,
  { tenant, id, name = '' }: FoundSession,
  response: string,
  pending: PendingResults,
): Promise<void> {
  const place = presentable(response)
  const toSession = id === undefined ? undefined : { id, session: name }
  const known = (await linkOf(store, tenant, place)) ?? toSession
  if (known) await link(store, tenant, place, { ...known, ...pending })
}

/** How many conversations with the same beginning may wait for their second request. */
const MAX_WAITING = 64

/** First answers, kept until the second request gives their conversation an id; oldest first. */
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
