/** How one more request changes its session. */

import type { Hash } from '../hash.ts'
import { isStagnating } from '../loop/call-history.ts'
import { INITIAL_LOOP_STATE, type LoopState } from '../loop/observe.ts'
import type { LoopMode } from '../loop/policy.ts'
import { withNewest } from '../newest.ts'
import { limitsInForce, loopModeInForce } from '../operator/operator.ts'
import type { LimitPair } from '../operator/operator-settings.ts'
import { type Asked, recordRequest, threadNumber } from '../operator/record-request.ts'
import { addCall } from '../usage.ts'
import { isLate, withDemands } from './demands.ts'
import { addContinuation } from './fork.ts'
import type { RequestFacts } from './request-facts.ts'
import { endBefore, recordOf } from './run-end.ts'
import {
  type Changed,
  type CheckErrors,
  MAX_RECENT_REQUESTS,
  MAX_THREADS,
  MAX_USER_MESSAGES,
  type RecentRequest,
  type Run,
  type RunState,
  type Session,
  type Thread,
  usedBy,
  usedIn,
  type WarningReaction,
} from './session.ts'
import { callsLast, findThread, retryOf } from './thread.ts'
import { totalsAfter } from './totals.ts'

/** A client that sends bytes again after so many whole answers neither lost them nor samples them to choose from. */
const MAX_REPEATS = 32

const NO_HASHES: readonly Hash[] = []
const NO_REQUESTS: readonly RecentRequest[] = []

/** How the loop guard reads the transcript of a request. */
export interface TranscriptReading {
  /** The history is another thread's: only what follows this request counts. */
  readonly skipsHistory?: boolean
  /** The last message is the harness's, although it looks like a user's. */
  readonly skipsLast?: boolean
}

/** A request, and how it is to be counted. */
export interface RequestToCount {
  readonly facts: RequestFacts
  /** The client's name for the thread; empty if it sends none. */
  readonly thread: string
  /** When it came, in milliseconds since the epoch. */
  readonly now: number
  /** A name of its own over all replicas: the run and the thread that it begins keep it. */
  readonly operation?: string
  /** The client sent no session id: the session is identified by its prompt and first answer. */
  readonly isDerived?: boolean
  /**
   * Observes the calls of the transcript for the loop guard, in the mode that an operator has set; unset if they are
   * not observed.
   */
  readonly follow?:
    | ((loopState: LoopState, mode: LoopMode | undefined, reading: TranscriptReading) => LoopState)
    | undefined
  readonly checkErrors?: CheckErrors | undefined
  /** What it demands besides plain text. */
  readonly demands?: readonly Hash[]
  /** The facts about it that operators see in the session. */
  readonly asked?: Asked | undefined
}

/** Returns how many tokens fill the context window before a request; a history that got shorter fills it in proportion. */
function contextTokens(thread: Thread | undefined, { bytes, previous }: RequestFacts): number | undefined {
  const context = thread?.context
  if (!context) return undefined
  const isShorter = bytes !== undefined && previous === undefined && bytes < context.requestBytes
  return isShorter ? (context.tokens * bytes) / context.requestBytes : context.tokens
}

/** Returns how the newest answer reacted to a warning; `undefined` if there was none, or if the request does not show the answer. */
function reactionOf(
  known: Thread | undefined,
  facts: RequestFacts,
  isRetry: boolean,
): WarningReaction | undefined {
  if (!known?.run.isWarned || isRetry) return undefined
  const { newestAssistant: newest } = facts
  if (newest === undefined || newest === known.newest) return undefined
  const speaks = facts.speaks()
  if (speaks === undefined) return undefined
  return speaks ? 'acknowledged' : 'ignored'
}

function newRun(id: string | undefined, now: number): Run {
  return {
    id,
    startedAt: now,
    askedAt: now,
    quietSince: undefined,
    iteration: 0,
    toolCalls: 0,
    recentRequests: NO_REQUESTS,
    usage: undefined,
    isWarned: undefined,
    wasIgnored: undefined,
    isAnswered: undefined,
    finalAnswer: undefined,
    ownEnd: undefined,
    isReported: undefined,
    stopTries: undefined,
    demands: undefined,
    limits: undefined,
    stated: undefined,
    upstream: undefined,
    model: undefined,
    agent: undefined,
    failedAs: undefined,
    operator: undefined,
    question: undefined,
    isDoubted: undefined,
    inherited: undefined,
  } satisfies Required<Run>
}

