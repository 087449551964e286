/** How one more request changes what is remembered of its session. */

import type { Hash } from '../hash.ts'
import { type Guarded, UNGUARDED } from '../loop/observe.ts'
import { isStagnating } from '../loop/stagnation.ts'
import { merged, withNewest } from '../newest.ts'
import { isLate, withDemands } from './demands.ts'
import { branchesOff, wentOn } from './fork.ts'
import type { Sighting } from './request-facts.ts'
import {
  type EnterStorm,
  type Heed,
  type Position,
  type Run,
  type Seen,
  type Session,
  type Thread,
  type Totals,
  usedBy,
  usedIn,
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
const NONE_SEEN: readonly Seen[] = []

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

function newRun(now: number): Run {
  return {
    startedAt: now,
    askedAt: now,
    iteration: 0,
    toolCalls: 0,
    seen: NONE_SEEN,
    usage: undefined,
    isWarned: undefined,
    wasIgnored: undefined,
    isAnswered: undefined,
    ended: undefined,
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
  sighting: Sighting,
  threadName: string,
  now: number,
  isDerived: boolean,
): Place {
  const found = findThread(session, sighting, threadName, isDerived)
  const isBranch = found !== undefined && branchesOff(found, sighting) && !retryOf(found.run, sighting)
  if (!found || isBranch) return { known: undefined, from: undefined, startsRun: true }
  const isOver = isDerived ? startsOver(found, sighting) : beginsAnew(found, sighting, now)
  if (isOver) return { known: found, from: undefined, startsRun: true }
  return { known: found, from: found, startsRun: startsRun(found, sighting) }
}

/** A run after one more request, which was given the number `iteration`. `before`: it is one of the run's again. */
function runAfter(
  run: Run,
  sighting: Sighting,
  {
    iteration,
    before,
    from,
    heed,
    demands,
    now,
  }: {
    readonly iteration: number
    readonly before: Seen | undefined
    readonly from: Thread | undefined
    readonly heed: Heed | undefined
    readonly demands: readonly Hash[]
    readonly now: number
  },
): Run {
  const { fingerprint, newest } = sighting
  // A request that was changed and sent again shows the same calls again.
  const isCounted = before !== undefined || (newest !== undefined && from?.ancestry.includes(newest))
  return {
    startedAt: run.startedAt,
    askedAt: now,
    iteration: Math.max(run.iteration, iteration),
    toolCalls: Math.max(sighting.toolCalls, run.toolCalls + (isCounted ? 0 : sighting.newToolCalls)),
    seen: before
      ? renumbered(run.seen, before, iteration)
      : withNewest(run.seen, { fingerprint, iteration }, MAX_SEEN),
    usage: run.usage,
    isWarned: heed ? false : run.isWarned,
    wasIgnored: heed ? heed === 'ignored' : run.wasIgnored,
    isAnswered: before ? run.isAnswered : undefined,
    ended: run.ended,
    stopTries: run.stopTries,
    demands: withDemands(run.demands, demands, fingerprint, run.ended !== undefined),
  }
}

/** The number of a request in its run, and which sending of its bytes it is where that counts. `before`: the one before. */
function numberOf(
  run: Run,
  { iteration }: Sighting,
  before: Seen | undefined,
): { readonly iteration: number; readonly repeat: number | undefined } {
  const answered = before?.answered ?? 1
  const isRepeat = before !== undefined && !run.ended && answered >= MAX_REPEATS
  if (before && !isRepeat) return { iteration: before.iteration, repeat: undefined }
  // Of a run that was stopped nothing counts any more: its last step in another form is no further one.
  const more = run.ended ? 0 : 1
  return {
    iteration: Math.max(iteration, run.iteration + more),
    repeat: isRepeat ? answered + 1 : undefined,
  }
}

function renumbered(seen: readonly Seen[], one: Seen, iteration: number): readonly Seen[] {
  if (one.iteration === iteration) return seen
  return seen.map((other) => (other === one ? { ...one, iteration } : other))
}

/** How often a prompt was sent without an answer having been shown. What a compacted history leaves of it is no start. */
function startsAfter(from: Thread | undefined, { isPrompt, ancestry }: Sighting, isRetry: boolean): number {
  const starts = from?.starts ?? 0
  const isUnanswered = !from || from.ancestry.length === 0
  if (isPrompt) return starts + (isRetry || isUnanswered ? 1 : 0)
  return Math.max(0, starts - (isUnanswered && ancestry.length > 0 ? 1 : 0))
}

/** A thread after one more request. */
function threadAfter(
  name: string,
  { known, from }: Place,
  sighting: Sighting,
  run: Run,
  { guarded, errors, isRetry }: Pick<Thread, 'guarded' | 'errors'> & { readonly isRetry: boolean },
): Thread {
  return {
    name,
    // Where it is another in each request, the first one counts; what the provider keeps is not sent again.
    system: from ? from.system : sighting.system,
    humans: merged(from?.humans ?? NO_HASHES, sighting.humans, MAX_HUMANS),
    humanCount: sighting.humans.length,
    ancestry: merged(from?.ancestry ?? NO_HASHES, sighting.ancestry, MAX_ANCESTRY),
    starts: startsAfter(from, sighting, isRetry),
    run,
    responses: from?.responses,
    context: from?.context,
    wentOnFrom: wentOn(from, sighting),
    guarded,
    errors,
    hasSaid: known?.hasSaid,
    isLoose: known?.isLoose,
  }
}

/** A session with one of its threads as it is after one more request. */
function sessionAfter(
  session: Session,
  sighting: Sighting,
  { known, from }: Place,
  thread: Thread,
  totals: Totals,
): Session {
  const { threads, usage, forgotten, contexts } = session
  // One that another agent began with the same prompt has an answer that nobody has shown less.
  const other = known ? undefined : startOf(threads, sighting)
  const others = other
    ? threads.map((one) => (one === other ? { ...one, starts: (one.starts ?? 1) - 1 } : one))
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
export function observe(
  session: Session,
  sighting: Sighting,
  threadName: string,
  now: number,
  isDerived = false,
  follow?: (guarded: Guarded) => Guarded,
  enterStorm?: EnterStorm,
  demands: readonly Hash[] = NO_HASHES,
): { session: Session; position: Position } {
  const place = placeOf(session, sighting, threadName, now, isDerived)
  const { known, from } = place
  const run = known && !place.startsRun ? known.run : newRun(now)
  const before = retryOf(run, sighting)
  const { iteration, repeat } = numberOf(run, sighting, before)
  const guarded = follow?.(from?.guarded ?? UNGUARDED)
  const storm = known?.errors && enterStorm?.(known.errors)
  const heed = heedOf(known, sighting, before !== undefined)
  const next = runAfter(run, sighting, {
    iteration,
    before,
    from: known,
    heed: place.startsRun ? undefined : heed,
    demands,
    now,
  })
  const thread = threadAfter(threadName, place, sighting, next, {
    guarded,
    errors: storm ? storm.streaks : known?.errors,
    isRetry: before !== undefined,
  })
  const late = isLate(next.demands, sighting.fingerprint)
  const totals = counted(session, sighting, run, next, heed, now, late && !before)
  const after = sessionAfter(session, sighting, place, thread, totals)
  return {
    session: after,
    position: {
      iteration,
      toolCalls: next.toolCalls,
      isRetry: before !== undefined,
      repeat,
      startsRun: place.startsRun,
      isNew: session.totals === undefined,
      run: usedBy(next, now, iteration),
      // What a run that was stopped asks for is not counted, and is one too many all the same.
      session: usedIn(after, now, run.ended ? 1 : 0),
      contextTokens: filledBy(from, sighting),
      isStagnating: guarded !== undefined && isStagnating(guarded.memory.trail),
      wasIgnored: next.wasIgnored === true,
      heed,
      loop: guarded?.finding,
      guarded,
      reductions: session.contexts?.reductions,
      ended: run.ended,
      hasErrors: known?.errors !== undefined,
      storm: storm?.reply,
      stopTries: run.stopTries,
      isLate: late,
      hasSaid: known?.hasSaid,
      isLoose: known?.isLoose,
    },
  }
}
