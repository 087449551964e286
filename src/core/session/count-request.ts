/** How one more request changes its session. */

import { amountsBy, type LimitPair } from '../budget/meters.ts'
import { isReached, ratesOf } from '../budget/velocity.ts'
import type { Conversation } from '../conversation/conversation.ts'
import { add, type Counts, minus, NO_COUNTS } from '../counters.ts'
import type { Hash } from '../hash.ts'
import { INITIAL_LOOP_STATE, type LoopState, observeTranscript, skipTranscript } from '../loop/loop-state.ts'
import { inMode, type LoopMode } from '../loop/patterns.ts'
import { EMPTY_RECORD, type RunRecord, type SessionRecord, withRun, withTools } from '../operator/session-record.ts'
import type { Request } from '../request.ts'
import { errorOf } from '../thrown.ts'
import { inTree } from './agents.ts'
import { callsLast, type RequestFacts } from './request-facts.ts'
import { endBefore, recordOf } from './run.ts'
import {
  type Branch,
  type Changed,
  isLate,
  isOfRun,
  limitsInForce,
  loopModeInForce,
  MAX_RECENT_REQUESTS,
  MAX_THREADS,
  type RecentRequest,
  type RelayedAnswer,
  type Run,
  type RunState,
  retryOf,
  type Session,
  type Thread,
  usedSinceReset,
  type WarningReaction,
  withIds,
} from './session.ts'
import { type Continuation, findThread, replacesQuestion } from './thread.ts'

/** How many user messages a thread remembers. */
const MAX_USER_MESSAGES = 16
/** A client that sends bytes again after so many whole answers neither lost them nor samples them to choose from. */
const MAX_REPEATS = 32

/**
 * From this request on, a user message that stands between the steps of a run in one request after the other is a
 * harness's.
 */
const MAX_MID_STEPS = 3

/** The thread and run in which a request is counted. `newer` is unset where that is not known. */
interface Place extends Pick<Continuation, 'answer' | 'least' | 'repeatsStep' | 'newer'> {
  /** The thread it is counted in; unset if it begins one. */
  readonly known?: Thread
  /** The same thread if its conversation continues; unset if the conversation begins again. */
  readonly from?: Thread | undefined
  /** The same thread as the session holds it. */
  readonly replaces?: Thread
  /** The run it is counted in, before this request. */
  readonly run: Run
  /** The run that it ends by beginning another one. */
  readonly over?: Run | undefined
  /** The history is another thread's: the loop guard observes only what follows this request. */
  readonly skipsHistory?: boolean
  /** The last message is the harness's, although it looks like a user's. */
  readonly skipsLast?: boolean | undefined
  /** What the transcript shows counts where that is more: Governor did not relay all of it. */
  readonly isUnknown: boolean
  readonly midSteps?: number
  readonly branch?: Branch | undefined
  /** A thread that had an answer of this one, and the same without it. */
  readonly other?: readonly [Thread, Thread]
  /** The loop guard's state before it. */
  readonly loopState?: LoopState | undefined
}

