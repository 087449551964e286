/** Finds the session of a request by an id, a response or its conversation, and links responses to it. */

import type { Conversation } from '../../core/conversation/conversation.ts'
import { type Hash, hashOf, nameOf } from '../../core/hash.ts'
import type { LaterAnswer } from '../../core/session/later-answer.ts'
import { beginningsOf, callsLast, type RequestFacts } from '../../core/session/request-facts.ts'
import type { FirstAnswer, RelayedAnswer, Session } from '../../core/session/session.ts'
import { presentable } from '../../core/text/presentable.ts'
import type { DialectRequest } from '../../dialect/dialect.ts'
import { KIMI_SESSION } from '../../dialect/shared/request.ts'
import { credentialsOf } from '../../http/credentials.ts'
import { headerOf, type RawHeaders } from '../../http/headers.ts'
import {
  idOf,
  LINKS,
  type Link,
  RELAYED_CALLS,
  type RelayedCall,
  type Store,
  sessionKey,
  type ValueKind,
} from '../../store/store.ts'
import type { Answered } from '../../usage/response-observer.ts'
import type { Route } from '../door/route.ts'
import { unlessLost } from '../fault.ts'
import type { Services } from '../services.ts'

/** The session of a request. */
export interface FoundSession {
  readonly tenant: string
  /** Its id in the store; unset if nothing identifies the session yet. */
  readonly id?: string | undefined
  /** Its id as the client knows it; set where `id` is. */
  readonly name?: string | undefined
  /** The client sends this id itself. */
  readonly isNamed: boolean
  /** It was found by the calls that its client got. */
  readonly isRelayed?: boolean
  /** Several conversations got calls with the ids that it shows, so that the ids identify none. */
  readonly isAmbiguous?: boolean
  /** Identifies the conversation's first request; set if the session is derived from how the conversation began. */
  readonly prompt?: string | undefined
  /** The first state of a session that the store does not contain yet; unset if that is not known. */
  readonly begun?: Session | undefined
  /** The id of the call, or of the response, that told it. */
  readonly begunBy?: string | undefined
  /** What is known of the response that the request continues. */
  readonly linked?: Link | undefined
  /** Its session is a part of another one's tree: `id` and `name` are of that one, and this is its place there. */
  readonly inTree?: Tree & { readonly thread: string }
  /** The id of the conversation that the provider adds the response to. */
  readonly conversation?: string | undefined
}

/** First answers, kept until the second request gives their conversation an id, by prompt; oldest first. */
export const UNCLAIMED_USAGE: ValueKind<readonly FirstAnswer[]> = { name: 'unclaimed_usage', empty: [] }

/** Returns a hash of the credentials of a request, which distinguishes tenants and reveals no key. */
export function tenantOf(
  headers: RawHeaders,
  { path }: { readonly path: string },
  { credentialPlaces }: Pick<Services, 'credentialPlaces'>,
): string {
  return nameOf(credentialsOf(headers, path, credentialPlaces)).slice(0, 16)
}

/**
 * Returns the session of a request. What a store that fails would know counts as unknown, unless `lost`, which gets the
 * fault, throws it.
 */
export async function findSession(
  services: Services,
  headers: RawHeaders,
  tenant: string,
  asked: DialectRequest,
  facts: RequestFacts,
  lost: (fault: unknown) => void,
): Promise<FoundSession> {
  const { store, identity, emit } = services
  const orUnknown = <Known>(stored: Promise<Known>) => unlessLost<Known | undefined>(emit, stored, undefined, lost)
  const { previous = asked.firstItem === undefined ? undefined : presentable(asked.firstItem) } = facts
  const linked = previous === undefined ? undefined : await orUnknown(store.value(LINKS, sessionKey(tenant, previous)))
  const conversation = asked.stored?.isConversation ? facts.previous : undefined
  const rest = { tenant, linked, conversation, isNamed: false }
  const named = namedSession(headers, tenant, asked, identity)
  if (named) return { ...rest, ...named }
  if (linked) return { id: linked.id, name: linked.session, begun: linked.begun, begunBy: previous, ...rest }
  const looked = (await orUnknown(relayedCalls(store, tenant, facts))) ?? []
  const found = looked.find(({ known }) => isClear(known))
  const relayed = found?.known
  if (relayed?.id !== undefined) return { id: relayed.id, name: relayed.session, isRelayed: true, ...rest }
  const derived = await orUnknown(derivedSession(store, tenant, asked.conversation, facts))
  // A conversation that does not show how it began gets an id from the answer that it does show.
  const id = derived?.id ?? (relayed && nameOf(tenant, relayed.operation))
  const isAmbiguous = relayed === undefined && looked.some(({ known }) => known?.isAmbiguous)
  const of = { isRelayed: relayed !== undefined, begun: relayed?.begun, begunBy: found?.id }
  return { id, name: id, prompt: derived?.prompt, isAmbiguous, ...of, ...rest }
}

