/**
 * What Governor remembers of an agent's conversation, and how one more request changes it.
 *
 * The transcript in the request is the truth; this is the memory of what it no longer shows (a compacted
 * history) or never did (limits that were reached, answers that were given). Plain data and pure functions, so
 * that any store can hold it and any replica that loses a race can run the same change again.
 */

import { type Bound, boundOf } from './bound.ts'
import type { Amounts } from './budget.ts'
import type { Reduction, SessionContexts } from './context.ts'
import { type Guarded, UNGUARDED } from './guard.ts'
import type { Hash } from './hash.ts'
import { branchesOff, wentOn } from './kept.ts'
import type { LoopFinding } from './loop-guard.ts'
import type { Sighting } from './sighting.ts'
import { isStagnating } from './stagnation.ts'
import type { FinalAnswer } from './terminal.ts'
import type { CallUsage, Usage } from './usage.ts'

/** From one human message to the next. */
export interface Run {
  /** Milliseconds since the epoch. */
  readonly startedAt: number
  /** The highest iteration that was, or is being, answered. */
  readonly iteration: number
  readonly toolCalls: number
  /** The newest requests of the run and the iteration each was given, oldest first. */
  readonly seen: readonly { readonly fingerprint: string; readonly iteration: number }[]
  /** What its answers took; unset before the first. */
  readonly usage?: Usage
  /** The model was warned, and what it made of it is still to be seen. */
  readonly isWarned?: boolean
  /** It took no notice of the warning before. */
  readonly wasIgnored?: boolean
  /** The answer that ended the run, once Governor has stopped it. */
  readonly ended?: FinalAnswer
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
  readonly responses?: readonly string[]
  /** How much of the context window its newest answer left filled. */
  readonly context?: { readonly tokens: number; readonly requestBytes: number }
  /** Of these, those that a request has gone on from. */
  readonly wentOnFrom?: readonly string[]
  /** Unset while nobody guards it. */
  readonly guarded?: Guarded
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
  readonly usage?: Usage
  /** Unset before the first request. */
  readonly totals?: Totals
  /** What is believed of the windows of its models; unset where nothing overflowed. */
  readonly contexts?: SessionContexts
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
  readonly contextTokens?: number
  /** The last calls brought nothing new. */
  readonly isStagnating: boolean
  /** The newest warning was ignored. */
  readonly wasIgnored: boolean
  /** What the newest answer made of the warning before it; set on the first request that shows it. */
  readonly heed?: Heed
  /** The loop that the newest step of the run closed. */
  readonly loop?: LoopFinding
  /** What the loop guard knows of the thread, this request included. */
  readonly guarded?: Guarded
  /** Windows of models that are smaller for this session, for a while. */
  readonly reductions?: readonly Reduction[]
  readonly ended?: FinalAnswer
}

/** Bounds of what one session remembers. */
const MAX_THREADS = 64
const MAX_HUMANS = 128
const MAX_ANCESTRY = 32
/** Retries come right after what they repeat. An older body again is a model call like any other. */
const MAX_SEEN = 4

export const NEW_SESSION: Session = { threads: [] }

/**
 * The thread a request belongs to: the one its header names; else the one that gave the response it goes on from; else
 * the one with the same system text and first
 * human message; else, as histories get compacted or cut off at the front, the one with the same system text
 * that knows part of what this transcript shows. A transcript that shows nothing to go by (only a summary)
 * continues the thread that was last used with that system text.
 */
function findThread(session: Session, sighting: Sighting, name: string): Thread | undefined {
  const newestFirst = session.threads.toReversed()
  if (name !== '') return newestFirst.find((thread) => thread.name === name)
  const { previous } = sighting
  const again = previous && newestFirst.find((thread) => retryOf(thread.run, sighting))
  if (again) return again
  const gave = previous && newestFirst.find((thread) => thread.responses?.includes(previous))
  if (gave) return gave
  const sameSystem = newestFirst.filter((thread) => thread.name === '' && thread.system === sighting.system)
  const [first] = sighting.humans
  return (
    sameSystem.find((thread) => thread.humans[0] === first) ??
    sameSystem.find((thread) => sharesHistory(thread, sighting)) ??
    (first === undefined ? sameSystem[0] : undefined)
  )
}

