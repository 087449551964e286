/**
 * Joins what two replicas know of one session, after one of them could not reach the store. Counts that both read from the
 * transcript are the larger one; usage, which only one replica sees of each answer, is added; a stop of either holds.
 */
import type { Hash } from '../hash.ts'
import { merged } from '../newest.ts'
import { NO_USAGE, type Usage } from '../usage.ts'
import { MAX_ITERATIONS_KEPT, MAX_RUNS_KEPT, type SessionRecord } from './record.ts'
import {
  MAX_ASSISTANT_MESSAGES,
  MAX_FORGOTTEN,
  MAX_RECENT_REQUESTS,
  MAX_RESPONSES,
  MAX_THREADS,
  MAX_USER_MESSAGES,
  type Run,
  type Session,
  type Thread,
  type Totals,
} from './session.ts'

/** Three copies of one value: before the replica was cut off, in the replica now, and in the store now. */
interface Versions<Value> {
  readonly base: Value | undefined
  readonly local: Value
  readonly remote: Value
}

/** Returns an amount of `remote` with what `local` has more than `base`. */
function grown(base: number, local: number, remote: number): number {
  return remote + Math.max(0, local - base)
}

/** What `remote` used, and what `local` used since `base`. */
function addedUsage(
  base: Usage | undefined,
  local: Usage | undefined,
  remote: Usage | undefined,
): Usage | undefined {
  if (local === undefined || remote === undefined) return remote ?? local
  const { input, output, cachedInput, cost } = base ?? NO_USAGE
  return {
    input: grown(input, local.input, remote.input),
    output: grown(output, local.output, remote.output),
    cachedInput: grown(cachedInput, local.cachedInput, remote.cachedInput),
    cost: Math.round(grown(cost, local.cost, remote.cost) * 1e9) / 1e9,
    estimated: remote.estimated || local.estimated,
  }
}

/** Returns the larger of two counts of iterations; those that `local` gave back since `base` are given back in `remote` too. */
function joinIterations(base: number | undefined, local: number, remote: number): number {
  const released = base === undefined ? 0 : Math.max(0, base - local)
  return Math.max(local, remote - released)
}

/** Threads without a name are the same if they know an answer in common; else if they began alike and one knows no answer yet. */
function isSameThread(one: Thread, other: Thread): boolean {
  if (one.name !== '' || other.name !== '') return one.name === other.name
  if (one.system !== other.system) return false
  if (one.assistantHashes.some((answer) => other.assistantHashes.includes(answer))) return true
  const isNew = one.assistantHashes.length === 0 || other.assistantHashes.length === 0
  return isNew && one.userMessageHashes[0] === other.userMessageHashes[0]
}

function isSameRun(one: Thread, other: Thread): boolean {
  return one.userMessageHashes.at(-1) === other.userMessageHashes.at(-1)
}

/** The thread whose run began later: it has seen the last human message of the other and then one more. */
function newerOf(local: Thread, remote: Thread): Thread {
  const isRemoteOld = remote.userMessageHashes.length > 0 && !isSameRun(local, remote)
  const last = remote.userMessageHashes.at(-1)
  if (isRemoteOld && last !== undefined && local.userMessageHashes.includes(last)) return local
  if (isSameRun(local, remote)) return local.run.askedAt > remote.run.askedAt ? local : remote
  return remote
}

/** Returns the operators' settings of both copies; if both have the same setting, `newer` counts. */
function joinSettings<Settings extends object>(
  older: Settings | undefined,
  newer: Settings | undefined,
): Settings | undefined {
  return older && newer ? { ...older, ...newer } : (newer ?? older)
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

function joinRecords(
  local: SessionRecord | undefined,
  remote: SessionRecord | undefined,
): SessionRecord | undefined {
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
  }
}