/**
 * The session at the root of a tree, as its client names it, and the one that started this one; empty if that is the
 * root.
 */
interface Tree {
  readonly root: string
  readonly parent: string
}

const TREES: ValueKind<Tree | undefined> = { name: 'tree', empty: undefined }

/** Headers that name the agent that started this one: its session, or its thread in the same session. */
const PARENT_SESSION = ['x-parent-session-id']
const PARENT_THREADS = ['x-claude-code-parent-agent-id', 'x-codex-parent-thread-id']

/** Returns the client's name for the thread of the agent that started this one; unset if it names none. */
export function parentOf(headers: RawHeaders, { inTree }: FoundSession): string | undefined {
  return inTree?.parent ?? idInHeaders(headers, PARENT_THREADS)
}

/** Returns the client's name for the session that started this one; unset if it names none. */
export function parentSessionOf(headers: RawHeaders, { isNamed, name }: FoundSession): string | undefined {
  const parent = isNamed ? idInHeaders(headers, PARENT_SESSION) : undefined
  return parent === name ? undefined : parent
}

/** How many links above a session are followed: a client may name its sessions in a circle. */
const MAX_LINKS = 16

/**
 * Returns the root of the tree of a session that another one started, `parent`. Agents may ask before those above them
 * have named theirs, so the links are followed with each request. Rejects if the store fails.
 */
export async function rootOf(store: Store, parent: string, found: FoundSession): Promise<FoundSession> {
  const { tenant, id, name } = found
  if (id === undefined || name === undefined) return found
  const key = sessionKey(tenant, id)
  const known = await store.value(TREES, key)
  let root = known?.root ?? parent
  for (let left = MAX_LINKS; left > 0; left--) {
    const above = (await store.value(TREES, sessionKey(tenant, hashOf(root))))?.root ?? root
    if (above === root) break
    root = above
    if (root === name) return found
  }
  const tree = root === known?.root ? known : { root, parent: root === parent ? '' : parent }
  if (tree !== known) await store.updateValue(TREES, key, () => ({ value: tree, result: undefined }))
  return { ...found, id: hashOf(root), name: root, inTree: { ...tree, thread: name } }
}

/** Where the store has a session, and the client's name for it. */
export type SessionPlace = Pick<FoundSession, 'tenant' | 'id' | 'name'>

/** Returns the session that a request names in its headers, where nothing else of it is read. */
export function placeInHeaders(headers: RawHeaders, route: Route, services: Services): SessionPlace {
  const name = idInHeaders(headers, services.identity.headers)
  return { tenant: tenantOf(headers, route, services), id: name === undefined ? undefined : hashOf(name), name }
}

/** Returns how events name a session: as its client does, and by its id in the API. */
export function namesOf({ id, tenant, name }: Partial<SessionPlace> = {}) {
  const key = id === undefined || tenant === undefined ? undefined : sessionKey(tenant, id)
  return { session: name, apiId: key && idOf(key) }
}

/** Returns the session that a client names; `undefined` if it names none. */
export function namedSession(
  headers: RawHeaders,
  tenant: string,
  asked: Pick<DialectRequest, 'sessionIdAt'>,
  identity: Services['identity'],
): FoundSession | undefined {
  const name = idInHeaders(headers, identity.headers) ?? idInBody(asked, identity.bodyFields)
  // It may be a secret, and of any length: the store knows its hash.
  return name === undefined ? undefined : { tenant, id: hashOf(name), name, isNamed: true }
}

/** How many of the newest answers with calls are looked up: a harness may write one itself. */
const MAX_LOOKED_UP = 2

/**
 * Returns what is known of the newest calls that a transcript shows, the newest first; of older ones, where it does not
 * tell the session. Rejects if the store fails.
 */
