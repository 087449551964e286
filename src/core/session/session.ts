/**
 * What Governor remembers of an agent's conversation.
 *
 * The transcript in the request is the truth. A session remembers what the transcript no longer shows (a compacted
 * history) or never showed (limits that were reached, answers that were recorded). Plain data and pure functions, so
 * that any store can hold a session and a replica that loses a race can run the same change again. All times are
 * milliseconds since the epoch.
 */

import type { SubjectLimits } from '../budget/ledger.ts'
import { type Amounts, amountsOf, type LimitName, type LimitPair } from '../budget/meters.ts'
import type { RateMeter, Velocity } from '../budget/velocity.ts'
import { type Named, withAmounts } from '../by-name.ts'
import type { Reduction } from '../context-window.ts'
import { add, type Counts, minus, NO_COUNTS } from '../counters.ts'
import type { Gap } from '../gaps.ts'
import type { Hash } from '../hash.ts'
import type { LoopFinding } from '../loop/escalation.ts'
import type { LoopState } from '../loop/loop-state.ts'
import type { LoopMode } from '../loop/patterns.ts'
import type { EndedRun, SessionRecord } from '../operator/session-record.ts'
import type { CallGuardName, FinalAnswer, Terminal } from '../terminal.ts'
import type { CallUsage } from '../usage.ts'

/** How many threads a session remembers, and how many response ids each thread. */
export const MAX_THREADS = 64
const MAX_RESPONSES = 8
/** How many requests a run remembers. A retry comes soon: an older body sent again is a model call like any other. */
export const MAX_RECENT_REQUESTS = 4

/** A request that was counted, known by a hash of its bytes. */
export interface RecentRequest {
  readonly fingerprint: string
  readonly iteration: number
  /**
   * Its newest sending got a whole answer, or none, so that its iteration was released; unset while it is in flight.
   */
  readonly outcome?: 'answered' | 'released' | undefined
  /** An earlier sending got a whole answer: whatever becomes of the newest, its iteration is made. */
  readonly isMade?: boolean | undefined
  /** How often it was answered completely; unset means once. */
  readonly answered?: number | undefined
  /** The agents that its newest answer started, and in which second. */
  readonly spawned?: { readonly count: number; readonly second: number } | undefined
}

/** Requests for the final answer of a stopped run that brought no answer to record. */
export interface StopAttempts {
  /** Names of the request variants that the provider failed on; the newest failure is the last. */
  readonly failedForms: readonly string[]
  readonly failures: number
  /** When it failed first. */
  readonly failingSince: number
  /** Answers that were cut off. */
  readonly truncated: number
}

/** What a request demands besides plain text, as a call of a forced tool; identified by a hash of its name. */
interface Demand {
  readonly name: Hash
  /** Fingerprint of the request that made it after the end of the run; unset if it was made before. */
  readonly lateIn?: string | undefined
}

/** The settings of an operator for a thread; they take precedence over all others. */
interface ThreadSettings {
  readonly budget?: Partial<Amounts> | undefined
  readonly loopMode?: LoopMode | undefined
}

/** The changes of an operator to one run. */
interface RunSettings {
  /** Limits that were raised. */
  readonly extended?: Partial<Amounts> | undefined
  /** The next request gets the last answer. */
  readonly isStopAsked?: boolean | undefined
  /** When it was reset, and its counts then; unset if it was never reset. */
  readonly base?: { readonly at: number; readonly counts: Counts } | undefined
}

/** The settings of an operator for all threads of a session, including later ones. */
interface SessionSettings extends ThreadSettings, Pick<RunSettings, 'extended' | 'base'> {
  /** Hashes of the idempotency keys of requests that must not be executed again, oldest first. */
  readonly done?: readonly string[] | undefined
}

/** What an operator was asked about a run. Each limit is asked about once; one that was raised is another limit. */
export interface Question {
  readonly meter: LimitName
  readonly max: number
  /** Without an answer the run is stopped then. */
  readonly until: number
}

