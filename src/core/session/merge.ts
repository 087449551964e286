/**
 * Joins what two replicas know of one session, after one of them could not reach the store. Nothing is guessed: two
 * runs are one run if the same operation began them, and so are two threads. Their usage, which only one replica sees
 * of each answer, is added; iterations, which both read from the transcript, are the larger count; a stop of either
 * holds.
 */

import { MAX_ITERATIONS_KEPT, MAX_MINUTES_KEPT, MAX_RUNS_KEPT, type SessionRecord } from '../operator/session-record.ts'
import { gapOfSum, NO_USAGE, type Usage } from '../usage.ts'
import {
  MAX_RECENT_REQUESTS,
  MAX_RESPONSES,
  MAX_THREADS,
  type Run,
  type Session,
  type Thread,
  type Totals,
} from './session.ts'

/** Three copies of one value: before the replica was cut off, in the replica now, and in the store now. */
interface Copies<Value> {
  readonly base: Value | undefined
  readonly local: Value
  readonly remote: Value
  /** The store has lost its data since: nobody knows what the copies have in common. */
  readonly isLost: boolean
}

/** Returns the copies of a part of each. */
function partOf<Value, Part>(
  { base, local, remote, isLost }: Copies<Value>,
  part: (value: Value) => Part,
): Copies<Part> {
  return { base: base && part(base), local: part(local), remote: part(remote), isLost }
}

/** Returns an amount of `remote` with what `local` has more than `base`; the larger one after a loss. */
function grown({ base = 0, local, remote, isLost }: Copies<number>): number {
  return isLost ? Math.max(local, remote) : remote + Math.max(0, local - base)
}

/** Returns the larger count of iterations; `remote` loses those that `local` released since `base`. */
function joinIterations({ base, local, remote }: Copies<number>): number {
  const released = base === undefined ? 0 : Math.max(0, base - local)
  return Math.max(local, remote - released)
}

function joinUsage(copies: Copies<Usage | undefined>): Usage | undefined {
  const { local, remote } = copies
  if (local === undefined || remote === undefined) return remote ?? local
  const sum = (name: 'input' | 'output' | 'cachedInput' | 'cost') =>
    grown(partOf(copies, (usage) => (usage ?? NO_USAGE)[name]))
  return {
    input: sum('input'),
    output: sum('output'),
    cachedInput: sum('cachedInput'),
    cost: Math.round(sum('cost') * 1e9) / 1e9,
    costGap: gapOfSum(remote.costGap, local.costGap),
    estimated: remote.estimated || local.estimated,
  }
}

/** Returns each setting of an operator as the replica that changed it has it, or else as the store has it. */
function joinSettings<Settings extends object>(copies: Copies<Settings | undefined>): Settings | undefined {
  const { base, local, remote, isLost } = copies
  if (!local || !remote) return local ?? remote
  const joined = { ...local, ...remote }
  if (isLost) return joined
  for (const name of Object.keys(joined) as (keyof Settings)[])
    if (JSON.stringify(local[name]) !== JSON.stringify(base?.[name])) joined[name] = local[name]
    else joined[name] = remote[name]
  return joined
}

/** Returns the entries of both lists, each once by `nameOf`; if both have it, that of `local`; the newest last. */
function joinEntries<Entry>(
  remote: readonly Entry[],
  local: readonly Entry[],
  nameOf: (entry: Entry) => string,
  timeOf: (entry: Entry) => number,
  bound: number,
): readonly Entry[] {
  const entries = new Map([...remote, ...local].map((entry) => [nameOf(entry), entry]))
  return [...entries.values()].sort((a, b) => timeOf(a) - timeOf(b)).slice(-bound)
}

function joinRecords(local: SessionRecord | undefined, remote: SessionRecord | undefined): SessionRecord | undefined {
  if (!local || !remote) return local ?? remote
  return {
    name: remote.name ?? local.name,
    threads: Math.max(remote.threads, local.threads),
    iterations: joinEntries(
      remote.iterations,
      local.iterations,
      ({ thread, iteration, at }) => `${thread} ${iteration} ${at}`,
      ({ at }) => at,
      MAX_ITERATIONS_KEPT,
    ),
    runs: joinEntries(
      remote.runs,
      local.runs,
      ({ thread, startedAt }) => `${thread} ${startedAt}`,
      ({ endedAt }) => endedAt,
      MAX_RUNS_KEPT,
    ),
    minutes: joinEntries(
      remote.minutes ?? [],
      local.minutes ?? [],
      ({ at }) => String(at),
      ({ at }) => at,
      MAX_MINUTES_KEPT,
    ),
  }
}

function joinNames<Name extends string>(
  one: readonly Name[] | undefined,
  other: readonly Name[] | undefined,
  bound: number,
): readonly Name[] | undefined {
  if (one === undefined || other === undefined) return one ?? other
  return [...new Set([...one, ...other])].slice(-bound)
}

