/** How a session changes after a request was counted: by an answer, by a failure, or by the end of the run. */

import type { Named } from '../by-name.ts'
import type { Reduction } from '../context-window.ts'
import { add, countsOf, minus } from '../counters.ts'
import type { Hash } from '../hash.ts'
import { afterNotice, afterRefusedNotice, recordCalls } from '../loop/loop-state.ts'
import type { PendingCall } from '../loop/tool-call.ts'
import { type IterationFacts, type SessionRecord, withIteration, withTools } from '../operator/session-record.ts'
import type { FinalAnswer } from '../terminal.ts'
import type { CallUsage } from '../usage.ts'
import { NO_STOP_ATTEMPTS } from './run.ts'
import {
  type AnswerParts,
  type Changed,
  countsSinceReset,
  type FirstAnswer,
  isLate,
  type RecentRequest,
  type RelayedAnswer,
  type Run,
  type RunState,
  retryOf,
  type Session,
  type StopAttempts,
  type Thread,
  usedSinceReset,
  withAnswer,
  withIds,
  withRecent,
  withRelayed,
} from './session.ts'

/** Identifies a request that was counted: by a hash of its bytes, and by the name of its thread. */
export interface CountedRequest {
  readonly fingerprint: string
  readonly thread: string
}

/** Returns the thread that a request was counted in; `undefined` where the session has forgotten it. */
export function threadOf({ threads }: Session, request: CountedRequest): Thread | undefined {
  return threads.findLast(({ name, run }) => name === request.thread && retryOf(run, request) !== undefined)
}

/** Changes one of the threads of a session, and its run; a thread that the session has forgotten changes nothing. */
export function withThread(session: Session, thread: Thread, change: Partial<Thread>, inRun?: Partial<Run>): Session {
  const changed = { ...thread, ...change }
  if (inRun) changed.run = { ...thread.run, ...inRun }
  return { ...session, threads: session.threads.map((one) => (one === thread ? changed : one)) }
}

/** Changes the thread that a request was counted in, and its run; a session that has forgotten it stays unchanged. */
export function changeThread(session: Session, request: CountedRequest, change: Partial<Thread>, inRun?: Partial<Run>) {
  const thread = threadOf(session, request)
  return thread ? withThread(session, thread, change, inRun) : session
}

/** The facts about the answer to a counted request. */
export interface AnswerFacts extends Pick<AnswerParts, 'tools'> {
  readonly usage: CallUsage
  /** Ids by which the client may continue from it. */
  readonly ids: readonly string[]
  readonly requestBytes: number
  readonly messages?: number | undefined
  /** The answer calls no tool; unset if that is not known. */
  readonly callsNothing?: boolean | undefined
  /** Its outcome for the record; unset if it is not recorded. */
  readonly iteration?: IterationFacts | undefined
  /** The answer's calls, where their results will come without them. */
  readonly calls?: readonly PendingCall[] | undefined
  /** The answer broke off. */
  readonly isCut?: boolean
  /** Tokens of results in the context, by tool, where the provider keeps the conversation. */
  readonly results?: readonly Named<number>[] | undefined
}

/** Records what an answer used and its ids, in its run and in the session. */
export function noteAnswer(session: Session, request: CountedRequest, facts: AnswerFacts): Session {
  const { usage, ids, requestBytes, messages, calls, callsNothing, iteration, isCut, results } = facts
  const thread = threadOf(session, request)
  const counts = countsOf(usage)
  const { number: agent = 0, run: { model = '' } = {} } = thread ?? {}
  const counted = withAnswer(session, counts, { agent, model, tools: facts.tools })
  if (!thread) return counted
  const { run, loopState } = thread
  const sent = retryOf(run, request)
  const outcome = isCut ? undefined : 'answered'
  const { input, lastInput = input, output, estimated } = usage
  const change: Partial<Thread> = {
    responses: withIds(thread.responses, ids),
    // Estimated tokens say too little about the context window.
    context:
      estimated || input === 0 ? thread.context : { tokens: lastInput + output, requestBytes, messages, results },
    loopState: calls && loopState ? recordCalls(loopState, calls) : loopState,
  }
  const after = withThread(counted, thread, change, {
    quietSince: iteration?.endedAt ?? run.quietSince,
    counts: add(run.counts, counts),
    // An answer to a request before the newest does not show whether the run has ended.
    isAnswered: isNewest(run, request) ? (callsNothing ?? run.isAnswered) : run.isAnswered,
    failedAs: undefined,
    // A connection that broke off after the answer has released it.
    recentRequests: sent ? withRecent(run, sent, { outcome: sent.outcome ?? outcome }) : run.recentRequests,
  })
  return { ...after, record: recordAfter(session, request, thread, iteration, usage) }
}