/** Puts a thread last, as the most recently used one, and removes `known`. */
function withThread(
  threads: readonly Thread[],
  known: Thread | undefined,
  thread: Thread,
): readonly Thread[] {
  if (threads.length === 1 && threads[0] === known) return [thread]
  const others = known ? threads.filter((candidate) => candidate !== known) : threads
  return withNewest(others, thread, MAX_THREADS)
}

/** The thread and run in which a request is counted. */
interface Place {
  /** The thread it is counted in; unset if it begins one. */
  readonly known: Thread | undefined
  /** The same thread if its conversation continues; unset if the conversation begins again. */
  readonly from: Thread | undefined
  /** The run it is counted in, before this request. */
  readonly run: Run
  /** The run that it ends by beginning another one. */
  readonly over: Run | undefined
  /** The thread's state for the loop guard before this request. */
  readonly loopState: LoopState
  /** How the loop guard reads the transcript. */
  readonly reading: TranscriptReading
  /** The thread as the session holds it, which the request replaces. */
  readonly replaces: Thread | undefined
}

function placeOf(session: Session, { facts, thread: name, now, operation }: RequestToCount): Place {
  const found = findThread(session, facts, name, now)
  if (!found) {
    const inherits = name !== '' && session.threads.some((other) => inheritsFrom(other, name, facts))
    const inherited = inherits ? { iterations: facts.iteration - 1, toolCalls: facts.toolCalls } : undefined
    const run = { ...newRun(operation, now), inherited }
    const reading = { skipsHistory: inherits }
    return {
      known: undefined,
      from: undefined,
      run,
      over: undefined,
      loopState: INITIAL_LOOP_STATE,
      reading,
      replaces: undefined,
    }
  }
  const { startsOver, dropsMessage, showsRun } = found
  const thread = dropsMessage ? withoutMessage(found.thread) : found.thread
  const from = startsOver ? undefined : thread
  // Other replicas may have begun and ended runs since: one that the store could not confirm goes on only where it is shown.
  const startsRun = found.startsRun || (thread.run.isDoubted === true && !showsRun)
  return {
    known: thread,
    from,
    run: startsRun ? newRun(operation, now) : thread.run,
    over: startsRun ? thread.run : undefined,
    loopState: from?.loopState ?? INITIAL_LOOP_STATE,
    reading: { skipsLast: dropsMessage && !startsRun && facts.endsInUserMessage },
    replaces: found.thread,
  }
}

/** Returns whether a thread that begins carries the history of another: its own iterations begin after that. */
function inheritsFrom({ name, newest }: Thread, own: string, { assistantHashes }: RequestFacts): boolean {
  return name !== own && newest !== undefined && assistantHashes.includes(newest)
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
      iteration: interrupted.run.iteration + run.iteration,
      toolCalls: interrupted.run.toolCalls + run.toolCalls,
      recentRequests: run.recentRequests,
      usage: run.usage ? addCall(interrupted.run.usage, run.usage) : interrupted.run.usage,
      isAnswered: run.isAnswered,
      failedAs: run.failedAs,
    },
  }
}

/** The facts about a request before its run changes. */
interface Step {
  readonly iteration: number
  /** The same request as it was counted before; unset if it is not a repeated request. */
  readonly before: RecentRequest | undefined
  readonly reaction: WarningReaction | undefined
  /** The current limits. */
  readonly limits: LimitPair | undefined
}

function runAfter(
  { facts, now, demands = NO_HASHES, asked }: RequestToCount,
  { known, run, over }: Place,
  { iteration, before, reaction: reactionOfKnown, limits }: Step,
): Run {
  const reaction = over ? undefined : reactionOfKnown
  const { fingerprint, newestAssistant: newest, callCounts } = facts
  // A request that was changed and sent again shows the same calls again. After a message of the harness its facts hold no calls.
  const isCounted = before !== undefined || newest === undefined || newest === known?.newest
  const newToolCalls = run.recentRequests.length > 0 ? (callCounts.at(-1) ?? 0) : facts.newToolCalls
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
      ? renumbered(run.recentRequests, before, iteration)
      : withNewest(run.recentRequests, { fingerprint, iteration }, MAX_RECENT_REQUESTS),
    usage: run.usage,
    isWarned: reaction ? false : run.isWarned,
    wasIgnored: reaction ? reaction === 'ignored' : run.wasIgnored,
    isAnswered: before ? run.isAnswered : undefined,
    finalAnswer: run.finalAnswer,
    ownEnd: before ? run.ownEnd : undefined,
    isReported: run.isReported,
    stopTries: run.stopTries,
    demands: withDemands(run.demands, demands, fingerprint, run.finalAnswer !== undefined),
    limits,
    stated: run.stated ?? limits?.run,
    upstream: asked?.upstream,
    model: asked?.model,
    agent: asked?.agent,
    failedAs: undefined,
    operator: run.operator,
    question: run.question,
    // Either this request shows the run, or the run is new.
    isDoubted: undefined,
    inherited: run.inherited,
  } satisfies Required<Run>
}

