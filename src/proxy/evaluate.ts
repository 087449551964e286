/** Reads a request, counts it in its session, and decides how to handle it. */

import { costLimit, type LimitPair, NO_LIMITS } from '../core/budget/meters.ts'
import { settingsFor } from '../core/budget/policy.ts'
import type { Conversation } from '../core/conversation/conversation.ts'
import { labelIn } from '../core/conversation/label.ts'
import { followedSteps } from '../core/conversation/transcript.ts'
import {
  type BudgetPolicy,
  type Decision,
  type DecisionInput,
  decide,
  decideWithoutBudget,
  observeOnly,
} from '../core/decide.ts'
import { GUARDS } from '../core/guards.ts'
import { hashBody } from '../core/hash.ts'
import { inMode } from '../core/loop/patterns.ts'
import type { Pause } from '../core/operator/pause.ts'
import type { Request } from '../core/request.ts'
import { countRequest } from '../core/session/count-request.ts'
import { lacking } from '../core/session/merge.ts'
import { factsOf, isAgentic, type RequestFacts, withPrevious } from '../core/session/request-facts.ts'
import { type Changed, NEW_SESSION, type RunState, type Session } from '../core/session/session.ts'
import { adoptFirst, type CountedRequest } from '../core/session/transitions.ts'
import type { GuardEnd } from '../core/terminal.ts'
import { presentable } from '../core/text/presentable.ts'
import type { Dialect, DialectRequest } from '../dialect/dialect.ts'
import { type Lease, type Unread, unpacked } from '../http/body.ts'
import { contentEncoding } from '../http/headers.ts'
import { idOf, type Link, type SessionKey, sessionKey } from '../store/store.ts'
import { runEnded } from '../telemetry/event.ts'
import { lacksPrice } from '../usage/catalogue.ts'
import { throwAtLimit } from './at-limit.ts'
import { type AsideRequest, callFor, type Exchange } from './begin-exchange.ts'
import { allowsModel } from './door/access-key.ts'
import { countFault, isOfBody, isolated, noteFault, unlessLost } from './fault.ts'
import { noteGap } from './note-gap.ts'
import { keptName } from './overflow/windows.ts'
import { policyOf, subjectOf } from './policy-of.ts'
import { knownRefusedEdits, readAgain } from './request-edits.ts'
import type { Services } from './services.ts'
import {
  agentNameOf,
  claimFirst,
  type FoundSession,
  findSession,
  hintsIn,
  idInHeaders,
  lacksUsage,
  namedSession,
  namesOf,
  parentOf,
  parentSessionOf,
  rootOf,
  tenantOf,
  UNCLAIMED_USAGE,
} from './session/find-session.ts'
import { forgetPending, linkOf } from './session/keep-place.ts'
import { keepRequest } from './session/keep-transcript.ts'
import { longestKnown, readInTurns } from './session/read-transcript.ts'
import type { Turn } from './turn.ts'
import { beginCharge, holdLast, timeMeters } from './usage/charge.ts'
import { noteUnpricedModel } from './usage/count-bill.ts'
import { fetchedAt } from './usage/later-answer.ts'
import { noteUnfetched, noteUnfetchedIn } from './usage/observe-fetched.ts'
import { type PausedRequest, pauseFor } from './waiting/paused.ts'
import { withRates } from './waiting/slow-down.ts'

/** Memory that the index of a request takes for each of its messages, beside the body, until the response is over. */
const BYTES_PER_MESSAGE = 512

/**
 * Reads a request body, counts the request in its session and decides on it. Returns why the body cannot be read, also
 * if `lease` has no room for it; `undefined` for a conversation without tools (a title, a summary); `fault` after a
 * fault that comes twice, and is counted once. A request that is paused is not counted.
 */
export async function evaluate(...of: Parameters<typeof evaluateOnce>): Promise<Evaluated | 'fault'> {
  try {
    return await evaluateOnce(...of)
  } catch (error) {
    countFault(of[0].services.emit, error)
    if (isOfBody(error)) return undefined
  }
  return evaluateOnce(...of).catch(() => 'fault' as const)
}

type Evaluated = Turn | PausedRequest | Unread | undefined