/** Returns whether no other request of the run was counted after this one. */
function isNewest({ recentRequests }: Run, { fingerprint }: CountedRequest): boolean {
  return recentRequests.at(-1)?.fingerprint === fingerprint
}

/** Returns the record with the outcome of a request of a thread. */
function recordAfter(
  { record }: Session,
  request: CountedRequest,
  { run, number }: Thread,
  facts: IterationFacts | undefined,
  usage: CallUsage | undefined,
): SessionRecord | undefined {
  if (!record || !facts) return record
  const { iteration = run.counts.iterations ?? 0 } = retryOf(run, request) ?? {}
  const made = iteration - (run.operator?.base?.counts.iterations ?? 0)
  // The request for a final answer is no iteration: it stands beside the last one.
  return withIteration(record, number, Math.max(1, facts.verdict === 'stop' ? made - 1 : made), facts, usage)
}

/** Records the ids of an answer that has begun: a client may continue from it before it is over. */
export function responseBegan(session: Session, request: CountedRequest, ids: readonly string[]): Session {
  const thread = threadOf(session, request)
  return thread ? withThread(session, thread, { responses: withIds(thread.responses, ids) }) : session
}

/** An answer that a client is about to have got. */
export interface Delivered extends Pick<RelayedAnswer, 'operation' | 'callIds' | 'calls' | 'isFirst' | 'isCut'> {}

/** How a client may continue from an answer by its id. */
interface KeptAnswer {
  readonly ids: readonly string[]
  /** The answer's calls, as their results may come without them; unset if the loop guard does not follow it. */
  readonly calls: readonly PendingCall[] | undefined
  /** Results of earlier calls come with these. */
  readonly isOnly: boolean
}

/** Records the calls of an answer before the client has its end, and whether the answer is whole. */
export function noteRelayed(
  session: Session,
  request: CountedRequest,
  answer: Delivered,
  { ids, calls, isOnly }: Partial<KeptAnswer> = {},
): Session {
  const thread = threadOf(session, request)
  const sent = thread && retryOf(thread.run, request)
  if (!thread || !sent) return session
  const { fingerprint } = request
  const { run } = thread
  const relayed = { ...answer, fingerprint, iteration: sent.iteration }
  const recentRequests = answer.isCut ? run.recentRequests : withRecent(run, sent, { outcome: 'answered' })
  const loopState = calls && thread.loopState ? recordCalls(thread.loopState, calls, isOnly) : thread.loopState
  const change = { relayed: withRelayed(thread.relayed, relayed), responses: withIds(thread.responses, ids), loopState }
  return withThread(session, thread, change, { recentRequests })
}

/** Takes back calls that were recorded as relayed and that the client does not get: a guard has blocked them. */
export function withoutRelayed(session: Session, request: CountedRequest, blocked: readonly Hash[]): Session {
  const thread = threadOf(session, request)
  if (!thread?.relayed) return session
  const left: RelayedAnswer[] = []
  for (const answer of thread.relayed) {
    // Other answers may have calls of the same ids.
    const isIts = answer.fingerprint === request.fingerprint
    const callIds = answer.callIds.filter((id) => !(isIts && blocked.includes(id)))
    if (callIds.length > 0) left.push(callIds.length < answer.callIds.length ? { ...answer, callIds } : answer)
  }
  return withThread(session, thread, { relayed: left.length > 0 ? left : undefined })
}

/**
 * Records the outcome of one sending of a request, where it is another than the count assumes: a retry got a whole
 * answer (`isAnswered`), or the first sending, which counts as answered until then, got none.
 */