function placeOf(session: Session, request: Request): Place {
  const { facts, thread: name, now, operation } = request
  const newRun: Run = { id: operation, startedAt: now, askedAt: now, counts: NO_COUNTS, recentRequests: [] }
  const found = findThread(session, facts, name, now)
  if (!found) {
    // A thread that begins may carry the history of another: its own iterations begin after that.
    for (const { name: other, newest } of name === '' ? [] : session.threads) {
      if (other === name || newest === undefined || !facts.assistantHashes.includes(newest)) continue
      const inherited = { iterations: facts.iteration - 1, tool_calls: facts.toolCalls }
      return { run: { ...newRun, inherited }, skipsHistory: true, isUnknown: true }
    }
    return { run: newRun, isUnknown: true }
  }
  const { dropsHistory, dropsMessage, showsRun, answer, showsMore = false, repeatsStep, cutSteps = 0, branch } = found
  const { least, newer, asksAgain = false } = found
  const asksBefore = found.asksBefore === true && facts.isByAgent !== true
  if (branch === 'rewind' && answer)
    return { ...placeAfterRewind(session, found.thread, answer, asksAgain, request), isUnknown: showsMore, least }
  // The answer is that of another agent, whose thread begins with it.
  if (branch && answer) {
    const without = { ...found.thread, relayed: found.thread.relayed?.filter((one) => one !== answer) }
    const run = asksAgain ? newRun : { ...newRun, counts: { iterations: answer.iteration } }
    return { run, answer, isUnknown: showsMore, least, other: [found.thread, without] }
  }
  // Other replicas may have ended a run that the store could not confirm: it goes on only where it is shown.
  const seemsNew = found.isNewRun || (name === '' && found.thread.run.isDoubted === true && !showsRun)
  const { finalAnswer, ownEnd, stopTries } = found.thread.run
  // The client may leave out the last answer of a stopped run.
  const isMidStep = seemsNew && facts.endsInUserMessage && callsLast(facts) && !finalAnswer
  const midSteps = isMidStep ? (found.thread.midSteps ?? 0) + 1 : 0
  // After a last answer that was cut off, a harness asks for the rest of it.
  const isIncomplete = ownEnd ? ownEnd.truncated === true : (stopTries?.truncated ?? 0) > 0
  const asksForRest = finalAnswer === undefined && isIncomplete
  const isHarness = facts.isByAgent === true || asksForRest || midSteps >= MAX_MID_STEPS
  const thread = dropsMessage || (seemsNew && isHarness) ? withoutMessage(found.thread) : found.thread
  const isNewRun = seemsNew && !isHarness
  let run = isNewRun ? newRun : thread.run
  if (!isNewRun && cutSteps > 0) run = { ...run, counts: add(run.counts, { iterations: cutSteps }) }
  return {
    known: thread,
    from: dropsHistory ? undefined : thread,
    replaces: found.thread,
    run,
    over: isNewRun ? thread.run : undefined,
    skipsLast: (dropsMessage || isHarness) && !isNewRun && facts.endsInUserMessage,
    answer,
    skipsHistory: asksBefore,
    isUnknown: (isNewRun && !asksBefore) || showsMore,
    least: isNewRun ? undefined : least,
    repeatsStep,
    newer,
    midSteps,
    branch: isNewRun ? undefined : thread.branch,
    loopState: dropsHistory || asksBefore ? undefined : thread.loopState,
  }
}

/**
 * How many threads at once may begin beside one that has gone on by one step, before one of them is known to be another
 * agent's.
 */
const MAX_FORKS = 3

/**
 * Returns the place of a request that goes on from an older answer of a thread: in another thread. It may be that of an
 * agent that went back, so it inherits the count of the run and of all that branched off it before.
 */
function placeAfterRewind(
  { threads }: Session,
  { id, branch, interrupted, loopState, run: newest }: Thread,
  answer: RelayedAnswer,
  asksAgain: boolean,
  { now, operation }: Request,
): Omit<Place, 'isUnknown'> {
  const isBefore = interrupted && !asksAgain && !isOfRun(answer, newest)
  const made = asksAgain ? 0 : answer.iteration
  const from = isBefore ? interrupted : { run: newest, loopState }
  const root = branch ? branch.root : id
  let { iterations: iteration = 0 } = from.run.counts
  let forks = 0
  for (const { branch: other, run } of isBefore ? [] : threads) {
    if (!other?.mayBeRewind || other.root !== root) continue
    iteration = Math.max(iteration, run.counts.iterations ?? 0)
    forks++
  }
  // Agents that share a history go on from its newest answer, each for itself.
  if (answer.isFollowed && iteration === made + 1 && forks < MAX_FORKS) iteration = made
  const { finalAnswer: _, ownEnd: _end, isReported: _reported, stopTries: _tries, question: _asked, ...run } = from.run
  return {
    run: { ...run, id: operation, counts: { ...run.counts, iterations: iteration }, recentRequests: [] },
    answer,
    branch: isBefore ? undefined : { root, at: now, ahead: iteration - made, mayBeRewind: true },
    loopState: from.loopState,
  }
}

/**
 * Returns threads after `known` has gone on itself: those that branched off it meanwhile belong to other agents, which
 * have not made the iterations that they inherited.
 */
