/** Reads a guarded request and decides what becomes of it. */

import { type Declared, policyFor, settingsFor } from '../core/budget/policy.ts'
import { boundary, lastMessage } from '../core/conversation.ts'
import { type BudgetPolicy, decide, type Verdict } from '../core/decide.ts'
import { hashOf, hashOfBytes } from '../core/hash.ts'
import { type LoopFinding, type LoopPolicy, mayRefuse } from '../core/loop/escalation.ts'
import { type Guarded, guard, made, skip } from '../core/loop/observe.ts'
import { derivedSessionId, goingOn, isAgentic, type Sighting, sight } from '../core/session/request-facts.ts'
import type { Position } from '../core/session/session.ts'
import { nothingRead, type Reading, readOn } from '../core/session/transcript.ts'
import type { Dialect, DialectRequest } from '../dialect/dialect.ts'
import { demandsIn } from '../dialect/shared/output-demands.ts'
import { headerOf, type RawHeaders } from '../http/headers.ts'
import type { Upstream } from '../http/upstream.ts'
import { applyEdits } from '../json/edit.ts'
import type { ModelAt } from '../overflow/windows.ts'
import type { Link } from '../store/store.ts'
import { isolated } from './fault.ts'
import { explicitSessionId, presentable, tenantOf, threadNameOf } from './identity.ts'
import { readInTurns } from './read-transcript.ts'
import type { ProxyContext } from './services.ts'
import { type Remembered, remember } from './session-handle.ts'

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
function withoutLoop(position: Position): Position {
  return position.loop === undefined ? position : { ...position, loop: undefined }
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
  if (!link?.owed && link?.as === undefined) return { request, bytes: undefined }
  const edits = request.repay?.(link.owed ?? [], link.as) ?? []
  if (edits.length === 0) return { request, bytes: undefined }
  const bytes = applyEdits(body, edits)
  const read = dialect.read(bytes)
  return read ? { request: read, bytes } : { request, bytes: undefined }
}

/** What is to be judged. */
interface Received {
  readonly upstream: Upstream
  readonly dialect: Dialect
  readonly headers: RawHeaders
  readonly body: Buffer
  readonly tenant: string
  readonly request: DialectRequest
}

/** What is to be judged, as far as the request itself tells. */
interface Asked extends Received {
  /** Of what is settled: all messages but the last at most. */
  readonly reading: Reading
  readonly sighting: Sighting
  /** What it goes on from. */
  readonly previous: string | undefined
}

/**
 * Judges a request body. `'unreadable'`: not a conversation; `'uncounted'`: one without tools (a title, a summary), which
 * is relayed and not counted.
 */
export async function judge(
  context: ProxyContext,
  upstream: Upstream,
  dialect: Dialect,
  headers: RawHeaders,
  body: Buffer,
): Promise<Judgement | 'unreadable' | 'uncounted'> {
  const tenant = tenantOf(headers)
  const request = dialect.read(body)
  if (!request) return 'unreadable'
  const { conversation } = request
  if (!isAgentic(conversation)) return 'uncounted'
  const end = boundary(conversation, conversation.length - 1)
  const reading = await readInTurns(nothingRead(conversation), conversation, end, context.registry)
  return judgeRead(context, { upstream, dialect, headers, body, tenant, request }, reading)
}

/** Judges a request whose conversation was read. */
async function judgeRead(context: ProxyContext, received: Received, reading: Reading): Promise<Judgement> {
  const { body, tenant, request } = received
  const { conversation, firstItem } = request
  const previous = request.previous === undefined ? undefined : presentable(request.previous)
  const shown = sight(reading, conversation, hashOfBytes(body), context.registry, body.length)
  const sighting =
    previous === undefined ? shown : goingOn(shown, conversation, previous, !request.isConversation)
  const asked: Asked = { ...received, reading, sighting, previous }
  const linked = previous ?? (firstItem === undefined ? undefined : presentable(firstItem))
  const found = linked === undefined ? undefined : await linkOf(context, tenant, linked)
  return count(context, asked, found)
}