async function relayedCalls(store: Store, tenant: string, { callIds }: RequestFacts) {
  const all: { readonly id: Hash; readonly known: RelayedCall | undefined }[] = []
  const look = async (id: Hash) => ({ id, known: await store.value(RELAYED_CALLS, sessionKey(tenant, id)) })
  let answers = 0
  for (let at = callIds.length - 1; at >= 0 && answers < MAX_LOOKED_UP; at--) {
    const linked = linkedIds(callIds[at] ?? [])
    if (linked.length > 0) answers++
    const [newest, ...others] = linked
    if (newest === undefined) continue
    // Where this process has linked the newest call itself, that one alone will most likely do.
    const isLikely = isClear(store.copyOf?.(RELAYED_CALLS, sessionKey(tenant, newest)))
    all.push(...(await Promise.all((isLikely ? [newest] : linked).map(look))))
    if (isLikely && !isClear(all.at(-1)?.known)) all.push(...(await Promise.all(others.map(look))))
    if (all.some(({ known }) => isClear(known))) break
  }
  return all
}

function isClear(call: RelayedCall | undefined): call is RelayedCall {
  return call !== undefined && call.isAmbiguous !== true
}

/** Returns those of an answer's call ids by which it is found: a client may drop some of its calls. */
function linkedIds(callIds: readonly Hash[]): readonly Hash[] {
  const [first, last = first] = [callIds[0], callIds.at(-1)]
  return first === undefined || last === undefined ? [] : first === last ? [last] : [last, first]
}

/**
 * Links the calls of an answer to the session that got it, or to what is known of a session that has no id yet. Returns
 * the id of a session that was claimed meanwhile.
 */
export async function linkCalls(
  store: Store,
  { tenant, id, name: session }: FoundSession,
  { callIds, operation }: Pick<RelayedAnswer, 'callIds' | 'operation'>,
  begun?: Session,
): Promise<string | undefined> {
  const to: RelayedCall = id === undefined ? { begun, operation } : { id, session, operation }
  const linked = linkedIds(callIds).map((one) =>
    store.updateValue(RELAYED_CALLS, sessionKey(tenant, one), (known) => {
      if (id === undefined && known?.id !== undefined && known.operation === operation)
        return { value: known, result: known.id }
      const isSame = !known || known.operation === operation || (id !== undefined && known.id === id)
      const isUnique = isSame && known?.isAmbiguous !== true
      return { value: isUnique ? to : ({ operation, isAmbiguous: true } as const), result: undefined }
    }),
  )
  return (await Promise.all(linked)).find((claimed) => claimed !== undefined)
}

/** Returns whether the first state of a session has nothing that its first answer used, as far as that was stated. */
export function lacksUsage({ counts }: Session): boolean {
  const { input, output, cost } = counts
  return !input && !output && !cost
}

/**
 * Claims a session whose second request has come before what its first answer used: the process that relayed the answer
 * counts it in the session then. Returns the first state of the session, and whether it was claimed.
 */
export async function claimFirst(store: Store, found: FoundSession) {
  const { tenant, id, name: session, begun, begunBy, linked } = found
  if (!begun || begunBy === undefined || id === undefined || !lacksUsage(begun)) return { begun, isClaimed: false }
  const key = sessionKey(tenant, begunBy)
  const claim = <To extends { readonly begun?: Session | undefined }>(
    known: To | undefined,
    claimed: To | undefined,
  ) => {
    const isClaimed = known?.begun !== undefined && lacksUsage(known.begun)
    return { value: isClaimed ? claimed : known, result: { begun: known?.begun ?? begun, isClaimed } }
  }
  if (!linked)
    return store.updateValue(RELAYED_CALLS, key, (known) =>
      claim(known, known && { id, session, operation: known.operation }),
    )
  return store.updateValue(LINKS, key, (known) => claim(known, known && { ...known, begun: undefined }))
}

/**
 * Returns the session of a conversation: it is derived from the first answer that the conversation's first request did
 * not hold, as examples in a prompt are answers too. So of the answers that may have begun it, the oldest one counts
 * that has a session, or whose prompt was sent as a first request. Where none is known, the newest one begins a
 * session. `undefined` for a first request. Rejects if the store fails.
 */