function withoutInherited(threads: readonly Thread[], known: Thread): readonly Thread[] {
  const root = known.branch ? known.branch.root : known.id
  return threads.map((thread) => {
    const { branch, run } = thread
    if (!branch?.mayBeRewind || branch.root !== root || branch.at < known.run.askedAt) return thread
    const counts = minus(run.counts, { iterations: branch.ahead })
    return { ...thread, branch: { ...branch, ahead: 0, mayBeRewind: undefined }, run: { ...run, counts } }
  })
}

/** Returns a thread whose newest message was no human's: the run that the message seemed to end goes on. */
function withoutMessage(thread: Thread): Thread {
  const { interrupted, run } = thread
  if (!interrupted) return thread
  return {
    ...thread,
    loopState: interrupted.loopState,
    run: {
      ...interrupted.run,
      askedAt: run.askedAt,
      quietSince: run.quietSince,
      recentRequests: run.recentRequests,
      isAnswered: run.isAnswered,
      failedAs: run.failedAs,
      counts: { ...add(interrupted.run.counts, run.counts), runs: 1 },
    },
  }
}

/** Returns the number of a request in its run, and how often its bytes were sent if that makes it a new iteration. */
function numberOf(
  { run, isUnknown, least = 0, repeatsStep = false }: Place,
  { facts, isDerived }: Request,
  before: RecentRequest | undefined,
) {
  const answered = before?.answered ?? 1
  // Without a session id, equal first requests of a run may come from several agents.
  const mayRepeat = !(isDerived && facts.endsInUserMessage) && !run.finalAnswer
  const isRepeat = mayRepeat && answered >= MAX_REPEATS
  if (before && !isRepeat) return { iteration: before.iteration, resendCount: undefined }
  // A run that was stopped counts no more.
  const { iterations = 0 } = run.counts
  const more = Number(!run.finalAnswer && (isRepeat || !repeatsStep || iterations === 0))
  const next = Math.max(iterations + more, run.finalAnswer ? 0 : least)
  const shown = facts.iteration - (run.inherited?.iterations ?? 0)
  return {
    iteration: isUnknown ? Math.max(shown, next) : next,
    resendCount: isRepeat ? answered + 1 : undefined,
  }
}

/** Returns whether the newest answer that a request shows is that of its thread, and not another with equal content. */
function showsNewest({ known, newer = 0 }: Place, { assistantHashes }: RequestFacts): boolean {
  return assistantHashes.at(-1) === known?.newest && newer === 0
}

/** Returns how the newest answer reacted to a warning; `undefined` without one, or if the answer is not shown. */
function reactionOf(place: Place, { facts, conversation }: Request, isRetry: boolean) {
  const { known } = place
  const shown = facts.transcript.assistantMessages.at(-1)
  if (!known?.run.isWarned || isRetry || showsNewest(place, facts) || !shown) return undefined
  const speaks = shown.calls === 0 || conversation.texts(shown.index).some((text) => text.trim() !== '')
  return speaks ? 'acknowledged' : 'ignored'
}

/**
 * Returns the loop guard's state after the calls of a request, and that of the run which its last message seemed to
 * end. After a fault the next request begins here.
 */
function observeCalls(request: Request, place: Place, mode: LoopMode | undefined) {
  const { loop, budget, observesOnly, facts, conversation, registry, now } = request
  // The budget may need to know whether a run stagnates.
  const isNeeded = loop.enabled || (budget.enabled && budget.cautionWhen === 'stagnating')
  if (!isNeeded) return { loopState: undefined, interrupted: undefined, fault: undefined }
  const { loopState: before = INITIAL_LOOP_STATE, known, over, answer, newer, skipsHistory, skipsLast } = place
  const isSameRun = place.loopState !== undefined && !over
  const { transcript: state, previousStep } = facts
  const transcript = { conversation, state, registry, previousStep, skipsLast, isSameRun, answer, newer }
  const policy = inMode(loop.enabled ? loop : { ...loop, mode: 'observe' }, observesOnly ? 'observe' : mode)
  let fault: Error | undefined
  try {
    if (!skipsHistory) {
      const goesOn = { ...transcript, skipsLast: true, isSameRun: true }
      const continued = place.midSteps ? (known?.interrupted?.loopState ?? before) : undefined
      const interrupted = over && continued && observeTranscript(continued, goesOn, policy, now)
      return { loopState: observeTranscript(before, transcript, policy, now), interrupted, fault }
    }
  } catch (error) {
    fault = errorOf(error)
  }
  return { loopState: skipTranscript(before, transcript), interrupted: undefined, fault }
}

