/** Reads a request, counts it in its session, and decides how to handle it. */

import { NO_LIMITS } from '../core/budget/meters.ts'
import { type Declared, policyFor, settingsFor } from '../core/budget/policy.ts'
import { costLimit } from '../core/budget/tiers.ts'
import {
  type BudgetPolicy,
  type Decision,
  type DecisionInput,
  decide,
  decideWithoutBudget,
  observeOnly,
} from '../core/decide.ts'
import { hashBody, hashOf } from '../core/hash.ts'
import { mayBlock } from '../core/loop/escalation.ts'
import { observeTranscript, recordCalls, skipTranscript } from '../core/loop/observe.ts'
import type { LoopMode, LoopPolicy } from '../core/loop/policy.ts'
import type { LimitPair } from '../core/operator/operator-settings.ts'
import type { Asked } from '../core/operator/record-request.ts'
import type { StormPolicy } from '../core/session/error-streak.ts'
import { factsOf, isAgentic, type RequestFacts, withPrevious } from '../core/session/request-facts.ts'
import type { RunState } from '../core/session/session.ts'
import type { TranscriptState } from '../core/session/transcript.ts'
import { saidIn } from '../core/transcript/kept-transcript.ts'
import type { Dialect, DialectRequest, RequestInput } from '../dialect/dialect.ts'
import type { Lease } from '../http/buffer-budget.ts'
import { headerOf, type RawHeaders } from '../http/headers.ts'
import type { Upstream } from '../http/upstream.ts'
import { applyEdits } from '../json/edit.ts'
import type { Link } from '../store/store.ts'
import { isolated } from './fault.ts'
import { keptName } from './overflow/windows.ts'
import type { Services } from './services.ts'
import { isCompacted, isStep } from './session/client-hints.ts'
import { derivedSession } from './session/derived-session.ts'
import { agentNameOf, explicitSessionId, presentable, threadNameOf } from './session/identity.ts'
import { longestKnown } from './session/known-prefixes.ts'
import { readInTurns } from './session/read-transcript.ts'
import { openSession, type SessionHandle, type SessionLookup } from './session/session-handle.ts'

/** What is known of a request once it was counted in its session. */
export interface Evaluation {
  readonly handle: SessionHandle
  readonly runState: RunState
  readonly request: DialectRequest
  /** The body to send instead of the client's; unset if the client's own body is sent. */
  readonly bytes?: Buffer | undefined
  /** The session's id as the client knows it; unset for the first request of a session that has no id yet. */
  readonly sessionId: string | undefined
  readonly policy: BudgetPolicy
  readonly decision: Decision
}

/** A request that takes part in a tool loop, and the policies that apply to it. */
interface AgentRequest {
  readonly upstream: Upstream
  readonly headers: RawHeaders
  readonly tenant: string
  readonly request: DialectRequest
  /** All messages but the last. */
  readonly transcript: TranscriptState
  readonly facts: RequestFacts
  readonly loop: LoopPolicy
  readonly budget: BudgetPolicy
  /** What the budget limits; it is kept with the session. */
  readonly limits: LimitPair
  readonly storm: StormPolicy
  /** When it was read, in milliseconds since the epoch. */
  readonly now: number
}

/** Memory that the index of a request takes for each of its messages, beside the body, until the response is over. */
const BYTES_PER_MESSAGE = 512

/**
 * Reads a request body, counts the request in its session and decides on it. Returns `undefined` for a body that is not a
 * conversation, which is counted as unreadable, and for a conversation without tools (a title, a summary); `no_room` if
 * `lease` has none for the index of its messages.
 */
