/** How one more request changes its session. */

import type { LimitPair } from '../budget/meters.ts'
import type { Hash } from '../hash.ts'
import { INITIAL_LOOP_STATE, type LoopState, observeTranscript, skipTranscript } from '../loop/loop-state.ts'
import { inMode, type LoopMode } from '../loop/patterns.ts'
import { EMPTY_RECORD, withRun, withTools } from '../operator/session-record.ts'
import type { Request } from '../request.ts'
import { addCall } from '../usage.ts'
import { callsLast, type RequestFacts } from './request-facts.ts'
import { endBefore, recordOf } from './run.ts'
import {
  type Changed,
  isLate,
  limitsInForce,
  loopModeInForce,
  MAX_RECENT_REQUESTS,
  MAX_THREADS,
  type RecentRequest,
  type Run,
  type RunState,
  retryOf,
  type Session,
  type Thread,
  type Totals,
  usedBy,
  usedIn,
  type WarningReaction,
  withIds,
} from './session.ts'
import { findThread } from './thread.ts'

/** How many user messages a thread remembers. */
const MAX_USER_MESSAGES = 16
/** A client that sends bytes again after so many whole answers neither lost them nor samples them to choose from. */
const MAX_REPEATS = 32

/** The thread and run in which a request is counted. */
interface Place {
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
}

function placeOf(session: Session, { facts, thread: name, now, operation }: Request): Place {
  const newRun: Run = { id: operation, startedAt: now, askedAt: now, iteration: 0, toolCalls: 0, recentRequests: [] }
  const found = findThread(session, facts, name, now)
  if (!found) {
    // A thread that begins may carry the history of another: its own iterations begin after that.
    for (const { name: other, newest } of name === '' ? [] : session.threads) {
      if (other === name || newest === undefined || !facts.assistantHashes.includes(newest)) continue
      const inherited = { iterations: facts.iteration - 1, toolCalls: facts.toolCalls }
      return { run: { ...newRun, inherited }, skipsHistory: true }
    }
    return { run: newRun }
  }
  const { dropsHistory, dropsMessage, showsRun } = found
  const thread = dropsMessage ? withoutMessage(found.thread) : found.thread
  // Other replicas may have ended a run that the store could not confirm: it goes on only where it is shown.
  const isNewRun = found.isNewRun || (thread.run.isDoubted === true && !showsRun)
  return {
    known: thread,
    from: dropsHistory ? undefined : thread,
    replaces: found.thread,
    run: isNewRun ? newRun : thread.run,
    over: isNewRun ? thread.run : undefined,
    skipsLast: dropsMessage && !isNewRun && facts.endsInUserMessage,
  }
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
      iteration: interrupted.run.iteration + run.iteration,
      toolCalls: interrupted.run.toolCalls + run.toolCalls,
      usage: run.usage ? addCall(interrupted.run.usage, run.usage) : interrupted.run.usage,
    },
  }
}

/** Returns the number of a request in its run, and how often its bytes were sent if that makes it a new iteration. */
function numberOf({ known, run }: Place, { facts, isDerived }: Request, before: RecentRequest | undefined) {
  const answered = before?.answered ?? 1
  // Without a session id, equal first requests of a run may come from several agents.
  const mayRepeat = !(isDerived && facts.endsInUserMessage) && !run.finalAnswer
  const isRepeat = before !== undefined && mayRepeat && answered >= MAX_REPEATS
  if (before && !isRepeat) return { iteration: before.iteration, resendCount: undefined }
  const { previous, assistantHashes, messages } = facts
  const showsSame = previous === undefined && known?.newest === assistantHashes.at(-1) && known?.messages === messages
  // A run that was stopped counts no more, and the same step in other bytes is not a further one.
  const isMore = !run.finalAnswer && (isRepeat || !showsSame || run.iteration === 0)
  return {
    iteration: Math.max(facts.iteration - (run.inherited?.iterations ?? 0), run.iteration + Number(isMore)),
    resendCount: isRepeat ? answered + 1 : undefined,
  }
}

/** Returns how the newest answer reacted to a warning; `undefined` without one, or if the answer is not shown. */
function reactionOf(known: Thread | undefined, { facts, conversation }: Request, isRetry: boolean) {
  const shown = facts.transcript.assistantMessages.at(-1)
  if (!known?.run.isWarned || isRetry || facts.assistantHashes.at(-1) === known.newest || !shown) return undefined
  const speaks = shown.calls === 0 || conversation.texts(shown.index).some((text) => text.trim() !== '')
  return speaks ? 'acknowledged' : 'ignored'
}