/** How many requests with a new demand are relayed after the end of a run. */
const MAX_LATE = 4
/** How many demands a run remembers. */
const MAX_DEMANDS = 32

/**
 * Returns the demands of a run with those of a request. A framework that needs its answer in another form asks for it
 * once more when the run is over, and cannot use the recorded text. The same request again changes nothing.
 */
function withDemands({ demands, finalAnswer }: Run, names: readonly Hash[], fingerprint: string): Run['demands'] {
  if (names.length === 0) return demands
  const known = demands ?? []
  const late = new Set(known.flatMap(({ lateIn = [] }) => lateIn))
  if (known.length >= MAX_DEMANDS || (finalAnswer && late.size >= MAX_LATE)) return demands
  const more = names.filter((name) => !known.some((demand) => demand.name === name))
  if (more.length === 0) return demands
  return [...known, ...more.map((name) => ({ name, lateIn: finalAnswer && fingerprint }))]
}

/** Returns counts with the tokens that the client says its task has spent, where those are more. */
function withSpent({ taskBudget }: Conversation, counts: Counts): Counts {
  const spent = taskBudget?.spent ?? 0
  return spent > (counts.task_tokens ?? 0) ? { ...counts, task_tokens: spent } : counts
}

/** Returns a request that is in flight. `before`: the same request as it was counted before; unset if it is new. */
function recentRequest(fingerprint: string, iteration: number, before: RecentRequest | undefined): RecentRequest {
  const isSame = before?.iteration === iteration && before.outcome !== 'released'
  return {
    fingerprint,
    iteration,
    outcome: undefined,
    isMade: (isSame && (before.isMade || before.outcome === 'answered')) || undefined,
    answered: before?.answered,
    spawned: before?.spawned,
  }
}

/**
 * Returns a run after one more request. `before`: the same request as it was counted before; unset if it is new. Node
 * 20 takes many microseconds for a literal with members after a spread, so this one and that of `threadAfter` name
 * every field.
 */
function runAfter(
  { conversation, facts, now, demands, upstream, model, agent, key, limits, timeLimits, budget }: Request,
  place: Place,
  before: RecentRequest | undefined,
  iteration: number,
  reaction: WarningReaction | undefined,
  inForce: LimitPair,
): Run {
  const { fingerprint } = facts
  const { run, over } = place
  const isReaction = reaction !== undefined && !over
  const { recentRequests } = run
  const { iterations = 0 } = run.counts
  const counted = recentRequest(fingerprint, iteration, before)
  return {
    id: run.id,
    startedAt: run.startedAt,
    askedAt: now,
    quietSince: run.quietSince,
    counts: withSpent(conversation, {
      ...run.counts,
      runs: 1,
      iterations: Math.max(iterations, iteration),
      tool_calls: toolCallsAfter(place, facts, before !== undefined),
    }),
    recentRequests: before
      ? recentRequests.with(recentRequests.indexOf(before), counted)
      : [...recentRequests.slice(1 - MAX_RECENT_REQUESTS), counted],
    isWarned: isReaction ? false : run.isWarned,
    wasIgnored: isReaction ? reaction === 'ignored' : run.wasIgnored,
    isAnswered: before ? run.isAnswered : undefined,
    finalAnswer: run.finalAnswer,
    ownEnd: before ? run.ownEnd : undefined,
    isReported: run.isReported,
    stopTries: run.stopTries,
    demands: withDemands(run, demands, fingerprint),
    limits,
    timeLimits,
    velocity: budget.velocity,
    // The same in every request of a run, whatever its client or an operator changes meanwhile.
    announced: run.announced ?? amountsBy((name) => (budget.announce.includes(name) ? inForce.run[name] : 0)),
    upstream,
    model,
    agent,
    key,
    failedAs: undefined,
    operator: run.operator,
    question: run.question,
    tooFast: run.tooFast,
    slowedUntil: undefined,
    // Either this request shows the run, or the run is new.
    isDoubted: undefined,
    mayLack: undefined,
    inherited: run.inherited,
  } satisfies Required<Run>
}

