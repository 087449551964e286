/** How one more request changes its session. */

import type { Hash } from '../hash.ts'
import { isStagnating } from '../loop/call-history.ts'
import { INITIAL_LOOP_STATE, type LoopState } from '../loop/observe.ts'
import type { LoopMode } from '../loop/policy.ts'
import { merged, withNewest } from '../newest.ts'
import { isLate, withDemands } from './demands.ts'
import { provesRun } from './doubt.ts'
import { addContinuation, isFork } from './fork.ts'
import { limitsInForce, loopModeInForce } from './operator.ts'
import type { LimitPair } from './operator-settings.ts'
import type { SessionRecord } from './record.ts'
import { type Asked, recordRequest, threadNumber } from './record-request.ts'
import type { RequestFacts } from './request-facts.ts'
import { endBefore, recordOf } from './run-end.ts'
import {
  type Changed,
  type CheckErrors,
  MAX_ASSISTANT_MESSAGES,
  MAX_RECENT_REQUESTS,
  MAX_THREADS,
  MAX_USER_MESSAGES,
  type RecentRequest,
  type Run,
  type RunState,
  type Session,
  type Thread,
  type Totals,
  usedBy,
  usedIn,
  type WarningReaction,
} from './session.ts'
import { beginsAnew, findThread, retryOf, startOf, startsOver, startsRun } from './thread.ts'
import { totalsAfter, withForgotten } from './totals.ts'

/** A client that sends bytes again after so many whole answers neither lost them nor samples them to choose from. */
const MAX_REPEATS = 32

const NO_HASHES: readonly Hash[] = []
const NO_REQUESTS: readonly RecentRequest[] = []

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
  readonly follow?: ((loopState: LoopState, mode: LoopMode | undefined) => LoopState) | undefined
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
  if (newest === undefined || known.assistantHashes.includes(newest)) return undefined
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
  }
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
  readonly startsRun: boolean
}

function placeOf(session: Session, { facts, thread, now, isDerived }: RequestToCount): Place {
  const found = findThread(session, facts, thread, isDerived)
  const isBranch = found !== undefined && isFork(found, facts) && !retryOf(found.run, facts)
  if (!found || isBranch) return { known: undefined, from: undefined, startsRun: true }
  if (found.run.isDoubted && !provesRun(found, facts)) {
    const isKnown = facts.assistantHashes.some((answer) => found.assistantHashes.includes(answer))
    return { known: found, from: isKnown ? found : undefined, startsRun: true }
  }
  const isOver = isDerived ? startsOver(found, facts) : beginsAnew(found, facts, now)
  if (isOver) return { known: found, from: undefined, startsRun: true }
  return { known: found, from: found, startsRun: startsRun(found, facts) }
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
  run: Run,
  { facts, now, demands = NO_HASHES, asked }: RequestToCount,
  known: Thread | undefined,
  { iteration, before, reaction, limits }: Step,
): Run {
  const { fingerprint, newestAssistant: newest } = facts
  // A request that was changed and sent again shows the same calls again.
  const isCounted = before !== undefined || (newest !== undefined && known?.assistantHashes.includes(newest))
  return {
    id: run.id,
    startedAt: run.startedAt,
    askedAt: now,
    quietSince: run.quietSince,
    iteration: Math.max(run.iteration, iteration),
    toolCalls: Math.max(facts.toolCalls, run.toolCalls + (isCounted ? 0 : facts.newToolCalls)),
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
  }
}

/** Returns the number of a request in its run, and how often its bytes were sent if that makes it a new iteration. */
function numberOf(
  run: Run,
  { iteration }: RequestFacts,
  before: RecentRequest | undefined,
): { readonly iteration: number; readonly resendCount: number | undefined } {
  const answered = before?.answered ?? 1
  const isRepeat = before !== undefined && !run.finalAnswer && answered >= MAX_REPEATS
  if (before && !isRepeat) return { iteration: before.iteration, resendCount: undefined }
  // A run that was stopped counts no more: its last step in another form is not a further one.
  const more = run.finalAnswer ? 0 : 1
  return {
    iteration: Math.max(iteration, run.iteration + more),
    resendCount: isRepeat ? answered + 1 : undefined,
  }
}

function renumbered(
  recentRequests: readonly RecentRequest[],
  request: RecentRequest,
  iteration: number,
): readonly RecentRequest[] {
  if (request.iteration === iteration) return recentRequests
  return recentRequests.map((other) => (other === request ? { ...request, iteration } : other))
}

/** Returns how often a prompt was sent without a request that shows its answer. A prompt that remains of a compacted history does not count. */
function unansweredStarts(
  from: Thread | undefined,
  { isPrompt, assistantHashes }: RequestFacts,
  isRetry: boolean,
): number {
  const starts = from?.unansweredStarts ?? 0
  const isUnanswered = !from || from.assistantHashes.length === 0
  if (isPrompt) return starts + (isRetry || isUnanswered ? 1 : 0)
  return Math.max(0, starts - (isUnanswered && assistantHashes.length > 0 ? 1 : 0))
}