/** Returns the number of a request in its run, and how often its bytes were sent if that makes it a new iteration. */
function numberOf(
  { known, run }: Place,
  { facts, isDerived }: RequestToCount,
  before: RecentRequest | undefined,
): { readonly iteration: number; readonly resendCount: number | undefined } {
  const answered = before?.answered ?? 1
  // Without a session id, equal first requests of a run may come from several agents.
  const mayRepeat = !(isDerived && facts.endsInUserMessage) && !run.finalAnswer
  const isRepeat = before !== undefined && mayRepeat && answered >= MAX_REPEATS
  if (before && !isRepeat) return { iteration: before.iteration, resendCount: undefined }
  // A run that was stopped counts no more, and the same step in other bytes is not a further one.
  const isMore = !run.finalAnswer && (isRepeat || !showsSame(known, facts) || run.iteration === 0)
  return {
    iteration: Math.max(facts.iteration - (run.inherited?.iterations ?? 0), run.iteration + Number(isMore)),
    resendCount: isRepeat ? answered + 1 : undefined,
  }
}

/** Returns whether a request shows no more and no less of its conversation than the one before it. */
function showsSame(
  known: Thread | undefined,
  { newestAssistant, messages, previous }: RequestFacts,
): boolean {
  return previous === undefined && known?.newest === newestAssistant && known?.messages === messages
}

function renumbered(
  recentRequests: readonly RecentRequest[],
  request: RecentRequest,
  iteration: number,
): readonly RecentRequest[] {
  if (request.iteration === iteration) return recentRequests
  return recentRequests.map((other) => (other === request ? { ...request, iteration } : other))
}

function threadAfter(
  { facts, thread: name, operation }: RequestToCount,
  { known, from, over }: Place,
  run: Run,
  { number, loopState, errors }: Pick<Thread, 'number' | 'loopState' | 'errors'>,
): Thread {
  // A request that was counted before may be older than the newest one.
  const isRetry = from !== undefined && retryOf(from.run, facts) !== undefined
  const view = isRetry ? from : viewOf(facts, from, over)
  return {
    id: known ? known.id : operation,
    name,
    number,
    operator: known?.operator,
    // Where the system text changes with each request, the first one counts; one that the provider keeps is not sent again.
    system: from ? from.system : facts.system,
    userMessageHashes: view.userMessageHashes,
    userMessageCount: view.userMessageCount,
    endsInUserMessage: view.endsInUserMessage,
    messages: view.messages,
    promptLength: view.promptLength,
    isPromptRepeated: from?.isPromptRepeated || (isRetry && facts.isPrompt) ? true : undefined,
    first: view.first,
    newest: view.newest,
    interrupted: view.interrupted,
    run,
    responses: from?.responses,
    context: from?.context,
    continuedFrom: addContinuation(from, facts),
    loopState,
    errors,
    noticeSent: known?.noticeSent,
    dropsThinking: known?.dropsThinking,
  } satisfies Required<Thread>
}

/** What a thread keeps of what its newest request has shown. */
type View = Pick<
  Thread,
  | 'userMessageHashes'
  | 'userMessageCount'
  | 'endsInUserMessage'
  | 'messages'
  | 'promptLength'
  | 'first'
  | 'newest'
  | 'interrupted'
>

function viewOf(facts: RequestFacts, from: Thread | undefined, over: Run | undefined): View {
  const { previous, endsInUserMessage, messages, assistantHashes, newestAssistant } = facts
  // A provider that keeps the history is sent only what is new.
  const kept = previous === undefined ? undefined : from
  const users = kept ? [...kept.userMessageHashes, ...facts.userMessageHashes] : facts.userMessageHashes
  // In the middle of a run a harness may write what looks like a user's message: the next request shows whether it did.
  const mayGoOn = over && from && endsInUserMessage && callsLast(facts) && previous === undefined
  return {
    userMessageHashes: users.length > MAX_USER_MESSAGES ? users.slice(-MAX_USER_MESSAGES) : users,
    userMessageCount: (kept?.userMessageCount ?? 0) + facts.userMessageHashes.length,
    endsInUserMessage,
    messages,
    promptLength: from ? from.promptLength : assistantHashes.length === 0 ? messages : undefined,
    first: from?.first ?? assistantHashes[0],
    newest: newestAssistant ?? kept?.newest,
    interrupted: mayGoOn ? { run: withCalls(over, from, facts), loopState: from.loopState } : undefined,
  }
}