function joinRuns({ base, local, remote }: Versions<Run>): Run {
  const [older, newer] = local.askedAt > remote.askedAt ? [remote, local] : [local, remote]
  const isShown = new Set(newer.recentRequests.map(({ fingerprint }) => fingerprint))
  const others = older.recentRequests.filter(({ fingerprint }) => !isShown.has(fingerprint))
  return {
    ...newer,
    startedAt: Math.min(local.startedAt, remote.startedAt),
    iteration: joinIterations(base?.iteration, local.iteration, remote.iteration),
    toolCalls: Math.max(local.toolCalls, remote.toolCalls),
    recentRequests: [...others, ...newer.recentRequests].slice(-MAX_RECENT_REQUESTS),
    usage: addedUsage(base?.usage, local.usage, remote.usage),
    finalAnswer: newer.finalAnswer ?? older.finalAnswer,
    isReported: newer.isReported ?? older.isReported,
    stopTries: newer.stopTries ?? older.stopTries,
    demands: newer.demands ?? older.demands,
    question: newer.question ?? older.question,
    operator: joinSettings(older.operator, newer.operator),
  }
}

function joinNames(
  one: readonly string[] | undefined,
  other: readonly string[] | undefined,
  bound: number,
): readonly string[] | undefined {
  if (one === undefined || other === undefined) return one ?? other
  return [...new Set([...one, ...other])].slice(-bound)
}

function joinThreads({ base, local, remote }: Versions<Thread>): Thread {
  const newer = newerOf(local, remote)
  const older = newer === local ? remote : local
  const runBefore = base && isSameRun(base, local) ? base.run : undefined
  const run = isSameRun(local, remote)
    ? joinRuns({ base: runBefore, local: local.run, remote: remote.run })
    : newer.run
  return {
    ...newer,
    userMessageHashes: merged(older.userMessageHashes, newer.userMessageHashes, MAX_USER_MESSAGES),
    assistantHashes: merged(older.assistantHashes, newer.assistantHashes, MAX_ASSISTANT_MESSAGES),
    run,
    responses: joinNames(older.responses, newer.responses, MAX_RESPONSES),
    continuedFrom: joinNames(older.continuedFrom, newer.continuedFrom, MAX_RESPONSES),
    loopState: newer.loopState ?? older.loopState,
    noticeSent: newer.noticeSent ?? older.noticeSent,
    dropsThinking: newer.dropsThinking ?? older.dropsThinking,
    operator: joinSettings(older.operator, newer.operator),
  }
}

function joinTotals({ base, local, remote }: Versions<Totals>): Totals {
  return {
    startedAt: Math.min(local.startedAt, remote.startedAt),
    iterations: joinIterations(base?.iterations, local.iterations, remote.iterations),
    toolCalls: Math.max(local.toolCalls, remote.toolCalls),
    acknowledged: grown(base?.acknowledged ?? 0, local.acknowledged, remote.acknowledged),
    ignored: grown(base?.ignored ?? 0, local.ignored, remote.ignored),
  }
}

/**
 * Returns the merged session. `base`: the store's copy when the replica lost the connection; `undefined` if the replica did
 * not know the session then; `remote` itself if the store has lost its data since. `local`: the replica's copy now. `remote`: the
 * store's copy now.
 */
export function mergeSessions(base: Session | undefined, local: Session, remote: Session): Session {
  const find = (threads: readonly Thread[] | undefined, thread: Thread) =>
    threads?.findLast((one) => isSameThread(one, thread))
  const joined = new Map<Thread, Thread>()
  const added: Thread[] = []
  for (const thread of local.threads) {
    const known = find(remote.threads, thread)
    if (known === undefined || joined.has(known)) added.push(thread)
    else joined.set(known, joinThreads({ base: find(base?.threads, thread), local: thread, remote: known }))
  }
  const threads = [...remote.threads.map((thread) => joined.get(thread) ?? thread), ...added]
  const { totals: ours } = local
  const { totals: theirs } = remote
  return {
    threads: threads.toSorted((a, b) => a.run.askedAt - b.run.askedAt).slice(-MAX_THREADS),
    usage: addedUsage(base?.usage, local.usage, remote.usage),
    totals:
      ours && theirs ? joinTotals({ base: base?.totals, local: ours, remote: theirs }) : (theirs ?? ours),
    forgotten: joinNames(remote.forgotten, local.forgotten, MAX_FORGOTTEN) as readonly Hash[] | undefined,
    contexts: local.contexts === base?.contexts ? remote.contexts : (local.contexts ?? remote.contexts),
    record: joinRecords(local.record, remote.record),
    operator: joinSettings(remote.operator, local.operator),
  }
}