/** Returns the tool calls of a run after one more request: those that it counted, or more that the transcript shows. */
function toolCallsAfter(place: Place, facts: RequestFacts, isRetry: boolean): number {
  const { run, answer, isUnknown, skipsHistory = false } = place
  const { tool_calls = 0 } = run.counts
  // A request that was changed and sent again shows the same calls again, as does one after an answer without calls;
  // those in another's history are not its own.
  const isCounted = isRetry || showsNewest(place, facts) || skipsHistory || facts.callCounts.at(-1) === 0
  const inRun = run.recentRequests.length > 0 ? (facts.callCounts.at(-1) ?? 0) : facts.newToolCalls
  const after = isCounted ? tool_calls : tool_calls + (answer ? countShown(answer, facts) : inRun)
  return isUnknown ? Math.max(facts.toolCalls - (run.inherited?.tool_calls ?? 0), after) : after
}

/** Returns how many calls of a relayed answer a transcript shows. */
function countShown({ callIds, calls = callIds.length }: RelayedAnswer, facts: RequestFacts): number {
  const at = facts.callIds.findLastIndex((ids) => ids.some((id) => callIds.includes(id)))
  const shown = facts.callIds[at] ?? []
  const isKnown = (id: Hash) => callIds.includes(id)
  // The calls whose ids are not remembered stand before the others.
  const before = (facts.callCounts[at] ?? 0) - shown.length + shown.findIndex(isKnown)
  return shown.filter(isKnown).length + Math.min(before, calls - callIds.length)
}

/** Returns the notice about removed calls after another request: one request carries it. */
function noticeAfter(notice: Thread['blockNotice']): Thread['blockNotice'] {
  return notice && !notice.isDue ? { ...notice, isDue: true } : undefined
}

/**
 * Returns the relayed answers of a thread that goes on from one of them, or begins with one that was another thread's.
 */
function followed({ from, answer, other }: Place): Thread['relayed'] {
  if (!answer) return from?.relayed
  const marked = { ...answer, isFollowed: true } as const
  return other ? [marked] : from?.relayed?.map((one) => (one === answer ? marked : one))
}

/**
 * Returns what identifies the newest answer of a request by its place, if the client gives calls ids of its own: it
 * shows none of those that it got.
 */
function placedIn({ callIds, placed }: RequestFacts, from: Thread | undefined, answer: RelayedAnswer | undefined) {
  const { relayed = [] } = from ?? {}
  const showsOthers = !answer && (callIds.at(-1)?.length ?? 0) > 0 && relayed.some((one) => one.callIds.length > 0)
  return showsOthers && !relayed.some(({ isFollowed }) => isFollowed) ? placed(1) : undefined
}

/**
 * Returns the run as it is if the user message that seemed to end it is a harness's: in the middle of a run one may look
 * like that, and later requests show whether it was. Unset if none did.
 */
function interruptedIn(place: Place, facts: RequestFacts, loopState: LoopState | undefined): Thread['interrupted'] {
  const { over, from, midSteps, answer } = place
  if (!over || !from || !midSteps) return undefined
  const { run } = withoutMessage(from)
  // The request that ends a run shows the calls of its newest answer.
  const newCalls = showsNewest(place, facts) ? 0 : answer ? countShown(answer, facts) : (facts.callCounts.at(-1) ?? 0)
  return { run: { ...run, counts: add(run.counts, { tool_calls: newCalls }) }, loopState }
}

