/**
 * What Governor remembers of an agent's conversation, and how one more request changes it.
 *
 * The transcript in the request is the truth; this is the memory of what it no longer shows (a compacted
 * history) or never did (limits that were reached, answers that were given). Plain data and pure functions, so
 * that any store can hold it and any replica that loses a race can run the same change again.
 */

import type { Bound } from './bound.ts'
import type { Amounts } from './budget.ts'
import type { Reduction, SessionContexts } from './context.ts'
import { type Guarded, UNGUARDED } from './guard.ts'
import type { Hash } from './hash.ts'
import { branchesOff, wentOn } from './kept.ts'
import type { LoopFinding } from './loop-guard.ts'
import { merged, withNewest } from './newest.ts'
import type { Sighting } from './sighting.ts'
import { isStagnating } from './stagnation.ts'
import type { ErrorStreak, StormReply } from './storm.ts'
import type { FinalAnswer } from './terminal.ts'
import { findThread, retryOf, startsOver, startsRun } from './thread.ts'
import type { CallUsage, Usage } from './usage.ts'

/** A request that was given a number. */
export interface Seen {
  readonly fingerprint: string
  readonly iteration: number
}

/** From one human message to the next. */
export interface Run {
  /** Milliseconds since the epoch. */
  readonly startedAt: number
  /** The highest iteration that was, or is being, answered. */
  readonly iteration: number
  readonly toolCalls: number
  /** The newest requests of the run and the iteration each was given, oldest first. */
  readonly seen: readonly Seen[]
  /** What its answers took; unset before the first. */
  readonly usage?: Usage | undefined
  /** The model was warned, and what it made of it is still to be seen. */
  readonly isWarned?: boolean | undefined
  /** It took no notice of the warning before. */
  readonly wasIgnored?: boolean | undefined
  /** The answer that ended the run, once Governor has stopped it. */
  readonly ended?: FinalAnswer | undefined
}

/** One conversation of a session: sub-agents run side by side under their parent's id. */
export interface Thread extends Bound {
  /** The client's own name for it, where it sends one. */
  readonly name: string
  readonly system: Hash
  /** Human messages seen, oldest first. */
  readonly humans: readonly Hash[]
  /** How many of them the newest request held. */
  readonly humanCount: number
  readonly ancestry: readonly Hash[]
  readonly run: Run
  /** Ids of its newest responses that a client can go on from, oldest first. */
  readonly responses?: readonly string[] | undefined
  /** How much of the context window its newest answer left filled. */
  readonly context?: { readonly tokens: number; readonly requestBytes: number } | undefined
  /** Of these, those that a request has gone on from. */
  readonly wentOnFrom?: readonly string[] | undefined
  /** Unset while nobody guards it. */
  readonly guarded?: Guarded | undefined
  /** Errors in a row, by upstream and model; unset where there are none. */
  readonly errors?: readonly ErrorStreak[] | undefined
}

