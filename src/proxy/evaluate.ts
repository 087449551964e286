/** Reads a guarded request and decides what becomes of it. */

import { type Declared, policyFor, settingsFor } from '../core/budget/policy.ts'
import { boundary, lastMessage } from '../core/conversation.ts'
import {
  type BudgetPolicy,
  type Decision,
  type DecisionInput,
  decide,
  decideWithoutBudget,
} from '../core/decide.ts'
import { hashOf, hashOfBytes } from '../core/hash.ts'
import { type LoopPolicy, mayBlock } from '../core/loop/escalation.ts'
import { type LoopState, observeTranscript, recordCalls, skipTranscript } from '../core/loop/observe.ts'
import {
  derivedSessionId,
  factsOf,
  isAgentic,
  type RequestFacts,
  withPrevious,
} from '../core/session/request-facts.ts'
import type { RunState } from '../core/session/session.ts'
import { advance, emptyTranscript, type TranscriptState } from '../core/session/transcript.ts'
import type { Dialect, DialectRequest, RequestInput } from '../dialect/dialect.ts'
import { demandsIn } from '../dialect/shared/output-demands.ts'
import { headerOf, type RawHeaders } from '../http/headers.ts'
import type { Upstream } from '../http/upstream.ts'
import { applyEdits } from '../json/edit.ts'
import type { ModelAt } from '../overflow/windows.ts'
import type { Link } from '../store/store.ts'
import { isolated } from './fault.ts'
import { explicitSessionId, presentable, tenantOf, threadNameOf } from './identity.ts'
import { readInTurns } from './read-transcript.ts'
import type { Services } from './services.ts'
import { openSession, type SessionHandle } from './session-handle.ts'