function threadAfter(
  { facts, thread: name, operation }: Request,
  place: Place,
  run: Run,
  number: number,
  { loopState, interrupted }: Readonly<Record<'loopState' | 'interrupted', LoopState | undefined>>,
  depth: number | undefined,
): Thread {
  const { known, from, over, midSteps, branch, answer, repeatsStep } = place
  // A request that was counted before may be older than the newest one.
  const before = from && retryOf(from.run, facts)
  if (before) {
    // No agent has an answer of one that failed.
    const isRepeated = facts.isPrompt && before.outcome !== 'released'
    return { ...from, number, run, loopState, isPromptRepeated: isRepeated || from.isPromptRepeated }
  }
  const { previous, isAppended, endsInUserMessage, messages, assistantHashes } = facts
  const newest = assistantHashes.at(-1)
  // A provider that keeps the history is sent only what is new.
  const kept = previous === undefined ? undefined : from
  const users = kept ? [...kept.userMessageHashes, ...facts.userMessageHashes] : facts.userMessageHashes
  const continuedFrom = from?.continuedFrom
  return {
    id: known ? known.id : operation,
    name,
    number,
    depth,
    operator: known?.operator,
    // The first system text counts: it may change with each request, or not be sent again.
    system: from ? from.system : facts.system,
    changesSystem: from?.changesSystem ?? ((from && from.system !== facts.system) || undefined),
    userMessageHashes: users.length > MAX_USER_MESSAGES ? users.slice(-MAX_USER_MESSAGES) : users,
    userMessageCount: (kept?.userMessageCount ?? 0) + facts.userMessageHashes.length,
    endsInUserMessage,
    changesQuestion: (over ? from?.changesQuestion : from && replacesQuestion(from, facts)) || undefined,
    messages,
    promptLength: from ? from.promptLength : facts.promptLength,
    isPromptRepeated: from?.isPromptRepeated,
    first: from?.first ?? assistantHashes[0],
    newest: newest ?? kept?.newest,
    placed: placedIn(facts, from, answer),
    interrupted: interruptedIn(place, facts, interrupted),
    midSteps: midSteps || undefined,
    relayed: followed(place),
    branch,
    run,
    responses: from?.responses,
    context: from?.context,
    continuedFrom: previous !== undefined && !isAppended ? withIds(continuedFrom, [previous]) : continuedFrom,
    blockNotice: over ? undefined : repeatsStep ? from?.blockNotice : noticeAfter(from?.blockNotice),
    loopState,
    noticeSent: known?.noticeSent,
    dropsThinking: known?.dropsThinking,
  } satisfies Required<Thread>
}

/** Returns the threads of a session after one more request; the most recently used one is the last. */
function threadsAfter({ threads }: Session, { replaces, other }: Place, thread: Thread, isRetry: boolean) {
  const rest = replaces ? threads.filter((one) => one !== replaces) : threads
  const apart = other ? rest.with(rest.indexOf(other[0]), other[1]) : rest
  const others = replaces && !isRetry ? withoutInherited(apart, replaces) : apart
  return [...others.slice(1 - MAX_THREADS), thread]
}

/**
 * Returns the counts of a session after one more request, which is assumed to be answered: its iterations are the
 * answers that were relayed to it. A stopped run adds only the requests that are relayed after its end.
 */
function countsAfter(
  { startedAt, counts, threads }: Session,
  { facts }: Request,
  { known, over, run: before }: Place,
  after: Run,
  reaction: WarningReaction | undefined,
  isRelayedAfterEnd: boolean,
): Counts {
  const more = minus(after.counts, before.counts)
  // An answer that broke off counts once the client shows that it executed its calls.
  const cut = known && !over ? (before.counts.iterations ?? 0) - (known.run.counts.iterations ?? 0) : 0
  let iterations = Number(more.iterations !== undefined) + cut
  let { tool_calls = 0 } = more
  if (before.finalAnswer) {
    iterations = Number(isRelayedAfterEnd)
    tool_calls = 0
  } else if (startedAt !== undefined && !known) {
    const shown = facts.assistantHashes.at(-1)
    tool_calls = threads.some(({ newest }) => newest === shown) ? 0 : facts.newToolCalls
  }
  const reactions = reaction ? { [reaction]: 1 } : NO_COUNTS
  return add(counts, { ...more, iterations, tool_calls, ...reactions })
}

/**
 * Returns the meters of a session's rate, and a run that remembers since which request the rate has reached a limit. A
 * run reads one notice before it ends; the request with it may come again, unless it was answered.
 */
function withRate(
  session: Session,
  { budget: { velocity }, facts: { fingerprint }, now }: Request,
  { tooFast }: Run,
  run: Run,
  before: RecentRequest | undefined,
): { readonly run: Run; readonly rates: RunState['rates'] } {
  if (!velocity) return { run, rates: undefined }
  const isTold = tooFast !== undefined && (tooFast !== fingerprint || before?.outcome === 'answered')
  const isNoticeDue = !isTold && !velocity.slows && (run.counts.iterations ?? 0) > 1
  const rates = ratesOf(velocity, session, now).map((meter) =>
    isNoticeDue && isReached(meter) ? { ...meter, time: { ...meter.time, isNoticeDue } } : meter,
  )
  return { run: { ...run, tooFast: rates.some(isReached) ? (tooFast ?? fingerprint) : undefined }, rates }
}