function sharesHistory(thread: Thread, sighting: Sighting): boolean {
  return (
    sighting.humans.some((human) => thread.humans.includes(human)) ||
    sighting.ancestry.some((message) => thread.ancestry.includes(message))
  )
}

/**
 * A run begins with a human message that the thread has not seen, or with one more than it had: people do say
 * "continue" twice. A transcript that lost messages, and ends in an old one, continues the run; but once the run was
 * stopped and answered, a human who says the same again means it.
 */
function startsRun(thread: Thread, sighting: Sighting): boolean {
  const last = sighting.humans.at(-1)
  if (last === undefined) return false
  // What a human says beside a history that the provider keeps is new.
  if (sighting.previous !== undefined) return !retryOf(thread.run, sighting)
  if (!thread.humans.includes(last)) return true
  // One more than before, and nothing since: a shorter view of the same history may well have come in between.
  if (sighting.humans.length > thread.humanCount && sighting.iteration === 1) return true
  return thread.run.ended !== undefined && sighting.endsInHuman && !retryOf(thread.run, sighting)
}

function retryOf(run: Run, sighting: Sighting) {
  return run.seen.find(({ fingerprint }) => fingerprint === sighting.fingerprint)
}

/**
 * A session without a name of its own is known by how it began. Where the same beginning is shown again, with a newest
 * message that is an old one, somebody started over: that is another run, whatever this one had used.
 */
function startsOver(thread: Thread, sighting: Sighting): boolean {
  const { run, ancestry } = thread
  // The last step of a run that was stopped, sent again in another form, wants its answer again.
  const isBack = run.ended ? sighting.iteration < run.iteration : sighting.iteration <= run.iteration
  return (
    isBack && sighting.newest !== undefined && ancestry.includes(sighting.newest) && !retryOf(run, sighting)
  )
}

/** What is known and what is shown, the newest last; the first stays, as it names the thread. */
function merged(known: readonly Hash[], shown: readonly Hash[], bound: number): readonly Hash[] {
  // Nothing new, or one more at the end: what all requests but the odd one bring.
  const last = shown.at(-1)
  if (last === undefined) return known
  const isGrown = known.length < bound && known.length > 0 && !known.includes(last)
  const areOld = (isGrown ? shown.slice(0, -1) : shown).every((hash) => known.includes(hash))
  if (areOld && isGrown) return [...known, last]
  if (areOld && known.at(-1) === last) return known
  const newest = new Set(shown)
  const first = known[0] ?? shown[0]
  const others = [...known.filter((hash) => !newest.has(hash)), ...newest].filter((hash) => hash !== first)
  return first === undefined ? [] : [first, ...others.slice(-(bound - 1))]
}

/** What a run has used by now. */
export function usedBy({ iteration, toolCalls, usage, startedAt }: Run, now: number): Amounts {
  return {
    iterations: iteration,
    tool_calls: toolCalls,
    tokens: usage ? usage.input + usage.output : 0,
    cost: usage?.cost ?? 0,
    seconds: (now - startedAt) / 1_000,
  }
}

/** What a session has used by now. */
export function usedIn({ totals, usage }: Session, now: number): Amounts {
  return {
    iterations: totals?.iterations ?? 0,
    tool_calls: totals?.toolCalls ?? 0,
    tokens: usage ? usage.input + usage.output : 0,
    cost: usage?.cost ?? 0,
    seconds: totals ? (now - totals.startedAt) / 1_000 : 0,
  }
}