export interface Evaluation {
  readonly handle: SessionHandle
  readonly runState: RunState
  readonly request: DialectRequest
  /** The body to be sent in the place of the client's own. */
  readonly bytes?: Buffer | undefined
  /** The session's id as the client knows it; `undefined` for the first request of one that has none yet. */
  readonly sessionId: string | undefined
  readonly policy: BudgetPolicy
  readonly decision: Decision
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
function withoutLoop(runState: RunState): RunState {
  return runState.loop === undefined ? runState : { ...runState, loop: undefined }
}

/** How calls are followed: for the loop guard, or only to see whether the run gets anywhere. */
function followed(loop: LoopPolicy, { cautionWhen, enabled }: BudgetPolicy): LoopPolicy | undefined {
  if (loop.enabled) return loop
  return enabled && cautionWhen === 'stagnating' ? { ...loop, mode: 'observe' } : undefined
}

/** The session that a response belongs to; a store that fails knows none. */
async function linkOf(services: Services, tenant: string, response: string): Promise<Link | undefined> {
  try {
    return await services.store.linked(tenant, response)
  } catch {
    services.emit({ kind: 'failed_open', reason: 'store' })
    return undefined
  }
}

/** The request, together with what the provider waits for and the client does not know of. */
function withPendingResults(
  dialect: Dialect,
  request: DialectRequest,
  { path, body }: RequestInput,
  link: Link | undefined,
): Pick<Evaluation, 'request' | 'bytes'> {
  if (!link?.pendingResults && link?.redirectTo === undefined) return { request, bytes: undefined }
  const edits = request.injectPendingResults?.(link.pendingResults ?? [], link.redirectTo) ?? []
  if (edits.length === 0) return { request, bytes: undefined }
  const bytes = applyEdits(body, edits)
  const read = dialect.read({ path, body: bytes })
  return read ? { request: read, bytes } : { request, bytes: undefined }
}

/** What is to be judged. */
interface Received {
  readonly upstream: Upstream
  readonly dialect: Dialect
  readonly headers: RawHeaders
  readonly input: RequestInput
  readonly tenant: string
  readonly request: DialectRequest
}

/** What is to be judged, as far as the request itself tells. */
interface ReadRequest extends Received {
  /** Of what is settled: all messages but the last at most. */
  readonly state: TranscriptState
  readonly facts: RequestFacts
  /** What it goes on from. */
  readonly previous: string | undefined
}

/**
 * Judges a request body. `'unreadable'`: not a conversation; `'uncounted'`: one without tools (a title, a summary), which
 * is relayed and not counted.
 */
export async function evaluate(
  services: Services,
  upstream: Upstream,
  dialect: Dialect,
  headers: RawHeaders,
  input: RequestInput,
): Promise<Evaluation | 'unreadable' | 'uncounted'> {
  const tenant = tenantOf(headers, services.credentialHeaders)
  const request = dialect.read(input)
  if (!request) return 'unreadable'
  const { conversation } = request
  if (!isAgentic(conversation)) return 'uncounted'
  const end = boundary(conversation, conversation.length - 1)
  const state = await readInTurns(emptyTranscript(conversation), conversation, end, services.harnessRegistry)
  return evaluateRead(services, { upstream, dialect, headers, input, tenant, request }, state)
}

/** Judges a request whose conversation was read. */
async function evaluateRead(
  services: Services,
  received: Received,
  state: TranscriptState,
): Promise<Evaluation> {
  const { tenant, request } = received
  const { body } = received.input
  const { conversation, firstItem } = request
  const previous = request.previous === undefined ? undefined : presentable(request.previous)
  const shown = factsOf(state, conversation, hashOfBytes(body), services.harnessRegistry, body.length)
  const facts =
    previous === undefined ? shown : withPrevious(shown, conversation, previous, !request.isConversation)
  const asked: ReadRequest = { ...received, state, facts, previous }
  const linked = previous ?? (firstItem === undefined ? undefined : presentable(firstItem))
  const found = linked === undefined ? undefined : await linkOf(services, tenant, linked)
  return count(services, asked, found)
}

/** Does a statement that no later request shows leave the provider's prompt cache and the model's reasoning as they are? */
function mayState({ thresholds }: BudgetPolicy, request: DialectRequest): boolean {
  // Only a tracker asks.
  if (thresholds.style !== 'tracker') return true
  return request.isKept !== true && request.bindsReasoning?.() !== true
}

/** Decides on a request. A fault in the budget leaves what is to be said about loops, and a run that is over stays so. */
function decideOn(
  { emit, windows }: Services,
  of: ModelAt,
  request: DialectRequest,
  known: Omit<DecisionInput, 'contextWindow' | 'mayState'>,
): Decision {
  const { runState, policy, loop, asksForSummary, mayBlock } = known
  const { contextTokens, reductions = [] } = runState
  const decision = isolated(emit, 'budget', () => {
    const isWindowAsked = contextTokens !== undefined && policy.enabled
    const contextWindow = isWindowAsked ? windows.effective(of, reductions).tokens : undefined
    return decide({
      runState,
      policy,
      loop,
      contextWindow,
      mayState: mayState(policy, request),
      asksForSummary,
      mayBlock,
    })
  })
  return decision ?? decideWithoutBudget(known)
}

/** Counts a request in its session, and decides what becomes of it. `found`: the session of what it goes on from. */
async function count(services: Services, asked: ReadRequest, found: Link | undefined): Promise<Evaluation> {
  const { harnessRegistry, identity, emit, windows, unsupportedEdits } = services
  const { upstream, headers, tenant, request, state, facts } = asked
  const { conversation } = request
  const explicit = explicitSessionId(headers, request, identity)
  const link = explicit === undefined ? found : undefined
  const sent = withPendingResults(asked.dialect, request, asked.input, found)
  const derived = explicit === undefined && !link ? derivedSessionId(tenant, facts) : undefined
  const sessionId = explicit ?? link?.session ?? derived
  // Sessions are kept by a hash of their name: it may be a secret of the client's, and of any length.
  const id = explicit === undefined ? (link?.id ?? derived) : hashOf(explicit)
  const policies = services.policies()
  const { model } = conversation
  const header = (name: string) => headerOf(headers, name)
  const asks = { model, upstream: upstream.name, header }
  const loop = settingsFor(policies.loop, asks)
  const policy = policyFor(settingsFor(policies.budget, asks), declaredIn(headers))
  const following = followed(loop, policy)
  const settled = advance(state, conversation, lastMessage(conversation), harnessRegistry)
  const now = services.now()
  const transcript = {
    conversation,
    state: settled,
    registry: harnessRegistry,
    previousStep: facts.previousStep,
  }
  await windows.refresh({ upstream, model })
  await unsupportedEdits.refresh(upstream.name, model)
  const handle = await openSession(services, {
    tenant,
    id,
    sessionId,
    isDerived: derived !== undefined,
    begun: link?.begun,
    thread: threadNameOf(headers, identity),
    facts,
    within: request.isConversation ? asked.previous : undefined,
    loop,
    demands: demandsIn(request.list),
    storm: policies.storm,
    target: { upstream: upstream.name, model },
    follow:
      following &&
      ((loopState: LoopState, tell) =>
        isolated(tell, 'loop_guard', () => observeTranscript(loopState, transcript, following, now)) ??
        skipTranscript(loopState, transcript)),
    note:
      following &&
      ((loopState, calls, tell) =>
        isolated(tell, 'loop_guard', () => recordCalls(loopState, calls, following)) ?? loopState),
  })
  const runState = loop.enabled ? handle.runState : withoutLoop(handle.runState)
  const { loopState } = runState
  const decision = decideOn(services, { upstream, model }, sent.request, {
    runState,
    policy,
    loop: loop.mode === 'observe' ? undefined : runState.loop,
    asksForSummary: facts.asksForSummary,
    mayBlock:
      loop.enabled &&
      loopState !== undefined &&
      isolated(emit, 'loop_guard', () => mayBlock(loopState.memory, loop, now)) === true,
  })
  return {
    handle,
    runState,
    request: sent.request,
    bytes: sent.bytes,
    sessionId,
    policy,
    decision,
  }
}