export function noteDelivery(session: Session, request: CountedRequest, isAnswered: boolean): Session {
  const thread = threadOf(session, request)
  const sent = thread && retryOf(thread.run, request)
  if (!thread || !sent) return session
  const answered = isAnswered ? (sent.answered ?? 1) + 1 : 0
  return withThread(session, thread, {}, { recentRequests: withRecent(thread.run, sent, { answered }) })
}

/**
 * Records that the model got the notice of a request. Only then it is a warning that can be ignored; one about a loop
 * counts if no newer request was counted meanwhile. `isWarning`: it warned of the end of the budget.
 */
export function noticeReachedModel(session: Session, request: CountedRequest, isWarning: boolean): Session {
  const thread = threadOf(session, request)
  if (!thread) return session
  const { run } = thread
  const loopState = thread.loopState && isNewest(run, request) ? afterNotice(thread.loopState) : thread.loopState
  return withThread(session, thread, { loopState }, isWarning ? { isWarned: true } : undefined)
}

/** Records that the provider refused the notice of a request. `isMute`: no channel is left for notices. */
export function noticeRefused(session: Session, request: CountedRequest, isMute: boolean): Session {
  const thread = threadOf(session, request)
  if (!thread?.loopState || !isNewest(thread.run, request)) return session
  return withThread(session, thread, { loopState: afterRefusedNotice(thread.loopState, isMute) })
}

/** Records that the model called no tool after a warning; the next request is not checked for its reaction. */
export function noteAcknowledged(session: Session, request: CountedRequest): Session {
  const after = changeThread(session, request, {}, { isWarned: false, wasIgnored: false })
  return { ...after, counts: add(after.counts, { acknowledged: 1 }) }
}

/** What a request counts that is a model call. */
export const ONE_ITERATION = { iterations: 1 }

/**
 * Returns settings of a run, or of its session, where an iteration of the run is taken back: if an operator has reset
 * them since, they began one iteration earlier.
 */
function withoutBefore<Settings extends Pick<NonNullable<Run['operator']>, 'base'>>(
  settings: Settings | undefined,
  { operator }: Run,
  iteration: number,
): Settings | undefined {
  const reset = operator?.base
  if (!reset || settings?.base?.at !== reset.at || iteration > (reset.counts.iterations ?? 0)) return settings
  return { ...settings, base: { ...settings.base, counts: minus(settings.base.counts, ONE_ITERATION) } }
}

/** Returns the recent requests of a run, and releases those of its newest iteration, but for `kept`. */
export function withReleased({ counts, recentRequests }: Run, kept?: string): readonly RecentRequest[] {
  return recentRequests.map((one) =>
    one.iteration === counts.iterations && one.fingerprint !== kept ? { ...one, outcome: 'released' } : one,
  )
}

/** Releases the iteration of a request that the provider did not answer: the agent's next request gets its number. */
export function releaseIteration(
  session: Session,
  request: CountedRequest,
  facts?: IterationFacts,
  failedAs?: Run['failedAs'],
): Session {
  const thread = threadOf(session, request)
  if (!thread) return session
  const { run } = thread
  const recorded = { ...session, record: recordAfter(session, request, thread, facts, undefined) }
  const sent = retryOf(run, request)
  if (!sent || sent.outcome === 'released' || sent.iteration !== run.counts.iterations) return recorded
  const quietSince = facts?.endedAt ?? run.quietSince
  const recentRequests = withRecent(run, sent, { outcome: sent.isMade ? 'answered' : 'released' })
  if (sent.isMade) return withThread(recorded, thread, {}, { failedAs, quietSince, recentRequests })
  const operator = withoutBefore(run.operator, run, sent.iteration)
  const change = { failedAs, quietSince, counts: minus(run.counts, ONE_ITERATION), recentRequests, operator }
  const ofSession = withoutBefore(session.operator, run, sent.iteration)
  // Requests after the end of a run are not counted, but for those that are relayed.
  const wasCounted = !run.finalAnswer || isLate(run, request.fingerprint)
  const counts = wasCounted ? minus(session.counts, ONE_ITERATION) : session.counts
  return { ...withThread(recorded, thread, {}, change), counts, operator: ofSession }
}

/**
 * Records the answer that ended a run; every further request of the run gets it, until the user speaks. `isBeyond`: its
 * request came after the last iteration; else the run ended within one.
 */