async function evaluateOnce(exchange: Exchange, dialect: Dialect, body: Buffer, lease?: Lease): Promise<Evaluated> {
  const { services, route } = exchange
  const { headers } = exchange.client.head
  const json = await unpacked(body, contentEncoding(headers), services.maxGuardedBody, lease)
  if (!Buffer.isBuffer(json)) return json
  const tenant = tenantOf(headers, route, services)
  // No tenant can learn by timing which bytes another one has sent.
  const hashes = hashBody(json, `${dialect.name} ${tenant}`)
  exchange.fingerprint = hashes.whole
  const { harnessRegistry: registry, prefixes } = services
  const known = longestKnown(prefixes, hashes, json)
  const asked = dialect.read({ path: route.asked, query: route.query, body: json, known })
  if (!asked) return 'unreadable_body'
  const { conversation, stored } = asked
  if (!allowsModel(exchange, conversation.model)) return undefined
  const { isStep, isCompacted, isByAgent } = hintsIn(headers)
  const isAside = !(isStep ?? isAgentic(conversation, registry))
  if (isAside) {
    const itself = namedSession(headers, tenant, asked, services.identity)
    const named = itself && (await inTree(exchange, conversation, itself))
    const linked = await linkOf(services, asked, tenant)
    const { sent, bytes, call } = withPendingResults(exchange, asked, body, json, linked)
    const pause = pauseFor(exchange, named)
    if (pause) return { pause, sent, found: named, made: 0, max: 0 }
    if (bytes !== json) exchange.continued = { call, taken: () => forgetPending(services, asked, tenant) }
    noteAside(exchange, named, sent, bytes, tenant)
    // A compaction belongs to the session of the history that it contains.
    if (named || !conversation.isCompaction) return undefined
  }
  if (lease?.grow(conversation.length * BYTES_PER_MESSAGE) === false) return 'no_room'
  const transcript = await readInTurns(asked, registry, { hashes, known, prefixes })
  let facts = factsOf(transcript, conversation, hashes.whole, registry, json.length)
  if (isByAgent) facts = { ...facts, isByAgent }
  if (isCompacted || (conversation.isCompacted && stored?.previous === undefined))
    facts = { ...facts, isCompacted: true }
  else if (stored?.previous !== undefined)
    facts = withPrevious(facts, conversation, presentable(stored.previous), stored.isConversation)
  const lost = (fault: unknown) => throwAtLimit(exchange, json, fault)
  const sought = await findSession(services, headers, tenant, asked, facts, lost)
  const found = await inTree(exchange, conversation, sought)
  const unfetched = fetchedAt(tenant, facts.previous ?? '', sought.linked, dialect)
  if (unfetched) noteUnfetched(exchange, unfetched).catch((error) => noteFault(services.emit, error))
  const pause = pauseFor(exchange, found)
  const pending = withPendingResults(exchange, asked, body, json, found.linked)
  if (pause) return await pausedIn(exchange, pause, pending.sent, requestOf(exchange, asked, facts, found), found)
  if (isAside) {
    // Without a name it begins no session.
    if (await storedSession(services, found)) noteAside(exchange, found, asked, json, tenant)
    return undefined
  }
  // It shows a result, or names what it continues.
  const isBegun = stored?.previous !== undefined || conversation.resultCount(conversation.length - 1) > 0
  if (found.id === undefined && isBegun) void noteGap(services, 'no_identity', found)
  if (found.isAmbiguous) facts = { ...facts, callIds: facts.callIds.map(() => []) }
  return await countAndDecide(exchange, dialect, requestOf(exchange, asked, facts, found), found, pending)
}

/** Returns the session at the root of a tree where its limits count the whole of it; else the session itself. */
async function inTree(exchange: Exchange, { model }: Conversation, found: FoundSession): Promise<FoundSession> {
  const { services, client } = exchange
  const parent = parentSessionOf(client.head.headers, found)
  if (parent === undefined) return found
  const { policy } = settingsFor(services.policies.budget, subjectOf(exchange, model))
  const { enabled, session, agents } = policy
  const isLimited = enabled && [...Object.values(session), ...Object.values(agents)].some((max) => max > 0)
  return isLimited ? unlessLost(services.emit, rootOf(services.store, parent, found), found) : found
}

/** Returns a paused request with the count of its run, without counting it. */
async function pausedIn(
  { services }: Exchange,
  pause: Pause,
  sent: DialectRequest,
  request: Request,
  found: FoundSession,
): Promise<PausedRequest> {
  const known = (await storedSession(services, found)) ?? found.begun ?? NEW_SESSION
  const { iteration, isRetry, limits } = countRequest(known, request).result
  const max = request.budget.enabled ? limits.run.iterations : 0
  return { pause, sent, found, made: Math.max(0, isRetry ? iteration : iteration - 1), max }
}

/** Notes, and returns, a request which is no step of a run, if a session pays for it, or scopes of time count it. */
export function noteAside(
  exchange: Exchange,
  found: FoundSession | undefined,
  asked: DialectRequest,
  json: Buffer | undefined,
  tenant: string,
): AsideRequest | undefined {
  const { model } = asked.conversation
  const all = policyOf(exchange, model, {})
  // Where a body is only relayed, its model is not known yet.
  const policy = json ? all : { ...all, scopes: all.scopes.filter(({ per }) => per !== 'model') }
  const isCharged = policy.scopes.length > 0
  if (found || isCharged) exchange.aside = { found, asked, policy }
  if (isCharged && !exchange.charge) beginCharge(exchange, { json, model, tenant, policy, isNewRun: false })
  return exchange.aside
}