/** The steps of an agent from one user message to the next. */
export interface Run {
  /** The name of the operation that began it, unique over all replicas. */
  readonly id: string
  readonly startedAt: number
  /** When its newest request came. */
  readonly askedAt: number
  /** When its newest answer or failure was over; unset before the first. */
  readonly quietSince?: number | undefined
  /** What its requests and their answers have counted. Its iterations are the highest iteration so far. */
  readonly counts: Counts
  /** The newest requests of the run and the iteration each was given, oldest first. */
  readonly recentRequests: readonly RecentRequest[]
  /** The model was warned, and no request has shown yet how it reacted. */
  readonly isWarned?: boolean | undefined
  /** The model ignored the newest warning that it reacted to. */
  readonly wasIgnored?: boolean | undefined
  /** The newest answer called no tool. */
  readonly isAnswered?: boolean | undefined
  /** The answer that ended the run, once Governor has stopped it. */
  readonly finalAnswer?: FinalAnswer | undefined
  /** The terminal state that the client got without a recorded answer, for example when the agent ended the run. */
  readonly ownEnd?: Terminal | undefined
  /** Its end was reported to metrics, which count a run once, also where it goes on. */
  readonly isReported?: boolean | undefined
  readonly stopTries?: StopAttempts | undefined
  readonly demands?: readonly Demand[] | undefined
  /** The limits of its newest request, without what operators have set; its target and its demands. */
  readonly limits?: LimitPair | undefined
  readonly timeLimits?: readonly SubjectLimits[] | undefined
  /** The limit on its session's rate; unset without one. */
  readonly velocity?: Velocity | undefined
  /** The limits that the system text states, as its first request had them; 0 for one that is not announced. */
  readonly announced?: Amounts | undefined
  readonly upstream?: string | undefined
  readonly model?: string | undefined
  /** The client's program, as its newest request named it. */
  readonly agent?: string | undefined
  /** The name of its access key; unset for one without a name. */
  readonly key?: string | undefined
  /** Its newest request got no answer, or was too large; unset after an answer. */
  readonly failedAs?: 'no_response' | 'context_overflow' | undefined
  /** Its session has reached a limit on its rate, since the request with this fingerprint. */
  readonly tooFast?: string | undefined
  /** Its newest request waits until then at most, as its session is above a limit on its rate. */
  readonly slowedUntil?: number | undefined
  readonly operator?: RunSettings | undefined
  readonly question?: Question | undefined
  /** The store could not confirm that it is the newest run of its thread, and no request has shown it since. */
  readonly isDoubted?: boolean | undefined
  /** Another replica may have relayed answers of it that the store does not know yet. */
  readonly mayLack?: boolean | undefined
  /** What another thread has made of its transcript. */
  readonly inherited?: Counts | undefined
}

/** How many answers a thread remembers, and how many calls of each. */
const MAX_RELAYED = 8
const MAX_RELAYED_CALLS = 16

/** An answer with calls that a client got. The provider drew the ids of the calls, so they identify the answer. */
export interface RelayedAnswer {
  /** The operation that it came in: equal requests get different answers. */
  readonly operation: string
  /** The request that it answered, and its number in its run. */
  readonly fingerprint: string
  readonly iteration: number
  /** The newest of its calls. */
  readonly callIds: readonly Hash[]
  /** How many calls it has, if those are more: they stand before these. */
  readonly calls?: number | undefined
  /** The request contained no answer: several agents may have sent it. */
  readonly isFirst?: true | undefined
  /** The thread has gone on from it. */
  readonly isFollowed?: true | undefined
  /** It broke off: it is an iteration only if the client shows a result of one of its calls. */
  readonly isCut?: true | undefined
}

/** The thread that another one branched off: its transcript goes on from an older answer of that thread. */
export interface Branch {
  /** The thread that the first of all these branches left. */
  readonly root: string | undefined
  readonly at: number
  /** Iterations that it inherited beyond that answer. */
  readonly ahead: number
  /** Unset once another thread of them went on: then their agents are others, and have not made what was inherited. */
  readonly mayBeRewind?: true | undefined
}