export async function evaluate(
  services: Services,
  upstream: Upstream,
  dialect: Dialect,
  headers: RawHeaders,
  input: RequestInput & { readonly tenant: string },
  lease?: Lease,
): Promise<Evaluation | 'no_room' | undefined> {
  const { harnessRegistry, prefixes, unsupportedEdits, windows } = services
  const { tenant } = input
  // No tenant can learn by timing which bytes another one has sent.
  const hashes = hashBody(input.body, `${dialect.name} ${tenant}`)
  const prefix = longestKnown(prefixes, hashes)
  const request = dialect.read({ path: input.path, body: input.body, known: prefix })
  if (!request) {
    services.emit({ kind: 'failed_open', reason: 'unreadable_body' })
    return undefined
  }
  const { conversation } = request
  if (!(isStep(headers) ?? isAgentic(conversation))) return undefined
  if (lease?.grow(conversation.length * BYTES_PER_MESSAGE) === false) return 'no_room'
  const transcript = await readInTurns(request, harnessRegistry, { hashes, known: prefix, prefixes })
  const facts = factsFor(request, transcript, hashes.whole, input.body.length, headers, services)
  const continued = facts.previous ?? firstItemOf(request)
  const linked =
    continued === undefined
      ? undefined
      : await known(services, () => services.store.linked(tenant, continued))
  const sent = withPendingResults(dialect, request, input, linked)
  const policies = policiesFor(services, upstream, conversation.model, headers)
  const agentRequest: AgentRequest = {
    upstream,
    headers,
    tenant,
    request,
    transcript,
    facts,
    loop: policies.loop,
    budget: policies.budget,
    limits: policies.limits,
    storm: policies.storm,
    now: services.now(),
  }
  await windows.refresh({ upstream, model: conversation.model })
  const handle = await openSession(services, await lookupFor(services, agentRequest, linked))
  const evaluation = evaluationOf(services, agentRequest, handle, sent)
  if (mayEdit(evaluation.decision)) await unsupportedEdits.refresh(upstream.name, conversation.model)
  // A request may wait for its response for minutes.
  conversation.forget()
  return evaluation
}

/** False if a request certainly goes upstream as it came. */
function mayEdit({ kind, speech }: Decision): boolean {
  return kind !== 'allow' || speech !== undefined
}

function factsFor(
  { isConversation, conversation, previous }: DialectRequest,
  transcript: TranscriptState,
  fingerprint: string,
  bytes: number,
  headers: RawHeaders,
  { harnessRegistry }: Services,
): RequestFacts {
  const facts = factsOf(transcript, conversation, fingerprint, harnessRegistry, bytes)
  if (isCompacted(headers)) return { ...facts, isCompacted: true }
  return previous === undefined
    ? facts
    : withPrevious(facts, conversation, presentable(previous), !isConversation)
}

function firstItemOf({ firstItem }: DialectRequest): string | undefined {
  return firstItem === undefined ? undefined : presentable(firstItem)
}

/** Returns what the store knows; `undefined` also if it fails. */
async function known<Value>({ emit }: Services, look: () => Promise<Value | undefined>) {
  try {
    return await look()
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    return undefined
  }
}

function policiesFor(
  services: Services,
  upstream: Upstream,
  model: string,
  headers: RawHeaders,
): Pick<AgentRequest, 'loop' | 'budget' | 'limits' | 'storm'> {
  const policies = services.policies()
  const asked = { model, upstream: upstream.name, header: (name: string) => headerOf(headers, name) }
  const budget = policyFor(settingsFor(policies.budget, asked), declaredIn(headers))
  return {
    loop: settingsFor(policies.loop, asked),
    budget,
    limits: budget.enabled ? { run: budget.run, session: budget.session } : UNLIMITED,
    storm: policies.storm,
  }
}

const UNLIMITED: LimitPair = { run: NO_LIMITS, session: NO_LIMITS }

const NOTHING_DECLARED: Declared = {}

/** Returns the limits that a client declares in its headers. */
function declaredIn(headers: RawHeaders): Declared {
  const iterations = wholeNumber(headerOf(headers, 'x-governor-max-iterations'))
  const toolCalls = wholeNumber(headerOf(headers, 'x-governor-max-tool-calls'))
  if (iterations === undefined && toolCalls === undefined) return NOTHING_DECLARED
  return {
    ...(iterations === undefined ? {} : { iterations }),
    ...(toolCalls === undefined ? {} : { tool_calls: toolCalls }),
  }
}

function wholeNumber(text: string | undefined): number | undefined {
  return text !== undefined && /^\d{1,9}$/.test(text.trim()) ? Number(text) : undefined
}