/** Returns a session as the store holds it; `undefined` if it does not, or fails. */
async function storedSession({ store, emit }: Services, { tenant, id }: FoundSession): Promise<Session | undefined> {
  return id === undefined ? undefined : unlessLost(emit, store.get(sessionKey(tenant, id)), undefined)
}

async function countAndDecide(
  exchange: Exchange,
  dialect: Dialect,
  asked: Request,
  found: FoundSession,
  { sent, bytes, call }: Pick<Turn, 'sent' | 'bytes' | 'call'>,
): Promise<Turn> {
  const { services, route } = exchange
  const { conversation, facts, budget } = asked
  await services.windows.refresh({ upstream: route.upstream, model: conversation.model })
  const key = found.id === undefined ? undefined : sessionKey(found.tenant, found.id)
  const counted: CountedRequest = { fingerprint: facts.fingerprint, thread: asked.thread }
  const isNewRun = facts.iteration === 1 && facts.endsInUserMessage
  const charged = { json: bytes, model: conversation.model, tenant: found.tenant, policy: budget, isNewRun }
  const charge = budget.scopes.length > 0 ? beginCharge(exchange, charged) : undefined
  const timeLimits = charge?.places.map(({ rule, subject }) => ({ rule, subject }))
  const request = timeLimits ? { ...asked, timeLimits } : asked
  const { session, result: runState } = await countIn(exchange, bytes, request, found, key, counted)
  if (sent.isFetchedLater) noteUnfetchedIn(exchange, found.tenant, request, runState, dialect)
  const time = withRates(budget, charge && (await timeMeters(exchange, charge, runState)), runState.rates)
  if (charge?.known.length === 0) throwAtLimit(exchange, bytes, new Error('the sums of the limits are not known'))
  if (runState.loopFault) countFault(services.emit, runState.loopFault, 'loop_guard')
  const { limits } = runState
  // The limits that an operator has set apply even if the budget is disabled.
  const policy = limits === request.limits ? request.budget : { ...request.budget, ...limits, enabled: true }
  const decision = decideOn(exchange, request, sent, runState, policy, time)
  if (charge && decision.kind === 'stop' && !decision.unsent) holdLast(exchange)
  // Only a request that is edited needs to know which edits the model refuses.
  const isEdited = decision.kind !== 'allow' || decision.speech !== undefined
  const refusedEdits = isEdited ? await knownRefusedEdits(services, found, request) : []
  const turn: Turn = {
    services,
    exchange,
    dialect,
    request,
    sent,
    call,
    bytes,
    found,
    key,
    names: namesOf(found),
    counted,
    begun: key === undefined ? session : undefined,
    runState,
    policy,
    decision,
    governorHeaders: {},
    state: {
      decided: { verdict: 'allow', tier: undefined, loop: undefined },
      dropsThinking: runState.thread.dropsThinking === true,
      refusedEdits,
      linked: [],
    },
  }
  if (services.keepsTranscripts) keepRequest(turn)
  // A request may wait for its response for minutes.
  conversation.forget()
  return turn
}

const UNLIMITED: LimitPair = { run: NO_LIMITS, session: NO_LIMITS }

