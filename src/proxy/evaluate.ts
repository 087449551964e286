/** Reads a request, counts it in its session, and decides how to handle it. */

import { NO_LIMITS } from '../core/budget/meters.ts'
import { type Declared, policyFor, settingsFor } from '../core/budget/policy.ts'
import { costLimit } from '../core/budget/tiers.ts'
import { type BudgetPolicy, type Decision, decide, decideWithoutBudget, observeOnly } from '../core/decide.ts'
import { GUARDS } from '../core/guards.ts'
import { hashBody } from '../core/hash.ts'
import { inMode } from '../core/loop/patterns.ts'
import type { Request } from '../core/request.ts'
import { factsOf, isAgentic, type RequestFacts, withPrevious } from '../core/session/request-facts.ts'
import type { LimitPair, RunState } from '../core/session/session.ts'
import type { TranscriptState } from '../core/session/transcript.ts'
import type { Dialect, DialectRequest } from '../dialect/dialect.ts'
import { type Lease, type Unread, unpacked } from '../http/body.ts'
import { headerOf } from '../http/headers.ts'
import { applyEdits } from '../json/edit.ts'
import type { Link } from '../store/store.ts'
import { callFor, type Exchange } from './begin-exchange.ts'
import { isolated } from './fault.ts'
import { keptName } from './overflow/windows.ts'
import { refusalsKey, withEdits } from './request-edits.ts'
import { type FoundSession, findSession } from './session/find-session.ts'
import { agentNameOf, isCompacted, isStep, presentable, tenantOf, threadNameOf } from './session/identity.ts'
import { openSession } from './session/open-session.ts'
import { longestKnown, readInTurns } from './session/read-transcript.ts'
import type { Turn } from './turn.ts'

/** Memory that the index of a request takes for each of its messages, beside the body, until the response is over. */
const BYTES_PER_MESSAGE = 512

/**
 * Reads a request body, counts the request in its session and decides on it. Returns `undefined` for a conversation
 * without tools (a title, a summary); or why the body cannot be read, also if `lease` has no room for it.
 */
export async function evaluate(
  exchange: Exchange,
  dialect: Dialect,
  body: Buffer,
  lease?: Lease,
): Promise<Turn | Unread | undefined> {
  const { services, route } = exchange
  const { upstream } = route
  const { rawHeaders: headers } = exchange.request
  const json = await unpacked(body, headerOf(headers, 'content-encoding'), services.maxGuardedBody, lease)
  if (!Buffer.isBuffer(json)) return json
  const tenant = tenantOf(headers, route.path, services.credentialPlaces)
  // No tenant can learn by timing which bytes another one has sent.
  const hashes = hashBody(json, `${dialect.name} ${tenant}`)
  const { harnessRegistry: registry, prefixes } = services
  const known = longestKnown(prefixes, hashes)
  const asked = dialect.read({ path: route.asked, body: json, known })
  if (!asked) return 'unreadable_body'
  const { conversation, previous } = asked
  if (!(isStep(headers) ?? isAgentic(conversation))) return undefined
  if (lease?.grow(conversation.length * BYTES_PER_MESSAGE) === false) return 'no_room'
  const transcript = await readInTurns(asked, registry, { hashes, known, prefixes })
  let facts = factsOf(transcript, conversation, hashes.whole, registry, json.length)
  if (isCompacted(headers)) facts = { ...facts, isCompacted: true }
  else if (previous !== undefined)
    facts = withPrevious(facts, conversation, presentable(previous), !asked.isConversation)
  const found = await findSession(services, headers, tenant, asked, facts)
  const { sent, bytes } = withPendingResults(dialect, asked, route.asked, json, found.linked)
  const request = requestOf(exchange, asked, transcript, facts, found)
  await services.windows.refresh({ upstream, model: conversation.model })
  const { handle, runState } = await openSession(services, request, found)
  const policy = budgetInForce(request, runState)
  const decision = decideOn(exchange, request, sent, runState, policy)
  // Only a request that is edited needs to know which edits the model refuses.
  if (decision.kind !== 'allow' || decision.speech) await services.unsupportedEdits.refresh(refusalsKey(request))
  // A request may wait for its response for minutes.
  conversation.forget()
  const call = callFor(exchange, body)
  return {
    services,
    exchange,
    dialect,
    request,
    sent,
    call: bytes === json ? call : withEdits(call, bytes, []),
    bytes,
    handle,
    runState,
    policy,
    decision,
    governorHeaders: {},
    thinking: { isDropped: runState.thread.dropsThinking === true },
  }
}

const NO_TOOLS: readonly string[] = []
const UNLIMITED: LimitPair = { run: NO_LIMITS, session: NO_LIMITS }

