/**
 * What Governor remembers of an agent's conversation.
 *
 * The transcript in the request is the truth; this is the memory of what it no longer shows (a compacted
 * history) or never did (limits that were reached, answers that were given). Plain data and pure functions, so
 * that any store can hold it and any replica that loses a race can run the same change again.
 */

import type { Amounts } from '../budget/meters.ts'
import type { Reduction, SessionContexts } from '../context-window.ts'
import type { Hash } from '../hash.ts'
import type { LoopFinding } from '../loop/escalation.ts'
import type { LoopState } from '../loop/observe.ts'
import type { FinalAnswer } from '../terminal.ts'
import type { CallUsage, Usage } from '../usage.ts'
import type { Demand } from './demands.ts'
import type { ErrorStreak, StormReply } from './error-streak.ts'
import type { StopAttempts } from './stop-attempts.ts'
import type { ThinkingState } from './thinking-state.ts'

/** A request that was given a number. */
export interface RecentRequest {
  readonly fingerprint: string
  readonly iteration: number
  /** How many of its sendings were answered to the end; unset: the first one was, as far as is known. */
  readonly answered?: number | undefined
}

/** From one human message to the next. */
export interface Run {
  /** Milliseconds since the epoch. */
  readonly startedAt: number
  /** When it was asked for something last. */
  readonly askedAt: number
  /** The highest iteration that was, or is being, answered. */
  readonly iteration: number
  readonly toolCalls: number
  /** The newest requests of the run and the iteration each was given, oldest first. */
  readonly recentRequests: readonly RecentRequest[]
  /** What its answers took; unset before the first. */
  readonly usage?: Usage | undefined
  /** The model was warned, and what it made of it is still to be seen. */
  readonly isWarned?: boolean | undefined
  /** It took no notice of the warning before. */
  readonly wasIgnored?: boolean | undefined
  /** The newest answer called nothing. */
  readonly isAnswered?: boolean | undefined
  /** The answer that ended the run, once Governor has stopped it. */
  readonly finalAnswer?: FinalAnswer | undefined
  /** Unset until Governor has stopped it in vain. */
  readonly stopTries?: StopAttempts | undefined
  /** Unset where its requests want nothing but plain text. */
  readonly demands?: readonly Demand[] | undefined
}

/** One conversation of a session: sub-agents run side by side under their parent's id. */
export interface Thread extends ThinkingState {
  /** The client's own name for it, where it sends one. */
  readonly name: string
  readonly system: Hash
  /** Human messages seen, oldest first. */
  readonly userMessageHashes: readonly Hash[]
  /** How many of them the newest request held. */
  readonly userMessageCount: number
  readonly assistantHashes: readonly Hash[]
  /** How often its prompt was sent without an answer to it having been shown: by as many agents, it may be. */
  readonly unansweredStarts?: number | undefined
  readonly run: Run
  /** Ids of its newest responses that a client can go on from, oldest first. */
  readonly responses?: readonly string[] | undefined
  /** How much of the context window its newest answer left filled. */
  readonly context?: { readonly tokens: number; readonly requestBytes: number } | undefined
  /** Of these, those that a request has gone on from. */
  readonly continuedFrom?: readonly string[] | undefined
  /** Unset while nobody guards it. */
  readonly loopState?: LoopState | undefined
  /** Errors in a row, by upstream and model; unset where there are none. */
  readonly errors?: readonly ErrorStreak[] | undefined
}

/** Takes a request into a thread's errors, and says what it gets instead of an answer where there is a storm of them. */
export type CheckErrors = (errors: readonly ErrorStreak[]) => {
  readonly streaks: readonly ErrorStreak[]
  readonly reply: StormReply | undefined
}

/** What all threads of a session did together, runs that are over included. */
export interface Totals {
  /** Milliseconds since the epoch. */
  readonly startedAt: number
  readonly iterations: number
  readonly toolCalls: number
  /** Warnings that the model took notice of, and those it did not. */
  readonly acknowledged: number
  readonly ignored: number
}

export interface Session {
  /** Least recently used first. */
  readonly threads: readonly Thread[]
  /** What all answers in all threads took; unset before the first. */
  readonly usage?: Usage | undefined
  /** Unset before the first request. */
  readonly totals?: Totals | undefined
  /** A message of each thread that is not remembered any more, the newest last. */
  readonly forgotten?: readonly Hash[] | undefined
  /** What is believed of the windows of its models; unset where nothing overflowed. */
  readonly contexts?: SessionContexts | undefined
}

/** The first answer of a conversation that had no name yet. */
export interface FirstAnswer {
  /** When it was asked for, in milliseconds since the epoch. */
  readonly askedAt: number
  readonly usage: CallUsage
}

/** What a model made of a warning: it said something or called nothing, or it went on as before. */
export type WarningReaction = 'acknowledged' | 'ignored'

/** Where a request stands in its session. */
export interface RunState extends ThinkingState {
  /** Iteration number of this request, from 1. */
  readonly iteration: number
  readonly toolCalls: number
  readonly isRetry: boolean
  /** Which sending of its bytes this is, where they were answered so often that it counts as an iteration. */
  readonly resendCount?: number | undefined
  readonly isNewRun: boolean
  /** Nothing was known of the session before. */
  readonly isNew: boolean
  /** What the run and the whole session have used, this request included. */
  readonly run: Amounts
  readonly session: Amounts
  /** Tokens that fill the context window before this request, as far as that is known. */
  readonly contextTokens?: number | undefined
  /** The last calls brought nothing new. */
  readonly isStagnating: boolean
  /** The newest warning was ignored. */
  readonly wasIgnored: boolean
  /** What the newest answer made of the warning before it; set on the first request that shows it. */
  readonly reaction?: WarningReaction | undefined
  /** The loop that the newest step of the run closed. */
  readonly loop?: LoopFinding | undefined
  /** What the loop guard knows of the thread, this request included. */
  readonly loopState?: LoopState | undefined
  /** Windows of models that are smaller for this session, for a while. */
  readonly reductions?: readonly Reduction[] | undefined
  readonly finalAnswer?: FinalAnswer | undefined
  /** The thread had errors before this request. */
  readonly hasErrors: boolean
  /** What the request gets at once, in a storm of errors. */
  readonly storm?: StormReply | undefined
  readonly stopTries?: StopAttempts | undefined
  /** The run is over, and this request wants an answer of another form than its requests before. */
  readonly isLate?: boolean
}

/** A changed session, and what else its change found out. */
export interface Changed<Result> {
  readonly session: Session
  readonly result: Result
}

export const NEW_SESSION: Session = {
  threads: [],
  usage: undefined,
  totals: undefined,
  forgotten: undefined,
  contexts: undefined,
}

/** What a run has used by now. */
export function usedBy(run: Run, now: number, iteration = run.iteration): Amounts {
  const { usage } = run
  return {
    iterations: iteration,
    tool_calls: run.toolCalls,
    tokens: usage ? usage.input + usage.output : 0,
    cost: usage ? usage.cost : 0,
    seconds: (now - run.startedAt) / 1_000,
  }
}

/** What a session has used by now, and `asked` iterations that are asked for and not counted. */
export function usedIn({ totals, usage }: Session, now: number, asked = 0): Amounts {
  return {
    iterations: (totals ? totals.iterations : 0) + asked,
    tool_calls: totals ? totals.toolCalls : 0,
    tokens: usage ? usage.input + usage.output : 0,
    cost: usage ? usage.cost : 0,
    seconds: totals ? (now - totals.startedAt) / 1_000 : 0,
  }
}