/** Returns the name of the operation that began a run. A run of an older version is known by its time. */
function runId({ id, startedAt }: Run): string | number {
  return id ?? startedAt
}

/** Returns the name of the operation that began a thread. A thread of an older version is known by its number. */
function threadId({ id, number }: Thread): string | number | undefined {
  return id ?? number
}

function joinRuns(copies: Copies<Run>): Run {
  const { base, local, remote } = copies
  const [older, newer] = local.askedAt > remote.askedAt ? [remote, local] : [local, remote]
  const isShown = new Set(newer.recentRequests.map(({ fingerprint }) => fingerprint))
  const others = older.recentRequests.filter(({ fingerprint }) => !isShown.has(fingerprint))
  // An operator resets and resumes runs that were over.
  const isResumed = base?.finalAnswer !== undefined && !(local.finalAnswer && remote.finalAnswer)
  return {
    ...newer,
    iteration: joinIterations(partOf(copies, ({ iteration }) => iteration)),
    toolCalls: Math.max(local.toolCalls, remote.toolCalls),
    recentRequests: [...others, ...newer.recentRequests].slice(-MAX_RECENT_REQUESTS),
    usage: joinUsage(partOf(copies, ({ usage }) => usage)),
    finalAnswer: isResumed ? undefined : (newer.finalAnswer ?? older.finalAnswer),
    isReported: newer.isReported ?? older.isReported,
    operator: joinSettings(partOf(copies, ({ operator }) => operator)),
  }
}

/** Joins the newest runs of two copies if they are one run; else the thread has the one that began later. */
function joinThreads(copies: Copies<Thread>): Thread {
  const { base, local, remote } = copies
  const isOneRun = runId(local.run) === runId(remote.run)
  const time = ({ run }: Thread) => (isOneRun ? run.askedAt : run.startedAt)
  const [older, newer] = time(local) > time(remote) ? [remote, local] : [local, remote]
  const hadRun = base && runId(base.run) === runId(local.run)
  const runs = partOf({ ...copies, base: hadRun ? base : undefined }, ({ run }) => run)
  return {
    ...newer,
    run: isOneRun ? joinRuns(runs) : newer.run,
    responses: joinNames(older.responses, newer.responses, MAX_RESPONSES),
    continuedFrom: joinNames(older.continuedFrom, newer.continuedFrom, MAX_RESPONSES),
    loopState: newer.loopState ?? older.loopState,
    noticeSent: newer.noticeSent ?? older.noticeSent,
    dropsThinking: newer.dropsThinking ?? older.dropsThinking,
    operator: joinSettings(partOf(copies, ({ operator }) => operator)),
  }
}

function joinTotals(copies: Copies<Totals | undefined>): Totals | undefined {
  const { local, remote } = copies
  if (!local || !remote) return local ?? remote
  const countsOf = (name: keyof Totals) => partOf(copies, (totals) => totals?.[name] ?? 0)
  return {
    startedAt: Math.min(local.startedAt, remote.startedAt),
    iterations: joinIterations(countsOf('iterations')),
    toolCalls: Math.max(local.toolCalls, remote.toolCalls),
    acknowledged: grown(countsOf('acknowledged')),
    ignored: grown(countsOf('ignored')),
  }
}

function joinAllThreads({ base, local, remote, isLost }: Copies<Session>): readonly Thread[] {
  const byId = ({ threads }: Session) => new Map(threads.map((thread) => [threadId(thread), thread]))
  const before = base && byId(base)
  const joined = byId(remote)
  for (const [id, thread] of byId(local)) {
    const known = joined.get(id)
    joined.set(id, known ? joinThreads({ base: before?.get(id), local: thread, remote: known, isLost }) : thread)
  }
  return [...joined.values()].sort((a, b) => a.run.askedAt - b.run.askedAt).slice(-MAX_THREADS)
}

/**
 * Returns the merged session. `base`: the store's copy when the replica lost the connection; `undefined` if the
 * replica did not know the session then. `local`: the replica's copy now. `remote`: the store's copy now. `isLost`:
 * the store has lost its data since.
 */
export function mergeSessions(base: Session | undefined, local: Session, remote: Session, isLost = false): Session {
  const copies: Copies<Session> = { base, local, remote, isLost }
  return {
    threads: joinAllThreads(copies),
    usage: joinUsage(partOf(copies, ({ usage }) => usage)),
    totals: joinTotals(partOf(copies, ({ totals }) => totals)),
    contexts: local.contexts === base?.contexts ? remote.contexts : (local.contexts ?? remote.contexts),
    record: joinRecords(local.record, remote.record),
    operator: joinSettings(partOf(copies, ({ operator }) => operator)),
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