/** Returns in which session a request is counted, and how. */
async function lookupFor(
  services: Services,
  agentRequest: AgentRequest,
  linked: Link | undefined,
): Promise<SessionLookup> {
  const { upstream, headers, tenant, request, facts, loop, storm } = agentRequest
  const explicit = explicitSessionId(headers, request, services.identity)
  const link = explicit === undefined ? linked : undefined
  const derived =
    explicit === undefined && !link
      ? await known(services, () => derivedSession(services.store, tenant, facts))
      : undefined
  const { observeRequestCalls: follow, observeResponseCalls: note } = callObservers(services, agentRequest)
  return {
    tenant,
    // The client's name for a session may be a secret, and of any length: the store knows its hash.
    id: explicit === undefined ? (link?.id ?? derived?.id) : hashOf(explicit),
    sessionId: explicit ?? link?.session ?? derived?.id,
    derived,
    begun: link?.begun,
    thread: threadNameOf(headers, services.identity),
    facts,
    conversationId: request.isConversation ? facts.previous : undefined,
    loop,
    demands: request.demands(),
    storm,
    asked: askedOf(agentRequest, explicit),
    said: saidOf(services, agentRequest),
    target: { upstream: upstream.name, model: request.conversation.model },
    observeRequestCalls: follow,
    observeResponseCalls: note,
  }
}

/** Returns the facts about a request that operators see in its session. `name`: the client's own name for the session. */
function askedOf(
  { limits, upstream, headers, request: { conversation }, transcript }: AgentRequest,
  name: string | undefined,
): Asked {
  const newest = transcript.assistantMessages.at(-1)
  return {
    limits,
    upstream: upstream.name,
    model: keptName(conversation.model),
    agent: agentNameOf(headers),
    name,
    tools: newest ? conversation.calls(newest.index).map((call) => call.name) : NO_TOOLS,
  }
}

/** Returns what a request shows of the conversation; `undefined` where that is not kept, or could not be read. */
function saidOf(services: Services, { request }: AgentRequest): SessionLookup['said'] {
  const { keepsTranscripts, harnessRegistry, emit } = services
  if (!keepsTranscripts) return undefined
  return isolated(emit, 'transcript', () => saidIn(request.conversation, harnessRegistry)) ?? []
}

const NO_TOOLS: readonly string[] = []

/** How the calls of a request and of its response are observed: for the loop guard, or to see whether the run stagnates. */
function callObservers(
  { harnessRegistry, policies }: Services,
  { loop, budget, request, transcript, facts, now }: AgentRequest,
): Pick<SessionLookup, 'observeRequestCalls' | 'observeResponseCalls'> {
  const isStagnationAsked = budget.enabled && budget.cautionWhen === 'stagnating'
  if (!loop.enabled && !isStagnationAsked)
    return { observeRequestCalls: undefined, observeResponseCalls: undefined }
  const policy: LoopPolicy = loop.enabled ? loop : { ...loop, mode: 'observe' }
  const observed = {
    conversation: request.conversation,
    state: transcript,
    registry: harnessRegistry,
    previousStep: facts.previousStep,
  }
  return {
    observeRequestCalls: (loopState, emit, mode, { skipsHistory, skipsLast }) => {
      const current = inMode(policy, policies().observesOnly ? 'observe' : mode)
      const observe = () => observeTranscript(loopState, { skipsLast, ...observed }, current, now)
      const after = skipsHistory ? undefined : isolated(emit, 'loop_guard', observe)
      return after ?? skipTranscript(loopState, observed)
    },
    observeResponseCalls: (loopState, calls, emit) =>
      isolated(emit, 'loop_guard', () => recordCalls(loopState, calls, policy)) ?? loopState,
  }
}

/** Adds to a request the results that the provider waits for and that the client does not know. */
function withPendingResults(
  dialect: Dialect,
  request: DialectRequest,
  { path, body }: RequestInput,
  linked: Link | undefined,
): Pick<Evaluation, 'request' | 'bytes'> {
  if (!linked?.pendingResults && linked?.redirectTo === undefined) return { request, bytes: undefined }
  const edits = request.injectPendingResults?.(linked.pendingResults ?? [], linked.redirectTo) ?? []
  if (edits.length === 0) return { request, bytes: undefined }
  const bytes = applyEdits(body, edits)
  const changed = dialect.read({ path, body: bytes })
  return changed ? { request: changed, bytes } : { request, bytes: undefined }
}