/** Takes a request into a thread's errors, and says what it gets instead of an answer where there is a storm of them. */
export type EnterStorm = (errors: readonly ErrorStreak[]) => {
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
export type Heed = 'acknowledged' | 'ignored'

/** Where a request stands in its session. */
export interface Position extends Bound {
  /** Iteration number of this request, from 1. */
  readonly iteration: number
  readonly toolCalls: number
  readonly isRetry: boolean
  readonly startsRun: boolean
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
  readonly heed?: Heed | undefined
  /** The loop that the newest step of the run closed. */
  readonly loop?: LoopFinding | undefined
  /** What the loop guard knows of the thread, this request included. */
  readonly guarded?: Guarded | undefined
  /** Windows of models that are smaller for this session, for a while. */
  readonly reductions?: readonly Reduction[] | undefined
  readonly ended?: FinalAnswer | undefined
  /** The thread had errors before this request. */
  readonly hasErrors: boolean
  /** What the request gets at once, in a storm of errors. */
  readonly storm?: StormReply | undefined
}

/** Bounds of what one session remembers. */
const MAX_THREADS = 64
const MAX_HUMANS = 128
const MAX_ANCESTRY = 32
/** Retries come right after what they repeat. An older body again is a model call like any other. */
const MAX_SEEN = 4

const NO_HASHES: readonly Hash[] = []
const NONE_SEEN: readonly Seen[] = []

export const NEW_SESSION: Session = {
  threads: [],
  usage: undefined,
  totals: undefined,
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

/** How full the context window is before a request; a history that got shorter takes less in proportion. */
function filledBy(thread: Thread | undefined, { bytes, previous }: Sighting): number | undefined {
  const context = thread?.context
  if (!context) return undefined
  const isShorter = bytes !== undefined && previous === undefined && bytes < context.requestBytes
  return isShorter ? (context.tokens * bytes) / context.requestBytes : context.tokens
}

/** What the newest answer made of the warning before it; `undefined` where there was none, or it is not to be seen. */
function heedOf(known: Thread | undefined, sighting: Sighting, isRetry: boolean): Heed | undefined {
  if (!known?.run.isWarned || isRetry) return undefined
  const { newest } = sighting
  if (newest === undefined || known.ancestry.includes(newest)) return undefined
  const speaks = sighting.speaks()
  if (speaks === undefined) return undefined
  return speaks ? 'acknowledged' : 'ignored'
}

/** What a request adds to the sum of its session. Of a run that was stopped nothing counts any more. */
function counted(
  totals: Totals | undefined,
  before: Run,
  after: Run,
  heed: Heed | undefined,
  now: number,
): Totals {
  const iterations = before.ended ? 0 : after.iteration - before.iteration
  const toolCalls = Math.max(0, after.toolCalls - before.toolCalls)
  return {
    startedAt: totals ? totals.startedAt : now,
    iterations: (totals ? totals.iterations : 0) + iterations,
    toolCalls: (totals ? totals.toolCalls : 0) + toolCalls,
    acknowledged: (totals ? totals.acknowledged : 0) + (heed === 'acknowledged' ? 1 : 0),
    ignored: (totals ? totals.ignored : 0) + (heed === 'ignored' ? 1 : 0),
  }
}

function newRun(now: number): Run {
  return {
    startedAt: now,
    iteration: 0,
    toolCalls: 0,
    seen: NONE_SEEN,
    usage: undefined,
    isWarned: undefined,
    wasIgnored: undefined,
    ended: undefined,
  }
}

/** The thread that was used last comes last. */
function withThread(
  threads: readonly Thread[],
  known: Thread | undefined,
  thread: Thread,
): readonly Thread[] {
  if (threads.length === 1 && threads[0] === known) return [thread]
  const others = known ? threads.filter((candidate) => candidate !== known) : threads
  return withNewest(others, thread, MAX_THREADS)
}

/**
 * Takes a request into account. Idempotent: the same request again is a retry and changes no count. `isDerived`: the
 * session has no name but what it was asked and first answered. `follow` takes the request in for the loop guard.
 *
 * What is made here for every request is written out in full: an object of one shape costs a tenth of one that is spread.
 */
export function observe(
  session: Session,
  sighting: Sighting,
  threadName: string,
  now: number,
  isDerived = false,
  follow?: (guarded: Guarded) => Guarded,
  enterStorm?: EnterStorm,
): { session: Session; position: Position } {
  const found = findThread(session, sighting, threadName, isDerived)
  const isBranch = found !== undefined && branchesOff(found, sighting) && !retryOf(found.run, sighting)
  const known = isBranch ? undefined : found
  const isOver = known !== undefined && isDerived && startsOver(known, sighting)
  const begins = !known || isOver || startsRun(known, sighting)
  const run = begins ? newRun(now) : known.run
  const before = retryOf(run, sighting)
  // Of a run that was stopped nothing counts any more: its last step in another form is no further one.
  const more = run.ended ? 0 : 1
  const iteration = before ? before.iteration : Math.max(sighting.iteration, run.iteration + more)
  // A request that was changed and sent again shows the same calls again.
  const isCounted =
    before !== undefined || (sighting.newest !== undefined && known?.ancestry.includes(sighting.newest))
  const toolCalls = Math.max(sighting.toolCalls, run.toolCalls + (isCounted ? 0 : sighting.newToolCalls))
  const guarded = follow?.((isOver ? undefined : known?.guarded) ?? UNGUARDED)
  const storm = known?.errors && enterStorm?.(known.errors)
  const heed = heedOf(known, sighting, before !== undefined)
  const isHeeded = heed !== undefined && !begins
  const next: Run = {
    startedAt: run.startedAt,
    iteration: Math.max(run.iteration, iteration),
    toolCalls,
    seen: before
      ? run.seen
      : withNewest(run.seen, { fingerprint: sighting.fingerprint, iteration }, MAX_SEEN),
    usage: run.usage,
    isWarned: isHeeded ? false : run.isWarned,
    wasIgnored: isHeeded ? heed === 'ignored' : run.wasIgnored,
    ended: run.ended,
  }
  const thread: Thread = {
    name: threadName,
    system: known?.system === sighting.system ? known.system : sighting.system,
    humans: merged(known?.humans ?? NO_HASHES, sighting.humans, MAX_HUMANS),
    humanCount: sighting.humans.length,
    ancestry: merged(known?.ancestry ?? NO_HASHES, sighting.ancestry, MAX_ANCESTRY),
    run: next,
    responses: known?.responses,
    context: known?.context,
    wentOnFrom: wentOn(known, sighting),
    guarded,
    errors: storm ? storm.streaks : known?.errors,
    hasSaid: known?.hasSaid,
    isLoose: known?.isLoose,
  }
  const after: Session = {
    threads: withThread(session.threads, known, thread),
    usage: session.usage,
    totals: counted(session.totals, run, next, heed, now),
    contexts: session.contexts,
  }
  return {
    session: after,
    position: {
      iteration,
      toolCalls,
      isRetry: before !== undefined,
      startsRun: begins,
      isNew: session.totals === undefined,
      run: usedBy(next, now, iteration),
      // What a run that was stopped asks for is not counted, and is one too many all the same.
      session: usedIn(after, now, run.ended ? 1 : 0),
      contextTokens: filledBy(isOver ? undefined : known, sighting),
      isStagnating: guarded !== undefined && isStagnating(guarded.memory.trail),
      wasIgnored: next.wasIgnored === true,
      heed,
      loop: guarded?.finding,
      guarded,
      reductions: session.contexts?.reductions,
      ended: run.ended,
      hasErrors: known?.errors !== undefined,
      storm: storm?.reply,
      hasSaid: known?.hasSaid,
      isLoose: known?.isLoose,
    },
  }
}