/** Does a statement that no later request shows leave the provider's prompt cache and the model's reasoning as they are? */
function mayState({ thresholds }: BudgetPolicy, request: DialectRequest): boolean {
  // Only a tracker asks.
  if (thresholds.style !== 'tracker') return true
  return request.isKept !== true && request.bindsReasoning?.() !== true
}

/** Decides on a request. A fault in the budget leaves what is to be said about loops, and a run that is over stays so. */
function verdictOn(
  { emit, windows }: ProxyContext,
  of: ModelAt,
  position: Position,
  policy: BudgetPolicy,
  told: LoopFinding | undefined,
  request: DialectRequest,
): Verdict {
  const { contextTokens, reductions = [], ended } = position
  const verdict = isolated(emit, 'budget', () => {
    const isWindowAsked = contextTokens !== undefined && policy.enabled
    const contextWindow = isWindowAsked ? windows.effective(of, reductions).tokens : undefined
    return decide(position, policy, told, contextWindow, mayState(policy, request))
  })
  if (verdict) return verdict
  return ended ? { kind: 'repeat', answer: ended } : decide(position, { ...policy, enabled: false }, told)
}

/** Counts a request in its session, and decides what becomes of it. `found`: the session of what it goes on from. */
async function count(context: ProxyContext, asked: Asked, found: Link | undefined): Promise<Judgement> {
  const { registry, identity, emit, windows, refusals } = context
  const { upstream, headers, tenant, request, reading, sighting } = asked
  const { conversation } = request
  const explicit = explicitSessionId(headers, request, identity)
  const link = explicit === undefined ? found : undefined
  const sent = repaid(asked.dialect, request, asked.body, found)
  const derived = explicit === undefined && !link ? derivedSessionId(tenant, sighting) : undefined
  const sessionId = explicit ?? link?.session ?? derived
  // Sessions are kept by a hash of their name: it may be a secret of the client's, and of any length.
  const id = explicit === undefined ? (link?.id ?? derived) : hashOf(explicit)
  const policies = context.policies()
  const { model } = conversation
  const header = (name: string) => headerOf(headers, name)
  const asks = { model, upstream: upstream.name, header }
  const loop = settingsFor(policies.loop, asks)
  const policy = policyFor(settingsFor(policies.budget, asks), declaredIn(headers))
  const following = followed(loop, policy)
  const settled = readOn(reading, conversation, lastMessage(conversation), registry)
  const now = context.now()
  const transcript = { conversation, reading: settled, registry, goesOnFrom: sighting.step }
  await windows.refresh({ upstream, model })
  await refusals.refresh(upstream.name, model)
  const remembered = await remember(context, {
    tenant,
    id,
    sessionId,
    isDerived: derived !== undefined,
    begun: link?.begun,
    thread: threadNameOf(headers, identity),
    sighting,
    within: request.isConversation ? asked.previous : undefined,
    loop,
    demands: demandsIn(request.list),
    storm: policies.storm,
    target: { upstream: upstream.name, model },
    follow:
      following &&
      ((guarded: Guarded, tell) =>
        isolated(tell, 'loop_guard', () => guard(guarded, transcript, following, now)) ??
        skip(guarded, transcript)),
    note:
      following &&
      ((guarded, calls, tell) =>
        isolated(tell, 'loop_guard', () => made(guarded, calls, following)) ?? guarded),
  })
  const position = loop.enabled ? remembered.position : withoutLoop(remembered.position)
  const { guarded } = position
  const told = loop.mode === 'observe' ? undefined : position.loop
  return {
    remembered,
    position,
    request: sent.request,
    bytes: sent.bytes,
    sessionId,
    policy,
    verdict: verdictOn(context, { upstream, model }, position, policy, told, sent.request),
    endsItself: sighting.asksForSummary,
    mayRefuse:
      loop.enabled &&
      !position.isLate &&
      guarded !== undefined &&
      isolated(emit, 'loop_guard', () => mayRefuse(guarded.memory, loop, now)) === true,
  }
}