/** Returns a run with the calls of its newest answer, which is shown by the request that ends the run. */
function withCalls(run: Run, { newest }: Thread, { newestAssistant, callCounts }: RequestFacts): Run {
  return newest === newestAssistant ? run : { ...run, toolCalls: run.toolCalls + (callCounts.at(-1) ?? 0) }
}

/** Returns the number of an iteration that clients see: from 1 after a reset. */
function sinceReset(iteration: number, { operator }: Run): number {
  return operator?.base ? Math.max(1, iteration - operator.base.iterations) : iteration
}

/** Returns the limits and the mode of the loop guard, with what an operator has set. */
function settingsInForce(session: Session, { known, run, over }: Place, asked: Asked | undefined) {
  const limits = asked && limitsInForce(asked.limits, session, known, !known || over ? undefined : run)
  return { limits, loopMode: loopModeInForce(session, known) }
}

/** Returns the errors of a thread after a request, and the error that the request gets at once. */
function errorsAfter(known: Thread | undefined, check: CheckErrors | undefined) {
  const checked = known?.errors && check?.(known.errors)
  return { errors: checked ? checked.streaks : known?.errors, storm: checked?.reply }
}

/** Returns a run that is over for the record, and for the metrics unless they have counted it. */
function endedRun(run: Run, facts: RequestFacts, number: number) {
  const state = endBefore(run, facts)
  const record = recordOf(run, number, state)
  return { record, toReport: state && !run.isReported ? { ...record, state } : undefined }
}

/** Counts a request in its session. Idempotent: the same request again is a retry and changes no count. */
export function countRequest(session: Session, request: RequestToCount): Changed<RunState> {
  const { facts, now, follow, checkErrors, asked } = request
  const place = placeOf(session, request)
  const { known, from, run, over } = place
  const before = retryOf(run, facts)
  const isRetry = before !== undefined
  const { iteration, resendCount } = numberOf(place, request, before)
  const { limits, loopMode } = settingsInForce(session, place, asked)
  const loopState = follow?.(place.loopState, loopMode, place.reading)
  const { errors, storm } = errorsAfter(known, checkErrors)
  const reaction = reactionOf(known, facts, isRetry)
  const next = runAfter(request, place, { iteration, before, reaction, limits })
  const number = threadNumber(session, known)
  const thread = threadAfter(request, place, next, { number, loopState, errors })
  const late = isLate(next.demands, facts.fingerprint)
  const totals = totalsAfter(session, request, {
    known,
    before: run,
    after: next,
    reaction,
    isRelayedAfterEnd: late && !isRetry,
  })
  const ended = over && endedRun(over, facts, number)
  const record = recordRequest(session, number, ended?.record, run.finalAnswer ? undefined : asked)
  const after = { ...session, threads: withThread(session.threads, place.replaces, thread), totals, record }
  return {
    session: after,
    result: {
      iteration: sinceReset(iteration, next),
      toolCalls: next.toolCalls,
      thread: number,
      isRetry,
      resendCount,
      isNewRun: !known || over !== undefined,
      isNew: session.totals === undefined,
      ended: ended?.toReport,
      run: usedBy(next, now, iteration),
      // A request after the end of its run is one too many.
      session: usedIn(after, now, run.finalAnswer ? 1 : 0),
      contextTokens: contextTokens(from, facts),
      isStagnating: loopState !== undefined && isStagnating(loopState.memory.history),
      wasIgnored: next.wasIgnored === true,
      reaction,
      loop: loopState?.finding,
      loopState,
      reductions: session.contexts?.reductions,
      finalAnswer: isRetry || showsNewest(known, facts) ? run.finalAnswer : undefined,
      limits,
      stated: next.stated,
      loopMode,
      isStopAsked: next.operator?.isStopAsked === true,
      hasErrors: known?.errors !== undefined,
      storm,
      stopTries: run.stopTries,
      asksForOtherForm: late,
      noticeSent: known?.noticeSent,
      dropsThinking: known?.dropsThinking,
    },
  }
}

/**
 * Returns whether a request shows the newest answer of its thread, or continues a history that the provider keeps. A history
 * that was replaced by a summary may be another agent's: it is stopped with an answer of its own.
 */
function showsNewest(known: Thread | undefined, { previous, assistantHashes }: RequestFacts): boolean {
  if (previous !== undefined || known?.newest === undefined) return true
  return assistantHashes.includes(known.newest)
}