/** How much of a thread's context window is filled. `results`: by tool, where the provider keeps the conversation. */
export interface ThreadContext {
  readonly tokens: number
  readonly requestBytes: number
  /** How many messages its newest request had. */
  readonly messages?: number | undefined
  readonly results?: readonly Named<number>[] | undefined
}

/** One conversation of a session: sub-agents run in parallel under the id of their parent. */
export interface Thread {
  /** The client's name for it; empty if the client sends none. */
  readonly name: string
  /** The name of the operation that began it, unique over all replicas. */
  readonly id: string
  /** Counts the threads of a session from 1. */
  readonly number: number
  /** How many agents stand above it in the tree; unset for the main one. */
  readonly depth?: number | undefined
  readonly operator?: ThreadSettings | undefined
  /** The system text of its first request; whether a later one had another. */
  readonly system: Hash
  readonly changesSystem?: true | undefined
  /** The newest user messages that its newest request contained, oldest first. */
  readonly userMessageHashes: readonly Hash[]
  /** How many user messages, and messages, that request contained, and whether it ended in a user message. */
  readonly userMessageCount: number
  readonly endsInUserMessage?: boolean | undefined
  /** Its newest request had other words in the place of the question that its run answers: a harness writes them. */
  readonly changesQuestion?: boolean | undefined
  readonly messages?: number | undefined
  /** How long the thread's first request was, see `promptLengthOf`; unset if that contained answers. */
  readonly promptLength?: number | undefined
  /** Its first request came more than once: perhaps from as many agents. */
  readonly isPromptRepeated?: boolean | undefined
  /** The first and the newest answer that its requests have shown; unset before the first. */
  readonly first?: Hash | undefined
  readonly newest?: Hash | undefined
  /** The newest of them by its place, where its client has never shown the ids that it got: see `placedHash`. */
  readonly placed?: Hash | undefined
  /** The run as it is if a user message between its steps, which seemed to end it, is a harness's. */
  readonly interrupted?: { readonly run: Run; readonly loopState: LoopState | undefined } | undefined
  /** How many of its newest requests, one after the other, had a user's words after a newest answer with calls. */
  readonly midSteps?: number | undefined
  /** The newest answers with calls that its client got, oldest first. */
  readonly relayed?: readonly RelayedAnswer[] | undefined
  readonly branch?: Branch | undefined
  readonly run: Run
  /** Ids of its newest responses, oldest first. */
  readonly responses?: readonly string[] | undefined
  /** How much of the context window its newest answer left filled. */
  readonly context?: ThreadContext | undefined
  /** Ids of responses that a request has continued from, oldest first. */
  readonly continuedFrom?: readonly string[] | undefined
  /** The notice about calls that Governor removed from its newest response; `isDue`: its newest request carries it. */
  readonly blockNotice?: { readonly text: string; readonly isDue?: true } | undefined
  /** Unset while its calls are not observed. */
  readonly loopState?: LoopState | undefined
  /**
   * Governor injected or removed content that the client's history does not contain. Some providers bind reasoning to
   * the prompt that it was made for, and refuse a history whose earlier content differs.
   */
  readonly noticeSent?: true | undefined
  /** The provider is asked to leave out reasoning that was made for another prompt. */
  readonly dropsThinking?: true | undefined
}

/** Counts by name. Where two replicas counted apart, they are added. */
export type GuardMemory = Readonly<Record<string, number>>

/**
 * What the answers of a session have counted, by the number of its thread and by model; the input and its cost by tool.
 */
export interface Parts {
  readonly agents: readonly Named<Counts>[]
  readonly models: readonly Named<Counts>[]
  readonly tools: readonly Named<Counts>[]
}