/** Returns a request with the policies that apply to it, and the limits that its client declares. */
function requestOf(exchange: Exchange, asked: DialectRequest, facts: RequestFacts, found: FoundSession): Request {
  const { conversation } = asked
  const { services, route, client } = exchange
  const { headers } = client.head
  const { loop, observesOnly } = services.policies
  const subject = subjectOf(exchange, conversation.model)
  const { header } = subject
  const declared = {
    iterations: wholeNumber(header('x-governor-max-iterations')),
    tool_calls: wholeNumber(header('x-governor-max-tool-calls')),
    task_tokens: conversation.taskBudget?.total,
  }
  const budget = policyOf(exchange, conversation.model, declared)
  const { emit, labels, harnessRegistry: registry } = services
  const newest = followedSteps(facts.transcript, conversation).at(-1)
  return {
    now: services.now(),
    operation: services.newId(),
    conversation,
    registry,
    facts,
    demands: asked.demands().hashes,
    tools: newest ? conversation.calls(newest.index).map((call) => call.name) : [],
    thread: idInHeaders(headers, services.identity.threadHeaders) ?? found.inTree?.thread ?? '',
    parent: parentOf(headers, found),
    name: found.isNamed ? found.name : undefined,
    label: labels === 'none' ? undefined : () => isolated(emit, 'label', labelIn, conversation, registry, labels) ?? '',
    isDerived: found.prompt !== undefined || found.isRelayed === true,
    agent: agentNameOf(headers),
    key: exchange.accessKey?.name,
    upstream: route.upstream.name,
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
  exchange: Exchange,
  asked: DialectRequest,
  body: Buffer,
  json: Buffer,
  linked: Link | undefined,
): Pick<Turn, 'sent' | 'bytes' | 'call'> {
  const { pendingResults = [], redirectTo } = linked ?? {}
  const edits = asked.stored?.injectPendingResults(pendingResults, redirectTo)
  const unchanged = { sent: asked, bytes: json, call: callFor(exchange, body) }
  return edits?.length ? readAgain(exchange, unchanged, edits) : unchanged
}

/** Counts a request in its session. If the store fails, it is counted by its transcript alone. */
async function countIn(
  exchange: Exchange,
  bytes: Buffer,
  request: Request,
  found: FoundSession,
  key: SessionKey | undefined,
  counted: CountedRequest,
): Promise<Changed<RunState>> {
  const { store, emit, now } = exchange.services
  const { tenant, prompt } = found
  const known = { begun: found.begun, isClaimed: false }
  // While the processes can't see each other's changes, a claim might be seen by one of them alone.
  const canClaim = found.begun !== undefined && !store.mayLack?.()
  const { begun: first, isClaimed } = canClaim ? await unlessLost(emit, claimFirst(store, found), known) : known
  const begun = first && store.mayLack?.() ? lacking(first) : (first ?? NEW_SESSION)
  if (key === undefined) return countRequest(begun, request)
  try {
    const { session, result } = await store.update(key, (before = begun) => {
      const changed = countRequest(before, request)
      return { session: changed.session, result: changed }
    })
    if (result.ended) emit(runEnded(result.ended, idOf(key)))
    if (prompt === undefined || isClaimed || !(result.isNew || first) || result.iteration !== 2)
      return { session, result }
    // The session got its id with its second request: the first answer counts too.
    // Among conversations with the same beginning any answer will do.
    const taken = store.updateValue(UNCLAIMED_USAGE, sessionKey(tenant, prompt), (waiting) => ({
      value: waiting.length > 1 ? waiting.slice(0, -1) : undefined,
      result: waiting.at(-1),
    }))
    // Where the first answer is counted already, nothing waits for that.
    const isCounted = first !== undefined && !lacksUsage(first)
    const unclaimed = isCounted ? void unlessLost(emit, taken, undefined) : await taken
    if (!unclaimed) return { session, result }
    const at = now()
    const adopt = (after = session) => adoptFirst(after, counted, result, unclaimed, at, request.tools)
    return { session, result: await store.update(key, adopt) }
  } catch (error) {
    throwAtLimit(exchange, bytes, error)
    emit({ kind: 'failed_open', reason: 'store' })
    return countRequest(begun, request)
  }
}

/** Decides on a counted request. After a fault in the budget the decision about loops still applies. */
function decideOn(
  exchange: Exchange,
  request: Request,
  sent: DialectRequest,
  runState: RunState,
  policy: BudgetPolicy,
  time: DecisionInput['time'],
): Decision {
  const { services, route } = exchange
  const { emit, windows, catalogue } = services
  const { contextTokens, reductions = [] } = runState
  const { upstream } = route
  const { model } = request.conversation
  const loop = inMode(request.loop, runState.loopMode)
  let mayBlock = false
  let guardEnd: GuardEnd | undefined
  for (const guard of GUARDS) {
    mayBlock ||= isolated(emit, guard.name, guard.mayBlock, request, runState) === true
    guardEnd ??= isolated(emit, guard.name, guard.endOf, request, runState)
  }
  const known = {
    runState,
    policy,
    loop: loop.mode === 'observe' ? undefined : runState.loop,
    asksForSummary: request.facts.asksForSummary,
    mayBlock,
    guardEnd,
    time,
  }
  const decision = isolated(emit, 'budget', () => {
    const isWindowAsked = contextTokens !== undefined && policy.enabled
    const isPriceAsked = policy.unknownPrice === 'refuse' && costLimit(policy) !== undefined
    return decide({
      contextWindow: isWindowAsked ? windows.effective({ upstream, model }, reductions).tokens : undefined,
      // A tracker's statement, which later requests do not repeat, may cost the prompt cache or the model's reasoning.
      mayState: policy.thresholds.style !== 'tracker' || (!sent.stored && !sent.bindsReasoning?.()),
      isUnpriced: isPriceAsked && lacksPrice(catalogue, model, upstream),
      ...known,
    })
  })
  const made = decision ?? decideWithoutBudget(known)
  const final = request.observesOnly ? observeOnly(made) : made
  if (final.kind === 'stop' && final.unsent === 'unpriced') noteUnpricedModel(services, model, upstream, 'refuse')
  return final
}
