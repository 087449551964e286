/** How one more request changes what is remembered of its session. */

import type { Hash } from '../hash.ts'
import { INITIAL_LOOP_STATE, type LoopState } from '../loop/observe.ts'
import { isStagnating } from '../loop/stagnation.ts'
import { merged, withNewest } from '../newest.ts'
import { isLate, withDemands } from './demands.ts'
import { addContinuation, isFork } from './fork.ts'
import type { RequestFacts } from './request-facts.ts'
import {
  type CheckErrors,
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
import { counted, withForgotten } from './totals.ts'

/** Bounds of what one session remembers. */
const MAX_THREADS = 64
const MAX_HUMANS = 128
const MAX_ANCESTRY = 32
/** Retries come right after what they repeat. An older body again is a model call like any other. */
const MAX_SEEN = 4
/** Bytes that were answered so often are not sent again for want of an answer, nor for some samples to choose from. */
const MAX_REPEATS = 32

const NO_HASHES: readonly Hash[] = []
const NONE_SEEN: readonly RecentRequest[] = []

/** How full the context window is before a request; a history that got shorter takes less in proportion. */
function filledBy(thread: Thread | undefined, { bytes, previous }: RequestFacts): number | undefined {
  const context = thread?.context
  if (!context) return undefined
  const isShorter = bytes !== undefined && previous === undefined && bytes < context.requestBytes
  return isShorter ? (context.tokens * bytes) / context.requestBytes : context.tokens
}

/** What the newest answer made of the warning before it; `undefined` where there was none, or it is not to be seen. */
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

function newRun(now: number): Run {
  return {
    startedAt: now,
    askedAt: now,
    iteration: 0,
    toolCalls: 0,
    recentRequests: NONE_SEEN,
    usage: undefined,
    isWarned: undefined,
    wasIgnored: undefined,
    isAnswered: undefined,
    finalAnswer: undefined,
    stopTries: undefined,
    demands: undefined,
  }
}

/** The thread that was used last comes last, and takes the place of `known`. */
function withThread(
  threads: readonly Thread[],
  known: Thread | undefined,
  thread: Thread,
): readonly Thread[] {
  if (threads.length === 1 && threads[0] === known) return [thread]
  const others = known ? threads.filter((candidate) => candidate !== known) : threads
  return withNewest(others, thread, MAX_THREADS)
}

/** What a request is to the threads of its session. */
interface Place {
  /** The thread it is counted in; unset where it begins one. */
  readonly known: Thread | undefined
  /** The same where its conversation goes on, and does not begin again. */
  readonly from: Thread | undefined
  readonly startsRun: boolean
}

function placeOf(
  session: Session,
  facts: RequestFacts,
  threadName: string,
  now: number,
  isDerived: boolean,
): Place {
  const found = findThread(session, facts, threadName, isDerived)
  const isBranch = found !== undefined && isFork(found, facts) && !retryOf(found.run, facts)
  if (!found || isBranch) return { known: undefined, from: undefined, startsRun: true }
  const isOver = isDerived ? startsOver(found, facts) : beginsAnew(found, facts, now)
  if (isOver) return { known: found, from: undefined, startsRun: true }
  return { known: found, from: found, startsRun: startsRun(found, facts) }
}

/** A run after one more request, which was given the number `iteration`. `before`: it is one of the run's again. */
function runAfter(
  run: Run,
  facts: RequestFacts,
  {
    iteration,
    before,
    from,
    reaction,
    demands,
    now,
  }: {
    readonly iteration: number
    readonly before: RecentRequest | undefined
    readonly from: Thread | undefined
    readonly reaction: WarningReaction | undefined
    readonly demands: readonly Hash[]
    readonly now: number
  },
): Run {
  const { fingerprint, newestAssistant: newest } = facts
  // A request that was changed and sent again shows the same calls again.
  const isCounted = before !== undefined || (newest !== undefined && from?.assistantHashes.includes(newest))
  return {
    startedAt: run.startedAt,
    askedAt: now,
    iteration: Math.max(run.iteration, iteration),
    toolCalls: Math.max(facts.toolCalls, run.toolCalls + (isCounted ? 0 : facts.newToolCalls)),
    recentRequests: before
      ? renumbered(run.recentRequests, before, iteration)
      : withNewest(run.recentRequests, { fingerprint, iteration }, MAX_SEEN),
    usage: run.usage,
    isWarned: reaction ? false : run.isWarned,
    wasIgnored: reaction ? reaction === 'ignored' : run.wasIgnored,
    isAnswered: before ? run.isAnswered : undefined,
    finalAnswer: run.finalAnswer,
    stopTries: run.stopTries,
    demands: withDemands(run.demands, demands, fingerprint, run.finalAnswer !== undefined),
  }
}

/** The number of a request in its run, and which sending of its bytes it is where that counts. `before`: the one before. */
function numberOf(
  run: Run,
  { iteration }: RequestFacts,
  before: RecentRequest | undefined,
): { readonly iteration: number; readonly resendCount: number | undefined } {
  const answered = before?.answered ?? 1
  const isRepeat = before !== undefined && !run.finalAnswer && answered >= MAX_REPEATS
  if (before && !isRepeat) return { iteration: before.iteration, resendCount: undefined }
  // Of a run that was stopped nothing counts any more: its last step in another form is no further one.
  const more = run.finalAnswer ? 0 : 1
  return {
    iteration: Math.max(iteration, run.iteration + more),
    resendCount: isRepeat ? answered + 1 : undefined,
  }
}

function renumbered(
  recentRequests: readonly RecentRequest[],
  one: RecentRequest,
  iteration: number,
): readonly RecentRequest[] {
  if (one.iteration === iteration) return recentRequests
  return recentRequests.map((other) => (other === one ? { ...one, iteration } : other))
}

/** How often a prompt was sent without an answer having been shown. What a compacted history leaves of it is no start. */
function startsAfter(
  from: Thread | undefined,
  { isPrompt, assistantHashes }: RequestFacts,
  isRetry: boolean,
): number {
  const unansweredStarts = from?.unansweredStarts ?? 0
  const isUnanswered = !from || from.assistantHashes.length === 0
  if (isPrompt) return unansweredStarts + (isRetry || isUnanswered ? 1 : 0)
  return Math.max(0, unansweredStarts - (isUnanswered && assistantHashes.length > 0 ? 1 : 0))
}

/** A thread after one more request. */
function threadAfter(
  name: string,
  { known, from }: Place,
  facts: RequestFacts,
  run: Run,
  { loopState, errors, isRetry }: Pick<Thread, 'loopState' | 'errors'> & { readonly isRetry: boolean },
): Thread {
  return {
    name,
    // Where it is another in each request, the first one counts; what the provider keeps is not sent again.
    system: from ? from.system : facts.system,
    userMessageHashes: merged(from?.userMessageHashes ?? NO_HASHES, facts.userMessageHashes, MAX_HUMANS),
    userMessageCount: facts.userMessageHashes.length,
    assistantHashes: merged(from?.assistantHashes ?? NO_HASHES, facts.assistantHashes, MAX_ANCESTRY),
    unansweredStarts: startsAfter(from, facts, isRetry),
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

/** A session with one of its threads as it is after one more request. */
function sessionAfter(
  session: Session,
  facts: RequestFacts,
  { known, from }: Place,
  thread: Thread,
  totals: Totals,
): Session {
  const { threads, usage, forgotten, contexts } = session
  // One that another agent began with the same prompt has an answer that nobody has shown less.
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
  }
}

/**
 * Takes a request into account. Idempotent: the same request again is a retry and changes no count. `isDerived`: the
 * session has no name but what it was asked and first answered. `follow` takes the request in for the loop guard.
 * `demands`: what it wants besides plain text.
 *
 * What is made here for every request is written out in full: an object of one shape costs a tenth of one that is spread.
 */
export function countRequest(
  session: Session,
  facts: RequestFacts,
  threadName: string,
  now: number,
  isDerived = false,
  follow?: (loopState: LoopState) => LoopState,
  enterStorm?: CheckErrors,
  demands: readonly Hash[] = NO_HASHES,
): { session: Session; runState: RunState } {
  const place = placeOf(session, facts, threadName, now, isDerived)
  const { known, from } = place
  const run = known && !place.startsRun ? known.run : newRun(now)
  const before = retryOf(run, facts)
  const { iteration, resendCount } = numberOf(run, facts, before)
  const loopState = follow?.(from?.loopState ?? INITIAL_LOOP_STATE)
  const storm = known?.errors && enterStorm?.(known.errors)
  const reaction = reactionOf(known, facts, before !== undefined)
  const next = runAfter(run, facts, {
    iteration,
    before,
    from: known,
    reaction: place.startsRun ? undefined : reaction,
    demands,
    now,
  })
  const thread = threadAfter(threadName, place, facts, next, {
    loopState,
    errors: storm ? storm.streaks : known?.errors,
    isRetry: before !== undefined,
  })
  const late = isLate(next.demands, facts.fingerprint)
  const totals = counted(session, facts, run, next, reaction, now, late && !before)
  const after = sessionAfter(session, facts, place, thread, totals)
  return {
    session: after,
    runState: {
      iteration,
      toolCalls: next.toolCalls,
      isRetry: before !== undefined,
      resendCount,
      isNewRun: place.startsRun,
      isNew: session.totals === undefined,
      run: usedBy(next, now, iteration),
      // What a run that was stopped asks for is not counted, and is one too many all the same.
      session: usedIn(after, now, run.finalAnswer ? 1 : 0),
      contextTokens: filledBy(from, facts),
      isStagnating: loopState !== undefined && isStagnating(loopState.memory.history),
      wasIgnored: next.wasIgnored === true,
      reaction,
      loop: loopState?.finding,
      loopState,
      reductions: session.contexts?.reductions,
      finalAnswer: run.finalAnswer,
      hasErrors: known?.errors !== undefined,
      storm: storm?.reply,
      stopTries: run.stopTries,
      isLate: late,
      noticeSent: known?.noticeSent,
      dropsThinking: known?.dropsThinking,
    },
  }
}