/** Returns the record of a session after one more request. `ended`: the run that it ended by beginning another one. */
function recordAfter(
  { record = EMPTY_RECORD }: Session,
  request: Request,
  { run }: Place,
  number: number,
  ended: RunRecord | undefined,
): SessionRecord {
  const { name = request.name, label = request.label?.(), threads } = record
  const begun = { ...record, name, label, threads: Math.max(threads, number) }
  // After the end of a run, the calls that a request shows belong to no iteration.
  const shown = run.finalAnswer ? begun : withTools(begun, number, request.tools)
  return ended ? withRun(shown, ended) : shown
}

/** Counts a request in its session. Idempotent: the same request again is a retry and changes no count. */
export function countRequest(session: Session, request: Request): Changed<RunState> {
  const { facts, now } = request
  const place = placeOf(session, request)
  const { known, from, run: runBefore, over } = place
  const before = retryOf(runBefore, facts)
  const isRetry = before !== undefined
  const { iteration, resendCount } = numberOf(place, request, before)
  const limits = limitsInForce(request.limits, session, known, runBefore)
  const loopMode = loopModeInForce(session, known)
  const observed = observeCalls(request, place, loopMode)
  const reaction = reactionOf(place, request, isRetry)
  const counted = runAfter(request, place, before, iteration, reaction, limits)
  const { run, rates } = withRate(session, request, runBefore, counted, before)
  const number = known?.number ?? (session.record?.threads ?? session.threads.length) + 1
  const { depth, guards } = inTree(session, request, known, place.branch !== undefined, place.other?.[0])
  const thread = threadAfter(request, place, run, number, observed, depth)
  const asksForOtherForm = isLate(run, facts.fingerprint)
  const endedAs = over && endBefore(over, facts)
  const ended = over && recordOf(over, number, endedAs)
  const after = {
    ...session,
    threads: threadsAfter(session, place, thread, isRetry),
    startedAt: session.startedAt ?? now,
    counts: countsAfter(session, request, place, run, reaction, asksForOtherForm && !isRetry),
    guards,
    record: recordAfter(session, request, place, number, ended),
  }
  const newest = known?.newest
  // A history that was replaced by a summary may be another agent's: it is stopped with an answer of its own.
  const isItsOwn = isRetry || facts.previous !== undefined || !newest || facts.assistantHashes.includes(newest)
  const { startedAt, counts, operator } = run
  // A request after the end of its run is one too many.
  const ofSession = runBefore.finalAnswer ? { ...after, counts: add(after.counts, { iterations: 1 }) } : after
  return {
    session: after,
    result: {
      run,
      thread,
      newCalls: runBefore.counts.iterations ? (facts.callCounts.at(-1) ?? facts.newToolCalls) : 0,
      iteration: Math.max(1, iteration - (operator?.base?.counts.iterations ?? 0)),
      isRetry,
      resendCount,
      isNewRun: over !== undefined || !(known || place.branch),
      isNew: session.startedAt === undefined,
      ended: ended && endedAs && !over.isReported ? { ...ended, state: endedAs } : undefined,
      used: usedSinceReset({ startedAt, counts: { ...counts, iterations: iteration }, operator }, now),
      usedBySession: usedSinceReset(ofSession, now),
      contextTokens: contextTokens(from, facts),
      reaction,
      loop: request.loop.enabled ? observed.loopState?.finding : undefined,
      loopFault: observed.fault,
      loopMode,
      rates,
      reductions: session.reductions,
      limits,
      finalAnswer: isItsOwn ? runBefore.finalAnswer : undefined,
      asksForOtherForm,
    },
  }
}

/** Returns how many tokens fill the context window before a request: fewer in proportion for a shorter history. */
function contextTokens(thread: Thread | undefined, { bytes, previous }: RequestFacts): number | undefined {
  const context = thread?.context
  if (!context) return undefined
  const isShorter = bytes !== undefined && previous === undefined && bytes < context.requestBytes
  return isShorter ? (context.tokens * bytes) / context.requestBytes : context.tokens
}