export function endRun(session: Session, request: CountedRequest, answer: FinalAnswer, isBeyond = true): Session {
  const thread = threadOf(session, request)
  if (!thread) return session
  const { run } = thread
  const made = countsSinceReset(run)
  const ended = { at: run.askedAt, counts: isBeyond ? minus(made, ONE_ITERATION) : made }
  const finalAnswer = { ...answer, ended: run.finalAnswer?.ended ?? ended }
  const after = withThread(session, thread, {}, { finalAnswer })
  return isBeyond && !run.finalAnswer ? { ...after, counts: minus(after.counts, ONE_ITERATION) } : after
}

/**
 * Why a request for a run's final answer brought none to record. `variant`: the form in which the provider failed.
 * `failedAt`: in milliseconds since the epoch; unset if the failure is not counted. `isIncomplete`: the answer was cut
 * off, or could not be read.
 */
export interface StopAttempt {
  readonly variant?: string
  readonly failedAt?: number
  readonly isIncomplete?: true
}

/** Records a request for a run's final answer that brought no answer to record; returns all such attempts. */
export function noteStopAttempt(session: Session, request: CountedRequest, tried: StopAttempt): Changed<StopAttempts> {
  const thread = threadOf(session, request)
  if (!thread) return { session, result: NO_STOP_ATTEMPTS }
  let { failedForms, failures, failingSince, truncated } = thread.run.stopTries ?? NO_STOP_ATTEMPTS
  const { variant, failedAt, isIncomplete } = tried
  if (isIncomplete) truncated++
  if (variant !== undefined) failedForms = [...failedForms.filter((failed) => failed !== variant), variant]
  if (failedAt !== undefined) {
    failingSince = failures === 0 ? failedAt : Math.min(failedAt, failingSince)
    failures++
  }
  const stopTries = { failedForms, failures, failingSince, truncated }
  return { session: withThread(session, thread, {}, { stopTries }), result: stopTries }
}

/** Resumes a run whose limit was raised: its newest request counts again; one from before the end changes nothing. */
export function resumeRun(session: Session, request: CountedRequest): Session {
  const thread = threadOf(session, request)
  const { finalAnswer, counts } = thread?.run ?? {}
  if (!thread || !finalAnswer || retryOf(thread.run, request)?.iteration !== counts?.iterations) return session
  // Others that got the recorded answer did not go on from the answer that this one gets.
  const recentRequests = withReleased(thread.run, request.fingerprint)
  const after = withThread(session, thread, {}, { finalAnswer: undefined, recentRequests })
  return { ...after, counts: add(after.counts, ONE_ITERATION) }
}

/** Adds the first answer, whose request called `tools`, to a session that has just got its id. */
export function adoptFirst(
  session: Session,
  request: CountedRequest,
  runState: RunState,
  { askedAt, usage, endedAt }: FirstAnswer,
  now: number,
  tools: readonly string[],
): Changed<RunState> {
  const before = threadOf(session, request) ?? runState.thread
  const counts = countsOf(usage)
  const run = { ...before.run, startedAt: askedAt, counts: add(before.run.counts, counts) }
  const { record } = session
  const { number } = before
  const outcome = { status: 200, verdict: 'allow', tier: undefined, loop: undefined, overflow: undefined } as const
  const first = record && withIteration(record, number, 1, { askedAt, endedAt, ...outcome }, usage)
  const paid = withAnswer(withThread(session, before, { run }), counts, { agent: number, model: run.model ?? '' })
  const after: Session = {
    ...paid,
    counts: add(paid.counts, { iterations: 1 }),
    record: first && withTools(first, number, tools),
    startedAt: askedAt,
  }
  const used = { ...usedSinceReset(run, now), iterations: runState.used.iterations }
  const thread = { ...before, run }
  return { session: after, result: { ...runState, run, thread, used, usedBySession: usedSinceReset(after, now) } }
}

/** Changes the context windows of models that the session found to be smaller. */
export function changeReductions(
  session: Session,
  _request: CountedRequest,
  change: (reductions: readonly Reduction[]) => readonly Reduction[],
): Session {
  return { ...session, reductions: change(session.reductions ?? []) }
}