async function derivedSession(store: Store, tenant: string, conversation: Conversation, facts: RequestFacts) {
  const sessions = beginningsOf(facts, conversation).map(({ id, prompt }) => ({ id: nameOf(tenant, id), prompt }))
  const newest = sessions.at(-1)
  if (sessions.length === 1 && !facts.endsInUserMessage) return newest
  for (const session of sessions) {
    if ((await store.get(sessionKey(tenant, session.id))) !== undefined) return session
    if ((await store.value(UNCLAIMED_USAGE, sessionKey(tenant, session.prompt))).length > 0) return session
  }
  // A prompt ends with a message of the user after an answer that calls no tool.
  return facts.endsInUserMessage && !callsLast(facts) ? undefined : newest
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
 * has no id yet; it is stored when a client continues from one of the responses. `later`: the first one is to come.
 * Returns the session's id if it was claimed meanwhile.
 */
export async function linkResponses(
  store: Store,
  { tenant, id, name = '' }: FoundSession,
  responses: readonly string[],
  begun?: Session,
  later?: LaterAnswer,
): Promise<string | undefined> {
  if (responses.length === 0) return undefined
  const unnamed = idBegunBy(responses[0] ?? '')
  const to: Link = id === undefined ? { id: unnamed, session: unnamed, ...(begun && { begun }) } : { id, session: name }
  const linked = responses.map((response, at) =>
    store.updateValue(LINKS, sessionKey(tenant, response), (known) => {
      const isClaimed = id === undefined && known?.id === unnamed && !known.begun
      const value = later && at === 0 ? { ...to, later } : to
      return isClaimed ? { value: known, result: known.id } : { value, result: undefined }
    }),
  )
  return (await Promise.all(linked)).find((claimed) => claimed !== undefined)
}

/** Returns the id in the first of these headers that a client sent, in a form that a header can contain. */
export function idInHeaders(headers: RawHeaders, names: readonly string[]): string | undefined {
  for (const name of names) {
    const value = headerOf(headers, name)?.trim()
    if (value) return presentable(value)
  }
  return undefined
}

/** Returns the id in the first of these fields that a body has, in a form that a header can contain. */
function idInBody(
  asked: Pick<DialectRequest, 'sessionIdAt'>,
  paths: Services['identity']['bodyFields'],
): string | undefined {
  for (const path of paths) {
    const value = asked.sessionIdAt(path)
    if (value !== undefined) return presentable(value)
  }
  // What only groups requests for a cache is no session. Kimi Code sends the id of its session there, and says so.
  const cacheKey = asked.sessionIdAt(['prompt_cache_key'])
  return cacheKey !== undefined && KIMI_SESSION.test(cacheKey) ? cacheKey : undefined
}

/** Returns the name of the client's program, without its version; `undefined` if there is none. */
export function agentNameOf(headers: RawHeaders): string | undefined {
  // https://www.rfc-editor.org/rfc/rfc9110#name-user-agent: a product is a token.
  const [name] = /^[\w!#$%&'*+.^`|~-]{1,64}/.exec(headerOf(headers, 'user-agent')?.trim() ?? '') ?? []
  return name
}

/** How the id of a request begins with which Grok Build asks for a summary of the history, or for a line for people. */
const GROK_ASIDE = /^xai-(?:turn-summary|title-refresh|recap|promptsuggest|compact)-/

/**
 * Returns what a client says of a request, before any guess by its form: Claude Code to a gateway, if
 * CLAUDE_CODE_GATEWAY_HINT_HEADERS is set (https://code.claude.com/docs/en/llm-gateway-protocol), and Grok Build.
 * `isStep`: it is a step of a run; `undefined` if that is not said in a known word. `isCompacted`: its history was
 * replaced by a summary. `isByAgent`: the agent sends it by itself.
 */
export function hintsIn(headers: RawHeaders) {
  const compaction = headerOf(headers, 'x-claude-code-compaction')?.trim() ?? ''
  const kind = headerOf(headers, 'x-claude-code-request-class')?.trim() ?? ''
  const compacted = headerOf(headers, 'x-claude-code-context-compacted')?.trim() ?? ''
  // It asks for a summary of the history, or for a title, a classification or a summary for people.
  const isNoStep =
    /^(?:auto|manual|reactive)$/.test(compaction) ||
    /^(?:compaction|auxiliary)$/.test(kind) ||
    GROK_ASIDE.test(headerOf(headers, 'x-grok-req-id') ?? '')
  const isStep = isNoStep ? false : /^(?:main|subagent|workflow)$/.test(kind) || undefined
  // GitHub Copilot says who wrote the last message.
  const isByAgent = headerOf(headers, 'x-initiator')?.trim().toLowerCase() === 'agent'
  return { isStep, isCompacted: /^(?:true|1)$/i.test(compacted), isByAgent }
}