export interface Session {
  /** Least recently used first; at most 64. */
  readonly threads: readonly Thread[]
  /** When its first request came; unset before. */
  readonly startedAt?: number | undefined
  /** The sum of all that its threads and runs have counted. */
  readonly counts: Counts
  /** The same in parts; unset before the first answer. */
  readonly parts?: Parts | undefined
  /** Context windows of its models that are smaller for now; unset if no request overflowed. */
  readonly reductions?: readonly Reduction[] | undefined
  /** Why it was not guarded, or not in full; each reason once. */
  readonly gaps?: readonly Gap[] | undefined
  readonly record?: SessionRecord | undefined
  readonly operator?: SessionSettings | undefined
  /** What guards remember of all its threads, by their names. */
  readonly guards?: Readonly<Partial<Record<CallGuardName, GuardMemory>>> | undefined
}

/** The first answer of a conversation that has no id yet. */
export interface FirstAnswer {
  /** When its request came. */
  readonly askedAt: number
  readonly usage: CallUsage
  /** When it was over. */
  readonly endedAt: number
}

/** How a model reacted to a warning: it said something or called no tool, or it called tools as before. */
export type WarningReaction = 'acknowledged' | 'ignored'

/** Where a request stands in its session. */
export interface RunState {
  /** The run and the thread that it is counted in, this request included. */
  readonly run: Run
  readonly thread: Thread
  /** How many calls of the run this request shows first, also where it was sent before. */
  readonly newCalls: number
  /** Iteration number of this request, from 1. */
  readonly iteration: number
  readonly isRetry: boolean
  /** How often the same bytes were sent, this time included; set if this makes the request count as an iteration. */
  readonly resendCount?: number | undefined
  readonly isNewRun: boolean
  /** The store did not know the session before. */
  readonly isNew: boolean
  /** The run that this request ended, where its end was not reported before. */
  readonly ended?: EndedRun | undefined
  /** This request included. */
  readonly used: Amounts
  readonly usedBySession: Amounts
  /** Tokens that fill the context window before this request; unset if that is not known. */
  readonly contextTokens?: number | undefined
  /** How the model reacted to the newest warning; set on the first request that shows it. */
  readonly reaction?: WarningReaction | undefined
  /** The loop that the newest step of the run completed; unset while the loop guard is disabled. */
  readonly loop?: LoopFinding | undefined
  /** The fault that kept the loop guard from observing the request. */
  readonly loopFault?: Error | undefined
  /** Set by an operator. */
  readonly loopMode?: LoopMode | undefined
  /** The meters of its session's rate; unset without a limit on that. */
  readonly rates?: readonly RateMeter[] | undefined
  readonly reductions?: readonly Reduction[] | undefined
  /** The limits in force: those of the request, with what operators have set. */
  readonly limits: LimitPair
  /** The answer that ended the run; unset where the request may be another agent's. */
  readonly finalAnswer?: FinalAnswer | undefined
  /** The run is over, and this request asks for an answer in another form than the requests before. */
  readonly asksForOtherForm: boolean
}

/** A changed session, and the result of the change. */
export interface Changed<Result> {
  readonly session: Session
  readonly result: Result
}

export const NEW_SESSION: Session = {
  threads: [],
  startedAt: undefined,
  counts: NO_COUNTS,
  parts: undefined,
  reductions: undefined,
  gaps: undefined,
  record: undefined,
  operator: undefined,
  guards: undefined,
}

/**
 * What one answer has counted. `agent`: the number of its thread, 0 without one. `tools`: by the results that its
 * prompt held.
 */
export interface AnswerParts {
  readonly agent: number
  readonly model: string
  readonly tools?: readonly Named<Counts>[] | undefined
}

/** Adds what an answer has counted to a session, and to the parts of it. */
export function withAnswer(session: Session, counts: Counts, { agent, model, tools = [] }: AnswerParts): Session {
  const { parts } = session
  return {
    ...session,
    counts: add(session.counts, counts),
    parts: {
      agents: withAmounts(parts?.agents ?? [], [{ name: String(agent), amount: counts }], add),
      models: withAmounts(parts?.models ?? [], [{ name: model, amount: counts }], add),
      tools: withAmounts(parts?.tools ?? [], tools, add),
    },
  }
}

