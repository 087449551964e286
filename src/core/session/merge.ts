/**
 * Joins what two replicas know of one session, after one of them could not reach the store. Nothing is guessed: two
 * runs are one run if the same operation began them, and so are two threads. What they counted is joined as the table
 * of counters says; what their session counted is added; a stop of either holds.
 *
 * `base`: the store's copy when the replica lost the connection; unset if the replica did not know it then. `local`:
 * the replica's copy now. `remote`: the store's copy now. `isLost`: the store has lost its data since, so nobody knows
 * what the copies have in common.
 */

import { joinByName } from '../by-name.ts'
import { grown, join } from '../counters.ts'
import { GUARDS } from '../guards.ts'
import { tableBy } from '../names.ts'
import { MAX_ITERATIONS_KEPT, MAX_MINUTES_KEPT, MAX_RUNS_KEPT } from '../operator/session-record.ts'
import {
  MAX_RECENT_REQUESTS,
  MAX_THREADS,
  type Parts,
  type Run,
  retryOf,
  type Session,
  type Thread,
  withIds,
} from './session.ts'

/** Returns each setting of an operator as the replica that changed it has it, or else as the store has it. */
function joinSettings<Settings extends object>(
  base: Settings | undefined,
  local: Settings | undefined,
  remote: Settings | undefined,
  isLost: boolean,
): Settings | undefined {
  if (!local || !remote) return local ?? remote
  const joined = { ...local, ...remote }
  if (isLost) return joined
  for (const name of Object.keys(joined) as (keyof Settings)[]) {
    const isChanged = JSON.stringify(local[name]) !== JSON.stringify(base?.[name])
    joined[name] = isChanged ? local[name] : remote[name]
  }
  return joined
}

/** Returns what guards remember: the counts of both copies. */
function joinMemories(
  base: Session['guards'],
  local: Session['guards'],
  remote: Session['guards'],
  isLost: boolean,
): Session['guards'] {
  if (!local || !remote) return local ?? remote
  const joined = GUARDS.map(({ name }) => {
    const [was = {}, here = {}, there = {}] = [base?.[name], local[name], remote[name]]
    const counts = Object.keys({ ...here, ...there }).map((key) => {
      return [key, grown(was[key] ?? 0, here[key] ?? 0, there[key] ?? 0, isLost)]
    })
    return [name, Object.fromEntries(counts)]
  })
  return Object.fromEntries(joined)
}

function joinParts(base: Parts | undefined, local: Parts | undefined, remote: Parts | undefined, isLost: boolean) {
  if (!local || !remote) return local ?? remote
  return tableBy(['agents', 'models', 'tools'], (of) => joinByName(base?.[of] ?? [], local[of], remote[of], isLost))
}

/** Returns the entries of both lists, each once by its `keys`; if both have it, that of `local`; the newest last. */
function joinEntries<Time extends string, Entry extends Readonly<Record<Time, number>>>(
  local: readonly Entry[] = [],
  remote: readonly Entry[] = [],
  keys: readonly (keyof Entry)[],
  time: Time,
  bound: number,
): readonly Entry[] {
  const entries = new Map<string, Entry>()
  for (const entry of [...remote, ...local]) entries.set(keys.map((key) => entry[key]).join(' '), entry)
  return [...entries.values()].sort((a, b) => a[time] - b[time]).slice(-bound)
}

/**
 * Returns how many iterations a run has at least: of two requests that were answered in two replicas each was a step,
 * also where neither replica knew the other's, so that both have the same number.
 */
function leastIterations(base: Run, local: Run, remote: Run): number {
  const { iterations: counted = 0 } = base.counts
  const newest = base.recentRequests.filter(({ iteration }) => iteration === counted)
  // What was in flight may have been taken back since.
  const isInFlight = newest.length > 0 && newest.every(({ outcome, isMade }) => outcome === undefined && !isMade)
  const settled = isInFlight ? counted - 1 : counted
  const made = new Set<string>()
  for (const { fingerprint, iteration, outcome, isMade } of [...local.recentRequests, ...remote.recentRequests])
    if (iteration > settled && (outcome === 'answered' || isMade)) made.add(fingerprint)
  return settled + made.size
}

function joinCounts(base: Run | undefined, local: Run, remote: Run, isLost: boolean): Run['counts'] {
  const counts = join(base?.counts, local.counts, remote.counts, 'run', isLost)
  if (!base || isLost || local.finalAnswer || remote.finalAnswer) return counts
  const { iterations = 0 } = counts
  const least = leastIterations(base, local, remote)
  return least > iterations ? { ...counts, iterations: least } : counts
}

