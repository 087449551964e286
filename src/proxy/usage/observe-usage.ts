/** Observes the model's answer to a counted request, and records it in the session: its usage, its ids and its text. */

import type { Named } from '../../core/by-name.ts'
import { reductionsAfterAcceptance, windowAfterAcceptance } from '../../core/context-window.ts'
import type { ToolCall } from '../../core/conversation/conversation.ts'
import { distinctIds } from '../../core/conversation/transcript.ts'
import { type Counts, countsOf, NO_COUNTS } from '../../core/counters.ts'
import { hashOfText } from '../../core/hash.ts'
import type { LoopPolicy } from '../../core/loop/patterns.ts'
import { pendingCallsOf } from '../../core/loop/tool-call.ts'
import { EMPTY_RECORD, withMinute } from '../../core/operator/session-record.ts'
import { promptOf } from '../../core/session/request-facts.ts'
import { countsByTool, promptBytesOf } from '../../core/session/result-tokens.ts'
import { type FirstAnswer, NEW_SESSION, type Session, type Thread, withAnswer } from '../../core/session/session.ts'
import {
  type AnswerFacts,
  changeReductions,
  type Delivered,
  noteAcknowledged,
  noteAnswer,
  noteRelayed,
  responseBegan,
} from '../../core/session/transitions.ts'
import { presentable } from '../../core/text/presentable.ts'
import { ignore } from '../../core/thrown.ts'
import type { CallUsage } from '../../core/usage.ts'
import type { ResponseMetadata } from '../../dialect/dialect.ts'
import { lengthOf } from '../../http/body.ts'
import { type Head, isSuccess, type UpstreamCall } from '../../http/upstream.ts'
import type { ResponseObserver } from '../../http/upstream-response.ts'
import { type SessionKey, sessionKey } from '../../store/store.ts'
import type { Emit } from '../../telemetry/event.ts'
import { type Cost, promptTokens } from '../../usage/catalogue.ts'
import { type Answered, observeResponse } from '../../usage/response-observer.ts'
import { noteUsed } from '../at-limit.ts'
import { type AsideRequest, type Exchange, emitFor, readForSpan } from '../begin-exchange.ts'
import { isolated, noteFault, unlessLost } from '../fault.ts'
import { noteGap } from '../note-gap.ts'
import { idsIn, linkCalls, linkResponses, namesOf, placeInHeaders, UNCLAIMED_USAGE } from '../session/find-session.ts'
import { keepAnswer } from '../session/keep-transcript.ts'
import { changeSession, giveBackIteration, iterationFacts, type Turn } from '../turn.ts'
import { countCharge } from './charge.ts'
import { countBill, emitAnswered } from './count-bill.ts'
import { countsTask, keepOutcome, laterAnswerOf, takeLater } from './later-answer.ts'

/** Returns an observer for the response to a counted request; `undefined` if it is not a model's answer. */
export function observeUsage(x: Turn, call: UpstreamCall, head: Head): ResponseObserver | undefined {
  const { services, exchange, dialect, decision, sent } = x
  if (!isSuccess(head)) return undefined
  // Where the run ends with the response, the text that the client gets is kept, and not the provider's.
  const isEnd = decision.kind === 'stop' || decision.kind === 'self_stop'
  if (exchange.charge) exchange.charge.open++
  return observeResponse({
    dialect,
    head,
    requestBytes: lengthOf(call.body),
    withFacts: exchange.span !== undefined,
    withText: services.keepsTranscripts && !isEnd,
    isKept: sent.storesAnswer === true || sent.stored !== undefined,
    mayBePending: sent.isFetchedLater === true,
    begin: sent.stored || awaitsAnswer(x) ? (id) => noteResponseBegan(x, id) : undefined,
    relayed: isEnd && !awaitsAnswer(x) ? undefined : (callIds, isCut, kept) => noteOver(x, callIds, isCut, kept),
    completed: readForSpan(exchange, (answer) => {
      if (!x.state.awaited) return noteCompleted(x, answer)
      completeAwaited(x, x.state.awaited, answer).catch((error) => noteFault(services.emit, error))
    }),
    fault: (error) => noteFault(services.emit, error),
  })
}

/**
 * Returns an observer for the response to a request that is no step of a run: its session, if it has one, pays for it.
 */