/** Returns what a run or a session has counted since it was reset, if it was. */
export function countsSinceReset({ counts, operator }: Pick<Run | Session, 'counts' | 'operator'>): Counts {
  return operator?.base ? minus(counts, operator.base.counts) : counts
}

/**
 * Returns what a run or a session has used by `now` since it was reset, if it was. A replica with another clock may
 * have begun later than now.
 */
export function usedSinceReset(
  counted: Pick<Run | Session, 'startedAt' | 'counts' | 'operator'>,
  now: number,
): Amounts {
  const { startedAt = now, operator } = counted
  const from = Math.max(startedAt, operator?.base?.at ?? 0)
  return amountsOf(countsSinceReset(counted), Math.max(0, now - from) / 1_000)
}

/**
 * Returns the recent request of a run that had the same bytes; `undefined` if no recent one had. A request that only
 * adds to what the provider keeps repeats the newest one alone: behind another one the same bytes say something new.
 */
export function retryOf(
  { recentRequests }: Run,
  { fingerprint, isAppended }: { readonly fingerprint: string; readonly isAppended?: boolean | undefined },
): RecentRequest | undefined {
  const newest = isAppended ? recentRequests.length - 1 : 0
  const at = recentRequests.findLastIndex((one) => one.fingerprint === fingerprint)
  return at < newest ? undefined : recentRequests[at]
}

/** Returns whether a relayed answer is that of a recent request of a run. */
export function isOfRun({ fingerprint }: RelayedAnswer, run: Run): boolean {
  return retryOf(run, { fingerprint }) !== undefined
}

/** Returns the recent requests of a run with a change of one of them. */
export function withRecent(
  { recentRequests }: Run,
  sent: RecentRequest,
  change: Partial<RecentRequest>,
): readonly RecentRequest[] {
  return recentRequests.with(recentRequests.indexOf(sent), { ...sent, ...change })
}

/** Returns whether a request is relayed although its run is over. */
export function isLate({ demands = [] }: Run, fingerprint: string): boolean {
  return demands.some(({ lateIn }) => lateIn === fingerprint)
}

/** Returns ids of responses with further ones, each once: the newest are kept, and are the last. */
export function withIds(known: Thread['responses'], more: Thread['responses']): Thread['responses'] {
  return more?.length ? [...new Set([...(known ?? []), ...more])].slice(-MAX_RESPONSES) : known
}

/** Returns relayed answers with one more, or with further calls of a known one; the first and the newest are kept. */
export function withRelayed(known: Thread['relayed'] = [], answer: RelayedAnswer): Thread['relayed'] {
  const same = known.find(({ operation }) => operation === answer.operation)
  const callIds = [...new Set([...(same?.callIds ?? []), ...answer.callIds])].slice(-MAX_RELAYED_CALLS)
  const calls = Math.max(same?.calls ?? 0, answer.calls ?? 0)
  const next = { ...answer, callIds, calls: calls > callIds.length ? calls : undefined }
  const [first, ...later] = [...known.filter((one) => one !== same), next]
  // A history that goes back far still shows the first one.
  return first && [first, ...later.slice(1 - MAX_RELAYED)]
}

/** Returns the limits with an operator's changes; `configured` itself if nothing was changed. */
export function limitsInForce(configured: LimitPair, session: Session, thread?: Thread, run?: Run): LimitPair {
  const forAll = session.operator
  const forThread = thread?.operator
  const forRun = run?.operator
  if (!forAll && !forThread && !forRun) return configured
  return {
    run: { ...configured.run, ...forAll?.budget, ...forThread?.budget, ...forRun?.extended },
    session: { ...configured.session, ...forAll?.extended },
  }
}

/** Returns the mode of the loop guard that an operator has set; `undefined` if none has. */
export function loopModeInForce(session: Session, thread: Thread | undefined): LoopMode | undefined {
  return thread?.operator?.loopMode ?? session.operator?.loopMode
}