/** Decides on a request that was counted. `sent`: the request as it is sent. */
function evaluationOf(
  services: Services,
  agentRequest: AgentRequest,
  handle: SessionHandle,
  { request, bytes }: Pick<Evaluation, 'request' | 'bytes'>,
): Evaluation {
  const { facts, now } = agentRequest
  const { sessionId } = handle
  // The loop guard ignores calls that are observed only for the budget.
  const hidesLoop = !agentRequest.loop.enabled && handle.runState.loop !== undefined
  const runState = hidesLoop ? { ...handle.runState, loop: undefined } : handle.runState
  const { loopState } = runState
  const loop = inMode(agentRequest.loop, runState.loopMode)
  const budget = inForce(agentRequest, runState)
  const decision = decisionOn(services, agentRequest, request, {
    runState,
    policy: budget,
    loop: loop.mode === 'observe' ? undefined : runState.loop,
    asksForSummary: facts.asksForSummary,
    mayBlock:
      loop.enabled &&
      loopState !== undefined &&
      isolated(services.emit, 'loop_guard', () => mayBlock(loopState.memory, loop, now)) === true,
  })
  return { handle, runState, request, bytes, sessionId, policy: budget, decision }
}

/** Returns the loop guard's policy, with the mode that an operator has set, if any. */
function inMode(policy: LoopPolicy, mode: LoopMode | undefined): LoopPolicy {
  return mode === undefined || mode === policy.mode ? policy : { ...policy, mode }
}

/** Returns the budget with the limits that an operator has set. They apply even if the budget is disabled. */
function inForce({ budget, limits: asked }: AgentRequest, { limits, stated }: RunState): BudgetPolicy {
  if (!limits || limits === asked) return budget
  return { ...budget, enabled: true, run: limits.run, session: limits.session, stated }
}

interface ModelAt {
  readonly upstream: Upstream
  readonly model: string
}

/** Decides after a fault in the budget: the decision about loops still applies, and a run that is over stays over. */
function decisionOn(
  services: Services,
  { upstream }: AgentRequest,
  request: DialectRequest,
  known: Omit<DecisionInput, 'contextWindow' | 'mayState'>,
): Decision {
  const { emit, windows } = services
  const { runState, policy, loop, asksForSummary, mayBlock } = known
  const { contextTokens, reductions = [] } = runState
  const decision = isolated(emit, 'budget', () => {
    const isWindowAsked = contextTokens !== undefined && policy.enabled
    const of: ModelAt = { upstream, model: request.conversation.model }
    return decide({
      runState,
      policy,
      loop,
      contextWindow: isWindowAsked ? windows.effective(of, reductions).tokens : undefined,
      mayState: mayState(policy, request),
      isUnpriced: isUnpriced(services, policy, of),
      asksForSummary,
      mayBlock,
    })
  })
  const made = decision ?? decideWithoutBudget(known)
  const final = services.policies().observesOnly ? observeOnly(made) : made
  if (final.kind === 'stop' && final.isUnpriced)
    services.noteUnpricedModel(request.conversation.model, upstream, 'refuse')
  return final
}

/** Returns true if the price of a model matters to the decision and is surely not known. */
function isUnpriced({ catalogue }: Services, policy: BudgetPolicy, { upstream, model }: ModelAt): boolean {
  if (policy.unknownPrice !== 'refuse' || costLimit(policy) === undefined) return false
  return catalogue.isLoaded && catalogue.priceOf(model, upstream) === undefined
}

/** Returns true if a statement that later requests do not repeat costs neither the provider's prompt cache nor the model's reasoning. */
function mayState({ thresholds }: BudgetPolicy, request: DialectRequest): boolean {
  // Only a tracker asks.
  if (thresholds.style !== 'tracker') return true
  return request.isKept !== true && request.bindsReasoning?.() !== true
}