export function observeAside(
  x: Exchange,
  { found, asked, readAgain, policy }: AsideRequest,
  call: UpstreamCall,
  head: Head,
): ResponseObserver | undefined {
  const { services, route } = x
  const { store, emit, now } = services
  const { tenant, id } = found ?? {}
  const name = found?.isNamed ? found.name : undefined
  const { model } = (readAgain?.() ?? asked).conversation
  if (!route.dialect || !isSuccess(head)) return undefined
  const key = tenant === undefined || id === undefined ? undefined : sessionKey(tenant, id)
  if (x.charge) x.charge.open++
  return observeResponse({
    dialect: route.dialect,
    head,
    requestBytes: lengthOf(call.body) || (x.charge?.bytes ?? 0),
    mayBePending: asked.isFetchedLater === true,
    completed: readForSpan(x, (answer) => {
      if (answer.isPending)
        void noteGap(services, 'background', found ?? placeInHeaders(x.client.head.headers, route, services))
      // The history goes on from the compaction.
      const item = answer.item === undefined ? [] : [presentable(answer.item)]
      if (found) void unlessLost(emit, linkResponses(store, found, item), undefined)
      countBill(x, model, policy, answer, (usage, isLater) => {
        const place = { thread: 0, isNewRun: false, iteration: 0, counts: NO_COUNTS }
        emitAnswered(x, { model, ...namesOf(found), ...place, usage })
        if (!key) return
        const billed = store.update(key, (session = NEW_SESSION) => ({
          session: withAside(session, countsOf(usage), { model, name }, now(), isLater),
          result: undefined,
        }))
        void unlessLost(emit, billed, undefined)
      })
    }),
    fault: (error) => noteFault(emit, error),
  })
}

/**
 * Adds what an answer that is no step of a run used to a session, and to its newest minute, and the name that its
 * client gives it. `isLater`: its cost alone.
 */
function withAside(
  session: Session,
  counts: Counts,
  { model, name }: { readonly model: string; readonly name: string | undefined },
  now: number,
  isLater: boolean,
): Session {
  const { record = EMPTY_RECORD } = session
  const minutes = withMinute(record.minutes, now, isLater ? counts : { ...counts, iterations: 1 })
  const named = { ...record, name: record.name ?? name, minutes }
  return { ...withAnswer(session, counts, { agent: 0, model }), record: named }
}

/** True if the client may fetch the answer to a request later. Governor asks for a last answer at once. */
function awaitsAnswer({ sent, decision }: Turn): boolean {
  return sent.isFetchedLater === true && sent.storesAnswer === true && decision.kind !== 'stop'
}

/** Takes what is over before the client has its end. */
function noteOver(turn: Turn, callIds: readonly string[], isCut: boolean, kept: ResponseMetadata) {
  const { awaited } = turn.state
  if (kept.isPending) return undefined
  // The client gets no calls of a last answer.
  const noted = turn.decision.kind === 'self_stop' ? undefined : noteCalls(turn, callIds, isCut, kept)
  return awaited ? Promise.all([noted, take(turn, awaited)]) : noted
}

/** Counts an answer here, unless a client has fetched it meanwhile. */
async function take({ services }: Turn, awaited: NonNullable<Turn['state']['awaited']>): Promise<boolean> {
  awaited.isTaken ||= await takeLater(services, awaited.key, true)
  return awaited.isTaken
}

/** Counts the answer to a request that asked for one in the background: what of it came with this response. */
async function completeAwaited(turn: Turn, awaited: NonNullable<Turn['state']['awaited']>, answer: Answered) {
  const { charge } = turn.exchange
  if (!answer.isPending && (await take(turn, awaited))) return noteCompleted(turn, answer)
  if (charge) countCharge(turn.exchange, charge, { input: 0, output: 0, estimated: true }, false)
  if (!answer.isPending) return
  keepAnswer(turn, '', { ...answer, callsNothing: false })
  await keepOutcome(turn, awaited.key)
}

function noteCompleted(turn: Turn, answer: Answered): void {
  // Nothing shows by which id its client fetches it.
  if (answer.isPending) void noteGap(turn.services, 'background', turn.found)
  const { exchange, state, request, policy, runState, services, decision } = turn
  const { upstream } = exchange.route
  const { model } = request.conversation
  const { usage } = answer
  countBill(exchange, model, policy, answer, (...known) => noteUsage(turn, answer, ...known))
  // An answer that broke off is no iteration; the last answer of a run sees to that itself.
  if (answer.isCut && decision.kind !== 'stop' && decision.kind !== 'self_stop') void giveBackIteration(turn, 200)
  if (answer.text !== undefined) keepAnswer(turn, answer.text, answer)
  if (!usage.estimated) {
    // A prompt of so many tokens was accepted: a window that seemed to be smaller is larger.
    const { input, lastInput: tokens = input } = usage
    services.windows.change({ upstream, model }, windowAfterAcceptance, tokens)
    const { reductions } = runState
    if (reductions !== undefined && reductionsAfterAcceptance(reductions, request, tokens) !== reductions)
      void changeSession(turn, changeReductions, [(known) => reductionsAfterAcceptance(known, request, tokens)])
  }
  if (answer.callsNothing && state.isWarned) {
    emitFor(exchange, { kind: 'warning_answered', reaction: 'acknowledged' })
    void changeSession(turn, noteAcknowledged, [], true)
  }
}