/** How full the context window is before a request; a history that got shorter takes less in proportion. */
function filledBy(
  thread: Thread | undefined,
  { bytes, previous }: Sighting,
): { readonly contextTokens?: number } {
  const context = thread?.context
  if (!context) return {}
  const isShorter = bytes !== undefined && previous === undefined && bytes < context.requestBytes
  return { contextTokens: isShorter ? (context.tokens * bytes) / context.requestBytes : context.tokens }
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

const NO_TOTALS: Omit<Totals, 'startedAt'> = { iterations: 0, toolCalls: 0, acknowledged: 0, ignored: 0 }

/** What a request adds to the sum of its session. Of a run that was stopped nothing counts any more. */
function counted(session: Session, before: Run, after: Run, heed: Heed | undefined, now: number): Totals {
  const totals = session.totals ?? { startedAt: now, ...NO_TOTALS }
  return {
    ...totals,
    iterations: totals.iterations + (before.ended ? 0 : after.iteration - before.iteration),
    toolCalls: totals.toolCalls + Math.max(0, after.toolCalls - before.toolCalls),
    ...(heed ? { [heed]: totals[heed] + 1 } : {}),
  }
}

function newRun(now: number): Run {
  return { startedAt: now, iteration: 0, toolCalls: 0, seen: [] }
}

/**
 * Takes a request into account. Idempotent: the same request again is a retry and changes no count. `isDerived`: the
 * session has no name but what it was asked and first answered. `follow` takes the request in for the loop guard.
 */
export function observe(
  session: Session,
  sighting: Sighting,
  threadName: string,
  now: number,
  isDerived = false,
  follow?: (guarded: Guarded) => Guarded,
): { session: Session; position: Position } {
  const found = findThread(session, sighting, threadName)
  const isBranch = found !== undefined && branchesOff(found, sighting) && !retryOf(found.run, sighting)
  const known = isBranch ? undefined : found
  const isOver = known !== undefined && isDerived && startsOver(known, sighting)
  const begins = !known || isOver || startsRun(known, sighting)
  const run = begins ? newRun(now) : known.run
  const before = retryOf(run, sighting)
  const iteration = before ? before.iteration : Math.max(sighting.iteration, run.iteration + 1)
  // A request that was changed and sent again shows the same calls again.
  const isCounted =
    before !== undefined || (sighting.newest !== undefined && known?.ancestry.includes(sighting.newest))
  const toolCalls = Math.max(sighting.toolCalls, run.toolCalls + (isCounted ? 0 : sighting.newToolCalls))
  const guarded = follow?.((isOver ? undefined : known?.guarded) ?? UNGUARDED)
  const heed = heedOf(known, sighting, before !== undefined)
  const next: Run = {
    ...run,
    iteration: Math.max(run.iteration, iteration),
    toolCalls,
    seen: before
      ? run.seen
      : [...run.seen, { fingerprint: sighting.fingerprint, iteration }].slice(-MAX_SEEN),
    ...(heed && !begins ? { isWarned: false, wasIgnored: heed === 'ignored' } : {}),
  }
  // What is named after a spread is defined one by one, at almost a microsecond each: so the spreads come last.
  const thread: Thread = {
    name: threadName,
    system: sighting.system,
    humans: merged(known?.humans ?? [], sighting.humans, MAX_HUMANS),
    humanCount: sighting.humans.length,
    ancestry: merged(known?.ancestry ?? [], sighting.ancestry, MAX_ANCESTRY),
    run: next,
    ...(guarded ? { guarded } : {}),
    ...(known?.responses ? { responses: known.responses } : {}),
    ...(known?.context ? { context: known.context } : {}),
    ...wentOn(known, sighting),
    ...boundOf(known),
  }
  const others = session.threads.filter((candidate) => candidate !== known)
  const after: Session = {
    ...session,
    threads: [...others, thread].slice(-MAX_THREADS),
    totals: counted(session, run, next, heed, now),
  }
  return {
    session: after,
    position: {
      iteration,
      toolCalls,
      isRetry: before !== undefined,
      startsRun: begins,
      isNew: session.totals === undefined,
      run: usedBy({ ...next, iteration }, now),
      session: usedIn(after, now),
      isStagnating: guarded !== undefined && isStagnating(guarded.memory.trail),
      wasIgnored: next.wasIgnored === true,
      ...filledBy(isOver ? undefined : known, sighting),
      ...boundOf(known),
      ...(heed ? { heed } : {}),
      ...(session.contexts ? { reductions: session.contexts.reductions } : {}),
      ...(run.ended ? { ended: run.ended } : {}),
      ...(guarded ? { guarded } : {}),
      ...(guarded?.finding ? { loop: guarded.finding } : {}),
    },
  }
}