/** Joins two copies of one run. `base`: the same run before; unset if the replica did not know it. */
function joinRuns(base: Run | undefined, local: Run, remote: Run, isLost: boolean): Run {
  // What became of the newest request is known where it was sent.
  const [older, newer] = local.askedAt >= remote.askedAt ? [remote, local] : [local, remote]
  const others = older.recentRequests.filter((request) => !retryOf(newer, request))
  // An operator resets and resumes runs that were over.
  const isResumed = base?.finalAnswer !== undefined && !(local.finalAnswer && remote.finalAnswer)
  return {
    ...newer,
    counts: joinCounts(base, local, remote, isLost),
    recentRequests: [...others, ...newer.recentRequests].slice(-MAX_RECENT_REQUESTS),
    finalAnswer: isResumed ? undefined : (newer.finalAnswer ?? older.finalAnswer),
    isReported: newer.isReported ?? older.isReported,
    operator: joinSettings(base?.operator, local.operator, remote.operator, isLost),
  }
}

/** Joins the newest runs of two copies if they are one run; else the thread has the one that began later. */
function joinThreads(base: Thread | undefined, local: Thread, remote: Thread, isLost: boolean): Thread {
  const isOneRun = local.run.id === remote.run.id
  const time = isOneRun ? 'askedAt' : 'startedAt'
  const [older, newer] = local.run[time] > remote.run[time] ? [remote, local] : [local, remote]
  const before = base?.run.id === local.run.id ? base.run : undefined
  return {
    ...newer,
    run: isOneRun ? joinRuns(before, local.run, remote.run, isLost) : newer.run,
    responses: withIds(older.responses, newer.responses),
    continuedFrom: withIds(older.continuedFrom, newer.continuedFrom),
    loopState: newer.loopState ?? older.loopState,
    noticeSent: newer.noticeSent ?? older.noticeSent,
    dropsThinking: newer.dropsThinking ?? older.dropsThinking,
    operator: joinSettings(base?.operator, local.operator, remote.operator, isLost),
  }
}

/** Returns threads by the operation that began each. */
function threadsById(session: Session | undefined): Map<string, Thread> {
  return new Map(session?.threads.map((thread) => [thread.id, thread]))
}

/** Returns the merged session; see above for the copies. */
export function mergeSessions(base: Session | undefined, local: Session, remote: Session, isLost = false): Session {
  const before = threadsById(base)
  const threads = threadsById(remote)
  for (const [id, thread] of threadsById(local)) {
    const known = threads.get(id)
    threads.set(id, known ? joinThreads(before.get(id), thread, known, isLost) : thread)
  }
  const { startedAt: begun = Number.POSITIVE_INFINITY } = remote
  let record = local.record ?? remote.record
  if (local.record && remote.record) {
    const [here, there] = [local.record, remote.record]
    const keys = ['thread', 'iteration', 'at'] as const
    record = {
      name: there.name ?? here.name,
      label: there.label ?? here.label,
      threads: Math.max(there.threads, here.threads),
      iterations: joinEntries(here.iterations, there.iterations, keys, 'at', MAX_ITERATIONS_KEPT),
      runs: joinEntries(here.runs, there.runs, ['thread', 'startedAt'], 'endedAt', MAX_RUNS_KEPT),
      minutes: joinEntries(here.minutes, there.minutes, ['at'], 'at', MAX_MINUTES_KEPT),
    }
  }
  return {
    threads: [...threads.values()].sort((a, b) => a.run.askedAt - b.run.askedAt).slice(-MAX_THREADS),
    startedAt: local.startedAt === undefined ? remote.startedAt : Math.min(local.startedAt, begun),
    counts: join(base?.counts, local.counts, remote.counts, 'sum', isLost),
    parts: joinParts(base?.parts, local.parts, remote.parts, isLost),
    reductions: local.reductions === base?.reductions ? remote.reductions : (local.reductions ?? remote.reductions),
    gaps: local.gaps || remote.gaps ? [...new Set([...(local.gaps ?? []), ...(remote.gaps ?? [])])] : undefined,
    record,
    operator: joinSettings(base?.operator, local.operator, remote.operator, isLost),
    guards: joinMemories(base?.guards, local.guards, remote.guards, isLost),
  } satisfies Required<Session>
}

/**
 * Marks the newest runs of a copy that the store could not confirm. Other replicas may have begun and ended runs
 * since, so such a run goes on only in a request that proves it; any other request begins a run, which is counted by
 * its own transcript.
 */
export function doubted(session: Session): Session {
  const threads = session.threads.map((thread) =>
    thread.run.isDoubted ? thread : { ...thread, run: { ...thread.run, isDoubted: true } },
  )
  return { ...session, threads }
}

/** Marks the newest runs of a copy while other replicas may still have answers of them that the store does not know. */
export function lacking(session: Session): Session {
  return {
    ...session,
    threads: session.threads.map((thread) => ({ ...thread, run: { ...thread.run, mayLack: true } })),
  }
}