/** Counts what an answer used, and records it. `isLater`: only what became known of its cost, which was `toCome`. */
function noteUsage(turn: Turn, answer: Answered, known: CallUsage, isLater: boolean, toCome?: Promise<Cost>): void {
  const { services, exchange, found, names, state, request, policy, runState, decision } = turn
  const { model } = request.conversation
  const { run, thread, isNewRun, newCalls, usedBySession } = runState
  const isSecond = !found.isNamed && usedBySession.iterations === 2
  const iteration = decision.kind === 'stop' ? 0 : runState.iteration
  let usage = known
  // A cost that comes later has the shares of its tokens.
  if (!isLater || !state.prompt) {
    const of = promptBytesOf(request, runState, !isLater && countsTask(policy))
    state.prompt = promptTokens(of, thread.context, answer.usage, services.catalogue, model, exchange.route.upstream)
    const { added } = state.prompt
    if (added !== undefined) usage = { ...known, added }
  }
  const tools = countsByTool(state.prompt, usage)
  const { number, depth } = thread
  const of = { isNewRun, run: run.id, iteration, counts: run.counts, newCalls, isSecond, tools }
  const place = { thread: number, depth, ...of }
  if (!isLater || known.cost !== undefined)
    emitAnswered(exchange, { model, ...names, ...place, usage: known, facts: answer.facts })
  if (turn.key) {
    const recorded = record(turn, turn.key, usage, tools, isLater ? { isCut: answer.isCut } : answer)
    state.recorded = unlessLost(services.emit, recorded, undefined)
  } else if (!isLater) state.recorded = unlessLost(services.emit, recordFirst(turn, usage, answer, toCome), undefined)
  if (!isLater) noteUsed(turn, usage)
}

/** Records a first answer, whose session has no id yet: what waits for a second request has the cost of it too. */
async function recordFirst(turn: Turn, tokens: CallUsage, metadata: Answered, toCome?: Promise<Cost>): Promise<void> {
  const { services, request, found, counted, begun, state } = turn
  if (!begun) return
  const { store } = services
  const { prompt, relayed } = state
  const first: FirstAnswer = { askedAt: request.now, usage: tokens, endedAt: services.now() }
  // That it was asked for says what its conversation is, where no id of a call does.
  const isKept = toCome !== undefined && relayed === undefined
  const keep = (one: FirstAnswer): ChangeWaiting => {
    return (waiting) => [...waiting.slice(1 - MAX_WAITING), one]
  }
  if (isKept) await changeUnclaimed(turn, keep(first))
  const usage = toCome ? { ...tokens, ...(await toCome.catch(ignore)) } : tokens
  const ids = idsIn(found, metadata)
  const answer = answerFacts(turn, usage, prompt ? countsByTool(prompt, usage) : [], ids, metadata)
  // Only the second request shows whether the client continues by the response's id or sends everything again.
  const known = relayed ? noteRelayed(begun, counted, relayed) : begun
  const claimed = relayed && (await linkCalls(store, found, relayed, noteAnswer(known, counted, answer)))
  if (claimed !== undefined) return countFirst(turn, claimed, known, answer)
  const isSame = ({ askedAt, endedAt }: FirstAnswer) => askedAt === first.askedAt && endedAt === first.endedAt
  const priced = { ...first, usage }
  const price: ChangeWaiting = (waiting) => waiting.map((one) => (isSame(one) ? priced : one))
  await changeUnclaimed(turn, isKept ? price : keep(priced))
  // Clients that refer to earlier items begin with the first item of the first response.
  const { item } = metadata
  const all = item === undefined || ids.length === 0 ? ids : [...ids, presentable(item)]
  const continued = await linkResponses(store, found, all, noteAnswer(begun, counted, answer))
  if (continued !== undefined) await countFirst(turn, continued, begun, answer)
}

/** Changes the first answers that wait for the second request of a conversation that begins as this one does. */
async function changeUnclaimed({ services, request, found }: Turn, change: ChangeWaiting): Promise<void> {
  const prompt = promptOf(request.facts, request.facts.transcript.assistantMessages.at(-1)?.hash)
  await services.store.updateValue(UNCLAIMED_USAGE, sessionKey(found.tenant, prompt), (waiting) => ({
    value: change(waiting),
    result: undefined,
  }))
}