function threadAfter(
  { facts, thread: name, operation }: RequestToCount,
  { known, from }: Place,
  run: Run,
  {
    number,
    loopState,
    errors,
    isRetry,
  }: Pick<Thread, 'number' | 'loopState' | 'errors'> & { readonly isRetry: boolean },
): Thread {
  return {
    id: known ? known.id : operation,
    name,
    number,
    operator: known?.operator,
    // Where the system text changes with each request, the first one counts; one that the provider keeps is not sent again.
    system: from ? from.system : facts.system,
    userMessageHashes: merged(
      from?.userMessageHashes ?? NO_HASHES,
      facts.userMessageHashes,
      MAX_USER_MESSAGES,
    ),
    userMessageCount: facts.userMessageHashes.length,
    assistantHashes: merged(
      from?.assistantHashes ?? NO_HASHES,
      facts.assistantHashes,
      MAX_ASSISTANT_MESSAGES,
    ),
    unansweredStarts: unansweredStarts(from, facts, isRetry),
    run,
    responses: from?.responses,
    context: from?.context,
    continuedFrom: addContinuation(from, facts),
    loopState,
    errors,
    noticeSent: known?.noticeSent,
    dropsThinking: known?.dropsThinking,
  }
}

function sessionAfter(
  session: Session,
  facts: RequestFacts,
  { known, from }: Place,
  thread: Thread,
  totals: Totals,
  record: SessionRecord,
): Session {
  const { threads, usage, forgotten, contexts, operator } = session
  // The new thread shows the answer to a prompt that was sent in another thread too: one start less is unanswered there.
  const other = known ? undefined : startOf(threads, facts)
  const others = other
    ? threads.map((one) =>
        one === other ? { ...one, unansweredStarts: (one.unansweredStarts ?? 1) - 1 } : one,
      )
    : threads
  const [oldest] = threads
  const lost = known ? (from ? undefined : known) : threads.length === MAX_THREADS ? oldest : undefined
  return {
    threads: withThread(others, known, thread),
    usage,
    totals,
    forgotten: lost ? withForgotten(forgotten, lost) : forgotten,
    contexts,
    record,
    operator,
  }
}

/** Returns the number of an iteration that clients see: from 1 after a reset. */
function sinceReset(iteration: number, { operator }: Run): number {
  return operator?.base ? Math.max(1, iteration - operator.base.iterations) : iteration
}

/**
 * Counts a request in its session. Idempotent: the same request again is a retry and changes no count.
 *
 * Objects that are made for every request are written out in full: one of a fixed shape costs a tenth of one that is spread.
 */
export function countRequest(session: Session, request: RequestToCount): Changed<RunState> {
  const { facts, now, follow, checkErrors, asked } = request
  const place = placeOf(session, request)
  const { known, from } = place
  const run = known && !place.startsRun ? known.run : newRun(request.operation, now)
  const before = retryOf(run, facts)
  const isRetry = before !== undefined
  const { iteration, resendCount } = numberOf(run, facts, before)
  const limits = asked && limitsInForce(asked.limits, session, known, place.startsRun ? undefined : run)
  const loopMode = loopModeInForce(session, known)
  const loopState = follow?.(from?.loopState ?? INITIAL_LOOP_STATE, loopMode)
  const checked = known?.errors && checkErrors?.(known.errors)
  const reaction = reactionOf(known, facts, isRetry)
  const step: Step = { iteration, before, reaction: place.startsRun ? undefined : reaction, limits }
  const next = runAfter(run, request, known, step)
  const errors = checked ? checked.streaks : known?.errors
  const number = threadNumber(session, known)
  const thread = threadAfter(request, place, next, { number, loopState, errors, isRetry })
  const late = isLate(next.demands, facts.fingerprint)
  const totals = totalsAfter(session, request, {
    before: run,
    after: next,
    reaction,
    isRelayedAfterEnd: late && !isRetry,
  })
  const over = place.startsRun ? known?.run : undefined
  const end = over && endBefore(over, facts)
  const ended = over && recordOf(over, number, end)
  const record = recordRequest(session, number, ended, run.finalAnswer ? undefined : asked)
  const after = sessionAfter(session, facts, place, thread, totals, record)
  return {
    session: after,
    result: {
      iteration: sinceReset(iteration, next),
      toolCalls: next.toolCalls,
      thread: number,
      isRetry,
      resendCount,
      isNewRun: place.startsRun,
      isNew: session.totals === undefined,
      ended: ended && end && !over.isReported ? { ...ended, state: end } : undefined,
      run: usedBy(next, now, iteration),
      // A request after the end of its run is not counted, and is one too many all the same.
      session: usedIn(after, now, run.finalAnswer ? 1 : 0),
      contextTokens: contextTokens(from, facts),
      isStagnating: loopState !== undefined && isStagnating(loopState.memory.history),
      wasIgnored: next.wasIgnored === true,
      reaction,
      loop: loopState?.finding,
      loopState,
      reductions: session.contexts?.reductions,
      finalAnswer: run.finalAnswer,
      limits,
      stated: next.stated,
      loopMode,
      isStopAsked: next.operator?.isStopAsked === true,
      hasErrors: known?.errors !== undefined,
      storm: checked?.reply,
      stopTries: run.stopTries,
      asksForOtherForm: late,
      noticeSent: known?.noticeSent,
      dropsThinking: known?.dropsThinking,
    },
  }
}
