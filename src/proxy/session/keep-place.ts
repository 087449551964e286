/** Lets clients continue, by its id, from an answer that Governor made itself: the provider does not know it. */
import { nameOf } from '../../core/hash.ts'
import { presentable } from '../../core/text/presentable.ts'
import type { DialectRequest } from '../../dialect/dialect.ts'
import { LINKS, LINKS_AT_ONCE, type Link, sessionKey } from '../../store/store.ts'
import type { Exchange } from '../begin-exchange.ts'
import { changeValue, unlessLost } from '../fault.ts'
import type { Services } from '../services.ts'
import { idBegunBy, type SessionPlace, tenantOf } from './find-session.ts'

/** Keeps what Governor adds where a client continues from a response. `linked`: what it would continue otherwise. */
export async function savePending(
  services: Services,
  { tenant, id, name = '' }: SessionPlace,
  response: string,
  pending: Pick<Link, 'pendingResults' | 'redirectTo'>,
  linked?: Link,
): Promise<void> {
  const begun = idBegunBy(response)
  const own: Link = id === undefined ? (linked ?? { id: begun, session: begun }) : { id, session: name }
  const key = sessionKey(tenant, presentable(response))
  await changeValue(services, LINKS, key, (link) => ({ ...(link ?? own), ...pending }))
}

/**
 * Returns the id of an answer to a request that is not sent, once the request that continues from it brings what the
 * provider then misses; `undefined` if the provider would not have stored the answer. `known`: its session, if that is.
 */
export async function keepPlace(
  { services, client, route, fingerprint }: Exchange,
  sent: DialectRequest,
  known: SessionPlace | undefined,
): Promise<string | undefined> {
  const { stored } = sent
  const found = known ?? { tenant: tenantOf(client.head.headers, route, services) }
  // A request may be sent again and again, and has one place.
  const unique = fingerprint === undefined ? services.newId() : nameOf(fingerprint, found.id ?? '')
  const { id, ...pending } = stored?.skippedResults(unique) ?? {}
  const place = stored?.isConversation ? stored.previous : id
  if (id === undefined || place === undefined) return undefined
  const linked = found.id === undefined ? await linkOf(services, sent, found.tenant) : undefined
  await savePending(services, found, place, pending, linked)
  return id
}

/** Returns the link of what a request continues from, also of one that is no step of a run. */
export async function linkOf(
  { store, emit }: Services,
  { stored }: DialectRequest,
  tenant: string,
): Promise<Link | undefined> {
  const { previous } = stored ?? {}
  if (previous === undefined) return undefined
  // Most such responses have no link, and no client waits for one: Governor's own answers have theirs before they go.
  return unlessLost(emit, store.value(LINKS_AT_ONCE, sessionKey(tenant, presentable(previous))), undefined)
}

/** Forgets the results that a conversation at the provider has got by now. */
export async function forgetPending(services: Services, { stored }: DialectRequest, tenant: string): Promise<void> {
  const { previous } = stored ?? {}
  if (previous === undefined || !stored?.isConversation) return
  await savePending(services, { tenant }, previous, { pendingResults: [] })
}