/** Returns the loop guard's state after the calls of a request. After a fault the next request begins here. */
function observeCalls(request: Request, { from, skipsHistory, skipsLast }: Place, mode: LoopMode | undefined) {
  const { loop, budget, observesOnly, facts, conversation, transcript: state, registry, now } = request
  // The budget may need to know whether a run stagnates.
  const isNeeded = loop.enabled || (budget.enabled && budget.cautionWhen === 'stagnating')
  if (!isNeeded) return { loopState: undefined, fault: undefined }
  const before = from?.loopState ?? INITIAL_LOOP_STATE
  const transcript = { conversation, state, registry, previousStep: facts.previousStep, skipsLast }
  const policy = inMode(loop.enabled ? loop : { ...loop, mode: 'observe' }, observesOnly ? 'observe' : mode)
  let fault: Error | undefined
  try {
    if (!skipsHistory) return { loopState: observeTranscript(before, transcript, policy, now), fault }
  } catch (error) {
    fault = error as Error
  }
  return { loopState: skipTranscript(before, transcript), fault }
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

/**
 * Returns a run after one more request. `before`: the same request as it was counted before; unset if it is new. Node
 * 20 takes many microseconds for a literal with members after a spread, so this one and that of `threadAfter` name
 * every field.
 */
function runAfter(
  { facts, now, demands, upstream, model, agent }: Request,
  { known, run, over }: Place,
  before: RecentRequest | undefined,
  iteration: number,
  reaction: WarningReaction | undefined,
  limits: LimitPair,
): Run {
  const { fingerprint, assistantHashes, callCounts } = facts
  const newest = assistantHashes.at(-1)
  // A request that was changed and sent again shows the same calls again.
  const isCounted = before !== undefined || newest === undefined || newest === known?.newest
  const newToolCalls = run.recentRequests.length > 0 ? (callCounts.at(-1) ?? 0) : facts.newToolCalls
  const isReaction = reaction !== undefined && !over
  const { recentRequests } = run
  const counted = { fingerprint, iteration, answered: before?.answered }
  return {
    id: run.id,
    startedAt: run.startedAt,
    askedAt: now,
    quietSince: run.quietSince,
    iteration: Math.max(run.iteration, iteration),
    toolCalls: Math.max(
      facts.toolCalls - (run.inherited?.toolCalls ?? 0),
      run.toolCalls + (isCounted ? 0 : newToolCalls),
    ),
    recentRequests: before
      ? recentRequests.with(recentRequests.indexOf(before), counted)
      : [...recentRequests.slice(1 - MAX_RECENT_REQUESTS), counted],
    usage: run.usage,
    isWarned: isReaction ? false : run.isWarned,
    wasIgnored: isReaction ? reaction === 'ignored' : run.wasIgnored,
    isAnswered: before ? run.isAnswered : undefined,
    finalAnswer: run.finalAnswer,
    ownEnd: before ? run.ownEnd : undefined,
    isReported: run.isReported,
    stopTries: run.stopTries,
    demands: withDemands(run, demands, fingerprint),
    limits,
    stated: run.stated ?? limits.run,
    upstream,
    model,
    agent,
    failedAs: undefined,
    operator: run.operator,
    question: run.question,
    // Either this request shows the run, or the run is new.
    isDoubted: undefined,
    inherited: run.inherited,
  } satisfies Required<Run>
}

function threadAfter(
  { facts, thread: name, operation }: Request,
  { known, from, over }: Place,
  run: Run,
  number: number,
  loopState: LoopState | undefined,
): Thread {
  // A request that was counted before may be older than the newest one.
  if (from && retryOf(from.run, facts))
    return { ...from, number, run, loopState, isPromptRepeated: facts.isPrompt || from.isPromptRepeated }
  const { previous, mayFork, endsInUserMessage, messages, assistantHashes } = facts
  const newest = assistantHashes.at(-1)
  // A provider that keeps the history is sent only what is new.
  const kept = previous === undefined ? undefined : from
  const users = kept ? [...kept.userMessageHashes, ...facts.userMessageHashes] : facts.userMessageHashes
  // In the middle of a run a harness may write what looks like a user's message: the next request shows whether it did.
  const mayContinue = over && from && endsInUserMessage && callsLast(facts) && previous === undefined
  // The request that ends a run shows the calls of its newest answer.
  const newCalls = from?.newest === newest ? 0 : (facts.callCounts.at(-1) ?? 0)
  const toolCalls = (over?.toolCalls ?? 0) + newCalls
  const continued = from?.continuedFrom
  return {
    id: known ? known.id : operation,
    name,
    number,
    operator: known?.operator,
    // The first system text counts: it may change with each request, or not be sent again.
    system: from ? from.system : facts.system,
    userMessageHashes: users.length > MAX_USER_MESSAGES ? users.slice(-MAX_USER_MESSAGES) : users,
    userMessageCount: (kept?.userMessageCount ?? 0) + facts.userMessageHashes.length,
    endsInUserMessage,
    messages,
    promptLength: from ? from.promptLength : assistantHashes.length === 0 ? messages : undefined,
    isPromptRepeated: from?.isPromptRepeated,
    first: from?.first ?? assistantHashes[0],
    newest: newest ?? kept?.newest,
    interrupted: mayContinue ? { run: { ...over, toolCalls }, loopState: from.loopState } : undefined,
    run,
    responses: from?.responses,
    context: from?.context,
    continuedFrom: previous !== undefined && mayFork ? withIds(continued, [previous]) : continued,
    loopState,
    noticeSent: known?.noticeSent,
    dropsThinking: known?.dropsThinking,
  } satisfies Required<Thread>
}

/**
 * Returns the totals of a session after one more request. A new session counts what the transcript shows. In a session
 * that has counted before, a thread that begins adds one iteration: the session may have counted its history in
 * another thread. A stopped run adds only the requests that are relayed after its end.
 */
function totalsAfter(
  { totals, threads }: Session,
  { now, facts }: Request,
  { known, run: before }: Place,
  after: Run,
  reaction: WarningReaction | undefined,
  isRelayedAfterEnd: boolean,
): Totals {
  let iterations = after.iteration - before.iteration
  let toolCalls = Math.max(0, after.toolCalls - before.toolCalls)
  if (before.finalAnswer) {
    iterations = Number(isRelayedAfterEnd)
    toolCalls = 0
  } else if (totals && !known) {
    iterations = 1
    const shown = facts.assistantHashes.at(-1)
    toolCalls = threads.some(({ newest }) => newest === shown) ? 0 : facts.newToolCalls
  }
  return {
    startedAt: totals ? totals.startedAt : now,
    iterations: (totals ? totals.iterations : 0) + iterations,
    toolCalls: (totals ? totals.toolCalls : 0) + toolCalls,
    acknowledged: (totals ? totals.acknowledged : 0) + Number(reaction === 'acknowledged'),
    ignored: (totals ? totals.ignored : 0) + Number(reaction === 'ignored'),
  }
}

/** Counts a request in its session. Idempotent: the same request again is a retry and changes no count. */
export function countRequest(session: Session, request: Request): Changed<RunState> {
  const { facts, now } = request
  const place = placeOf(session, request)
  const { known, from, replaces, run: runBefore, over } = place
  const before = retryOf(runBefore, facts)
  const isRetry = before !== undefined
  const { iteration, resendCount } = numberOf(place, request, before)
  const limits = limitsInForce(request.limits, session, known, over ? undefined : known?.run)
  const loopMode = loopModeInForce(session, known)
  const { loopState, fault } = observeCalls(request, place, loopMode)
  const reaction = reactionOf(known, request, isRetry)
  const run = runAfter(request, place, before, iteration, reaction, limits)
  const { record = EMPTY_RECORD } = session
  const number = known?.number ?? (session.record?.threads ?? session.threads.length) + 1
  const thread = threadAfter(request, place, run, number, loopState)
  const asksForOtherForm = isLate(run, facts.fingerprint)
  const others = replaces ? session.threads.filter((other) => other !== replaces) : session.threads
  const endedAs = over && endBefore(over, facts)
  const ended = over && recordOf(over, number, endedAs)
  const begun = { ...record, name: record.name ?? request.name, threads: Math.max(record.threads, number) }
  // After the end of a run, the calls that a request shows belong to no iteration.
  const shown = runBefore.finalAnswer ? begun : withTools(begun, number, request.tools)
  const after = {
    ...session,
    // The most recently used thread is the last.
    threads: [...others.slice(1 - MAX_THREADS), thread],
    totals: totalsAfter(session, request, place, run, reaction, asksForOtherForm && !isRetry),
    record: ended ? withRun(shown, ended) : shown,
  }
  const { previous, assistantHashes } = facts
  const newest = known?.newest
  // A history that was replaced by a summary may be another agent's: it is stopped with an answer of its own.
  const isItsOwn = isRetry || previous !== undefined || newest === undefined || assistantHashes.includes(newest)
  const { base } = run.operator ?? {}
  return {
    session: after,
    result: {
      run,
      thread,
      iteration: base ? Math.max(1, iteration - base.iterations) : iteration,
      isRetry,
      resendCount,
      isNewRun: !known || over !== undefined,
      isNew: session.totals === undefined,
      ended: ended && endedAs && !over.isReported ? { ...ended, state: endedAs } : undefined,
      used: usedBy(run, now, iteration),
      // A request after the end of its run is one too many.
      usedBySession: usedIn(after, now, runBefore.finalAnswer ? 1 : 0),
      contextTokens: contextTokens(from, facts),
      reaction,
      loop: request.loop.enabled ? loopState?.finding : undefined,
      loopFault: fault,
      loopMode,
      reductions: session.reductions,
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
