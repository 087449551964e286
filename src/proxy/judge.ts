/** Reads a guarded request and decides what becomes of it. */
import { lastMessage } from '../core/conversation.ts'
import { type Guarded, guard, made } from '../core/guard.ts'
import { hashOf } from '../core/hash.ts'
import { type LoopPolicy, mayRefuse } from '../core/loop-guard.ts'
import { type Declared, policyFor } from '../core/policy.ts'
import { readOn } from '../core/reading.ts'
import type { Position } from '../core/session.ts'
import { derivedSessionId, goingOn, isAgentic, type Sighting, sight } from '../core/sighting.ts'
import { type BudgetPolicy, decide, type Verdict } from '../core/verdict.ts'
import type { Dialect, DialectRequest } from '../dialect/dialect.ts'
import { applyEdits } from '../json/edit.ts'
import type { Link } from '../store/store.ts'
import type { ProxyContext } from './context.ts'
import { headerOf, type RawHeaders } from './headers.ts'
import { explicitSessionId, presentable, tenantOf, threadNameOf } from './identity.ts'
import { type Remembered, remember } from './remembered.ts'
import type { Upstream } from './route.ts'

export interface Judgement {
  readonly remembered: Remembered
  readonly position: Position
  readonly request: DialectRequest
  /** The body to be sent in the place of the client's own. */
  readonly bytes?: Buffer | undefined
  /** The session's id as the client knows it; `undefined` for the first request of one that has none yet. */
  readonly sessionId: string | undefined
  readonly policy: BudgetPolicy
  readonly verdict: Verdict
  /** The agent reached a limit of its own and asks for its last answer. */
  readonly endsItself: boolean
  /** There are calls that the model must not make again: its response has to be read. */
  readonly mayRefuse: boolean
}

function wholeNumber(text: string | undefined): number | undefined {
  return text !== undefined && /^\d{1,9}$/.test(text.trim()) ? Number(text) : undefined
}

const NOTHING_DECLARED: Declared = {}

/** The limits that a client sets for itself. */
function declaredIn(headers: RawHeaders): Declared {
  const iterations = wholeNumber(headerOf(headers, 'x-governor-max-iterations'))
  const toolCalls = wholeNumber(headerOf(headers, 'x-governor-max-tool-calls'))
  if (iterations === undefined && toolCalls === undefined) return NOTHING_DECLARED
  return {
    ...(iterations === undefined ? {} : { iterations }),
    ...(toolCalls === undefined ? {} : { tool_calls: toolCalls }),
  }
}

/** Calls that are followed for the budget alone are no business of the loop guard's. */
function withoutLoop({ loop: _loop, ...position }: Position): Position {
  return position
}

/** How calls are followed: for the loop guard, or only to see whether the run gets anywhere. */
function followed(loop: LoopPolicy, { cautionWhen, enabled }: BudgetPolicy): LoopPolicy | undefined {
  if (loop.enabled) return loop
  return enabled && cautionWhen === 'stagnating' ? { ...loop, mode: 'observe' } : undefined
}

/** The session that a response belongs to; a store that fails knows none. */
async function linkOf(context: ProxyContext, tenant: string, response: string): Promise<Link | undefined> {
  try {
    return await context.store.linked(tenant, response)
  } catch {
    context.emit({ kind: 'failed_open', reason: 'store' })
    return undefined
  }
}

/** The request, together with what the provider waits for and the client does not know of. */
function repaid(
  dialect: Dialect,
  request: DialectRequest,
  body: Buffer,
  link: Link | undefined,
): Pick<Judgement, 'request' | 'bytes'> {
  if (!link?.owed && link?.as === undefined) return { request }
  const edits = request.repay?.(link.owed ?? [], link.as) ?? []
  if (edits.length === 0) return { request }
  const bytes = applyEdits(body, edits)
  const read = dialect.read(bytes)
  return read ? { request: read, bytes } : { request }
}

/**
 * Judges a request body. `undefined`: not a conversation, or one without tools (a title, a summary), which is
 * relayed and not counted.
 */
export async function judge(
  context: ProxyContext,
  upstream: Upstream,
  dialect: Dialect,
  headers: RawHeaders,
  body: Buffer,
): Promise<Judgement | 'unreadable' | 'uncounted'> {
  const { registry, identity } = context
  const tenant = tenantOf(headers)
  const recollection = context.recall.begin(`${tenant}:${dialect.name}`, body.length)
  const request = dialect.read(body, recollection.recall)
  if (!request) return 'unreadable'
  const { conversation } = request
  const { reading, fingerprint } = recollection.read(request)
  const previous = request.previous === undefined ? undefined : presentable(request.previous)
  const shown = sight(reading, conversation, fingerprint, registry, body.length)
  const sighting: Sighting =
    previous === undefined ? shown : goingOn(shown, conversation, previous, !request.isConversation)
  if (!isAgentic(conversation, sighting)) return 'uncounted'
  const explicit = explicitSessionId(headers, request, identity)
  const linked = previous ?? (request.firstItem === undefined ? undefined : presentable(request.firstItem))
  const found = linked === undefined ? undefined : await linkOf(context, tenant, linked)
  const link = explicit === undefined ? found : undefined
  const sent = repaid(dialect, request, body, found)
  const derived = explicit === undefined && !link ? derivedSessionId(tenant, sighting) : undefined
  const sessionId = explicit ?? link?.session ?? derived
  // Sessions are kept by a hash of their name: it may be a secret of the client's, and of any length.
  const id = explicit === undefined ? (link?.id ?? derived) : hashOf(explicit)
  const { loop, budget } = context.policies()
  const { model } = conversation
  const asked = { model, upstream: upstream.name, header: (name: string) => headerOf(headers, name) }
  const policy = policyFor(budget, asked, declaredIn(headers))
  const following = followed(loop, policy)
  const { step } = sighting
  const settled = readOn(reading, conversation, lastMessage(conversation), registry)
  const transcript = { conversation, reading: settled, registry, goesOnFrom: step }
  const counted = remember(context, {
    tenant,
    id,
    sessionId,
    isDerived: derived !== undefined,
    begun: link?.begun,
    thread: threadNameOf(headers, identity),
    sighting,
    within: request.isConversation ? previous : undefined,
    loop,
    follow: following && ((guarded: Guarded) => guard(guarded, transcript, following)),
    note: following && ((guarded, calls) => made(guarded, calls, following)),
  })
  const remembered = counted instanceof Promise ? await counted : counted
  const position = loop.enabled ? remembered.position : withoutLoop(remembered.position)
  const isFilled = position.contextTokens !== undefined && policy.enabled
  const contextWindow = isFilled
    ? context.windows.effective({ upstream, model }, position.reductions ?? []).tokens
    : undefined
  return {
    remembered,
    position,
    request: sent.request,
    bytes: sent.bytes,
    sessionId,
    policy,
    verdict: decide(position, policy, loop.mode === 'observe' ? undefined : position.loop, contextWindow),
    endsItself: sighting.asksForSummary,
    mayRefuse: loop.enabled && position.guarded !== undefined && mayRefuse(position.guarded.memory, loop),
  }
}