/** How many conversations with the same beginning may wait for their second request. */
const MAX_WAITING = 64

type ChangeWaiting = (waiting: readonly FirstAnswer[]) => readonly FirstAnswer[]

/**
 * Links the id in the head of a response: a client may continue from it at once. Resolves when all processes find it.
 */
async function noteResponseBegan(turn: Turn, response: string): Promise<void> {
  const { services, found, begun, counted, state } = turn
  const ids = idsIn(found, { id: response })
  state.linked = [...state.linked, ...ids]
  const later = awaitsAnswer(turn) ? laterAnswerOf(turn) : undefined
  if (later) state.awaited = { key: sessionKey(found.tenant, presentable(response)) }
  const links = linkResponses(services.store, found, ids, begun && responseBegan(begun, counted, ids), later)
  await Promise.all([unlessLost(services.emit, links, undefined), changeSession(turn, responseBegan, [ids])])
}

/** Remembers the calls of an answer before the client has its end. Resolves when all processes can find them. */
function noteCalls(
  turn: Turn,
  ids: readonly string[],
  isCut: boolean,
  kept: ResponseMetadata,
): Promise<unknown> | undefined {
  const { services, found, request, runState, counted, begun, sent } = turn
  const callIds = distinctIds(ids)
  turn.state.callIds = ids
  if (callIds.length === 0) return undefined
  const answer: Delivered = {
    operation: hashOfText(request.operation),
    callIds,
    calls: ids.length,
    isFirst: request.facts.assistantHashes.length === 0 && request.facts.previous === undefined ? true : undefined,
    isCut: isCut || undefined,
  }
  turn.state.relayed = answer
  turn.state.callsToCome = kept.calls?.length ?? 0
  const calls = callsToCome(services.emit, request.loop, runState.thread, kept.calls)
  const to = { ids: idsIn(found, kept), calls, isOnly: !sent.stored }
  const changed = changeSession(turn, noteRelayed, [answer, to])
  if (found.isNamed) return changed
  const linked = linkCalls(services.store, found, answer, begun && noteRelayed(begun, counted, answer))
  return Promise.all([changed, unlessLost(services.emit, linked, undefined)])
}

/** Returns the calls of an answer whose results will come without them; unset if the loop guard does not follow it. */
export function callsToCome(emit: Emit, policy: LoopPolicy, thread?: Thread, calls: readonly ToolCall[] = []) {
  const isObserved = calls.length > 0 && thread?.loopState !== undefined
  return isObserved ? isolated(emit, 'loop_guard', pendingCallsOf, calls, policy) : undefined
}

/** Returns what a session keeps of an answer. */
function answerFacts(
  turn: Turn,
  usage: CallUsage,
  tools: readonly Named<Counts>[],
  ids: readonly string[],
  metadata: Omit<Answered, 'usage'>,
): AnswerFacts {
  const { services, request, runState, key, sent, state } = turn
  const { calls = [], isCut } = metadata
  // What says that a response is over may stand in it before it is.
  const isRecorded = key !== undefined && state.callsToCome === calls.length
  return {
    iteration: iterationFacts(turn, 200),
    usage,
    tools,
    results: sent.stored && state.prompt?.results,
    ids,
    requestBytes: request.facts.bytes ?? 0,
    messages: usage.added === undefined ? undefined : request.facts.messages,
    // The run goes on with the summary.
    callsNothing: request.facts.asksForCompaction ? undefined : metadata.callsNothing,
    isCut,
    calls: isRecorded ? undefined : callsToCome(services.emit, request.loop, runState.thread, calls),
  }
}

/** Records what an answer used in its session, and by which ids it can be continued. */
async function record(
  turn: Turn,
  key: SessionKey,
  usage: CallUsage,
  tools: readonly Named<Counts>[],
  metadata: Omit<Answered, 'usage'>,
): Promise<void> {
  const { services, found, state } = turn
  const ids = idsIn(found, metadata)
  const answer = answerFacts(turn, usage, tools, ids, metadata)
  const recorded = changeSession(turn, noteAnswer, [answer], true)
  if (answer.callsNothing) void recorded.then(() => services.quietRuns.watch(key))
  const { linked } = state
  const unlinked = ids.filter((one) => !linked.includes(one))
  if (unlinked.length > 0) await linkResponses(services.store, found, unlinked)
}

/** Counts a first answer in the session that got its id before the answer was recorded. */
async function countFirst({ services, found, counted }: Turn, id: string, begun: Session, answer: AnswerFacts) {
  await services.store.update(sessionKey(found.tenant, id), (session = begun) => ({
    session: noteAnswer(session, counted, answer),
    result: undefined,
  }))
}