/** Returns a request with the policies that apply to it, and the limits that its client declares in headers. */
function requestOf(
  { services, route: { upstream }, request: { rawHeaders: headers } }: Exchange,
  asked: DialectRequest,
  transcript: TranscriptState,
  facts: RequestFacts,
  found: FoundSession,
): Request {
  const { conversation } = asked
  const { budget: budgets, loop, observesOnly } = services.policies
  const header = (name: string) => headerOf(headers, name)
  const subject = { model: conversation.model, upstream: upstream.name, header }
  const declared: Declared = {
    iterations: wholeNumber(header('x-governor-max-iterations')),
    tool_calls: wholeNumber(header('x-governor-max-tool-calls')),
  }
  const budget = policyFor(settingsFor(budgets, subject), declared)
  const newest = transcript.assistantMessages.at(-1)
  return {
    now: services.now(),
    operation: services.newId(),
    conversation,
    registry: services.harnessRegistry,
    transcript,
    facts,
    demands: asked.demands(),
    tools: newest ? conversation.calls(newest.index).map((call) => call.name) : NO_TOOLS,
    thread: threadNameOf(headers, services.identity),
    name: found.isNamed ? found.name : undefined,
    isDerived: found.prompt !== undefined,
    agent: agentNameOf(headers),
    upstream: upstream.name,
    model: keptName(conversation.model),
    loop: settingsFor(loop, subject),
    budget,
    limits: budget.enabled ? { run: budget.run, session: budget.session } : UNLIMITED,
    observesOnly,
  }
}

function wholeNumber(text: string | undefined): number | undefined {
  return text !== undefined && /^\d{1,9}$/.test(text.trim()) ? Number(text) : undefined
}

/** Adds to a request the results that the provider waits for and that the client does not know. */
function withPendingResults(
  dialect: Dialect,
  asked: DialectRequest,
  path: string,
  json: Buffer,
  linked: Link | undefined,
): Pick<Turn, 'sent' | 'bytes'> {
  const { pendingResults = [], redirectTo } = linked ?? {}
  const isMissing = pendingResults.length > 0 || redirectTo !== undefined
  const edits = isMissing ? (asked.injectPendingResults?.(pendingResults, redirectTo) ?? []) : []
  if (edits.length === 0) return { sent: asked, bytes: json }
  const bytes = applyEdits(json, edits)
  const sent = dialect.read({ path, body: bytes })
  return sent ? { sent, bytes } : { sent: asked, bytes: json }
}

/** Returns the budget with the limits that an operator has set. They apply even if the budget is disabled. */
function budgetInForce({ budget, limits: asked }: Request, { run }: RunState): BudgetPolicy {
  const { limits, stated } = run
  if (!limits || limits === asked) return budget
  return { ...budget, enabled: true, run: limits.run, session: limits.session, stated }
}

/** Decides on a counted request. After a fault in the budget the decision about loops still applies. */
function decideOn(
  exchange: Exchange,
  request: Request,
  sent: DialectRequest,
  runState: RunState,
  policy: BudgetPolicy,
): Decision {
  const { services, route } = exchange
  const { emit, windows, catalogue } = services
  const { contextTokens, reductions = [] } = runState
  const { upstream } = route
  const { model } = request.conversation
  const loop = inMode(request.loop, runState.loopMode)
  const known = {
    runState,
    policy,
    loop: loop.mode === 'observe' ? undefined : runState.loop,
    asksForSummary: request.facts.asksForSummary,
    mayBlock: GUARDS.some(({ name, mayBlock }) => isolated(emit, name, () => mayBlock(request, runState))),
  }
  const decision = isolated(emit, 'budget', () => {
    const isWindowAsked = contextTokens !== undefined && policy.enabled
    const isPriceAsked = policy.unknownPrice === 'refuse' && costLimit(policy) !== undefined
    return decide({
      contextWindow: isWindowAsked ? windows.effective({ upstream, model }, reductions).tokens : undefined,
      // A tracker's statement, which later requests do not repeat, may cost the prompt cache or the model's reasoning.
      mayState: policy.thresholds.style !== 'tracker' || (!sent.isKept && !sent.bindsReasoning?.()),
      isUnpriced: isPriceAsked && catalogue.isLoaded && catalogue.priceOf(model, upstream) === undefined,
      ...known,
    })
  })
  const made = decision ?? decideWithoutBudget(known)
  const final = request.observesOnly ? observeOnly(made) : made
  if (final.kind === 'stop' && final.isUnpriced) services.noteUnpricedModel(model, upstream, 'refuse')
  return final
}
