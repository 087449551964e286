/**
 * Finds the thread of a session that a request continues, by what its transcript shows.
 *
 * Agents that run side by side may share a prompt, examples in it, a history, and even answers. So only facts count: a
 * transcript continues a thread if it shows the newest answer that the thread's requests have shown, and the thread's
 * user messages before all others. In doubt a request begins a thread of its own, which is counted by its transcript.
 */
import type { Hash } from '../hash.ts'
import { callsLast, type RequestFacts } from './request-facts.ts'
import { MAX_THREADS, retryOf, type Session, type Thread } from './session.ts'

/** Milliseconds without requests after which a transcript without known answers continues no thread. */
const IDLE_MS = 600_000

/** How a request continues a thread; what is unset is not so, or not shown. */
export interface Continuation {
  readonly thread: Thread
  /** It begins another run, with a user message that the thread has not shown. */
  readonly isNewRun?: boolean
  /** The conversation begins again from its prompt. */
  readonly dropsHistory?: boolean
  /** It kept the answer to the thread's last message and dropped the message: the harness wrote it; the run goes on. */
  readonly dropsMessage?: boolean
  /** It shows or names an answer of the thread's run, or repeats a request that does. A prompt may begin any run. */
  readonly showsRun?: boolean
}

/** How well a transcript fits a thread. */
interface Fit {
  readonly thread: Thread
  /** See `fitOf`; the smallest is the best. */
  readonly kind: 0 | 1 | 2 | 3
  /** How many answers it shows after the thread's newest one; all of them if the thread has shown none. */
  readonly newer: number
  /** How many user messages it shows after those of the thread. */
  readonly users: number
}

/**
 * Returns the thread that a request continues; `undefined` if it begins one. The first of these that exists:
 * - the thread that the client names;
 * - the thread that has counted the same bytes;
 * - the thread with the response that it continues from;
 * - the thread whose newest answer it shows, see `fitOf`;
 * - the thread whose history it replaces by a summary, see `compactedThread`.
 */
export function findThread(
  { threads }: Session,
  facts: RequestFacts,
  name: string,
  now: number,
): Continuation | undefined {
  if (name !== '') {
    const named = threads.findLast((thread) => thread.name === name)
    return named && !forks(named, facts) ? continuationIn(named, facts) : undefined
  }
  const unnamed = threads.filter((thread) => thread.name === '')
  for (let at = unnamed.length - 1; at >= 0; at--) {
    const thread = unnamed[at]
    if (thread && retryOf(thread.run, facts)) return { thread, showsRun: !facts.isPrompt }
  }
  const { previous } = facts
  if (previous !== undefined) {
    const linked = unnamed.findLast(({ responses }) => responses?.includes(previous))
    const thread = linked ?? newestOfOne(unnamed.filter(({ system }) => system === facts.system))
    if (!thread || forks(thread, facts)) return undefined
    return { thread, isNewRun: facts.userMessageHashes.length > 0, showsRun: linked !== undefined }
  }
  let best: Fit | undefined
  for (const thread of unnamed) {
    const fit = fitOf(thread, facts)
    if (fit && (!best || isBetter(fit, best))) best = fit
  }
  if (best) return continuationBy(best, facts)
  const thread = compactedThread(unnamed, facts, now)
  // A harness asks for the summary with a message that is not seen again.
  const last = thread?.userMessageHashes.at(-1)
  const dropsMessage = last !== undefined && !facts.userMessageHashes.includes(last)
  return thread && { thread, dropsMessage }
}

/**
 * Returns whether a request begins a conversation of its own: with a user message it continues from a response that
 * the thread has continued from already. Without one, an agent that goes back does not get its budget back.
 */
function forks({ continuedFrom, run }: Thread, facts: RequestFacts): boolean {
  const { previous, mayFork, userMessageHashes } = facts
  if (previous === undefined || !mayFork || userMessageHashes.length === 0) return false
  return continuedFrom?.includes(previous) === true && !retryOf(run, facts)
}

/**
 * Returns how a transcript fits a thread; `undefined` if it does not. It shows the thread's newest answer, or the
 * thread has none. Kinds:
 * - 0: its user messages begin with those of the thread;
 * - 1: they begin with the newest of those, as the history lost its beginning;
 * - 2: they lack the thread's last one, but the answer to it is there: the harness wrote that message for one request;
 * - 3: it got shorter, and all new user messages stand before the answer: they are a summary.
 */
function fitOf(thread: Thread, facts: RequestFacts): Fit | undefined {
  // A transcript does not show the ids by which a thread has continued from answers that the provider keeps.
  const newest = thread.continuedFrom ? undefined : thread.newest
  const { assistantHashes, iteration } = facts
  const at = newest === undefined ? -1 : assistantHashes.lastIndexOf(newest)
  if (newest !== undefined && at === -1) return undefined
  const newer = assistantHashes.length - 1 - at
  const known = thread.userMessageHashes
  const shown = facts.userMessageHashes
  if (beginsWith(shown, known, thread.userMessageCount)) {
    // A system text that changes with each request states the time.
    if (thread.system !== facts.system && (at === -1 || assistantHashes.length < 2)) return undefined
    const users = shown.length - thread.userMessageCount
    // A summary alone says nothing about the conversations of others.
    if (at === -1 && known.length === 0 && users > 0) return undefined
    // Nothing but the same prompt: another agent has got the same task.
    return newer === 0 && users === 0 && iteration === 1 ? undefined : { thread, kind: 0, newer, users }
  }
  if (thread.system !== facts.system) return undefined
  if (thread.endsInUserMessage && newer > 0 && (at >= 0 || thread.userMessageCount > 1)) {
    const kept = facts.endsInUserMessage ? shown.slice(0, -1) : shown
    if (kept.length === thread.userMessageCount - 1 && beginsWith(kept, known.slice(0, -1), kept.length))
      return { thread, kind: 2, newer, users: 0 }
  }
  if (at === -1) return undefined
  const users = usersAfterCut(shown, known)
  if (users !== undefined) return { thread, kind: 1, newer, users }
  const isShorter = facts.messages < (thread.messages ?? 0) && iteration <= thread.run.iteration
  // Equal answers in another run of the thread: an older view of the history ends there.
  const isOfOlderRun = newer === 0 && known.slice(0, -1).includes(shown.at(-1) as Hash)
  return isShorter && newer < iteration - 1 && !isOfOlderRun ? { thread, kind: 3, newer, users: 0 } : undefined
}

/** Returns whether `shown` begins with `count` user messages that end with `known`. */
function beginsWith(shown: readonly Hash[], known: readonly Hash[], count: number): boolean {
  const from = count - known.length
  if (shown.length < count) return false
  for (let at = 0; at < known.length; at++) if (known[at] !== shown[from + at]) return false
  return true
}

/** Returns how many user messages follow those of `known`; `undefined` if `shown` begins with none of them. */
function usersAfterCut(shown: readonly Hash[], known: readonly Hash[]): number | undefined {
  if (shown.length === 0) return 0
  for (let kept = Math.min(known.length, shown.length); kept > 0; kept--)
    if (beginsWith(shown, known.slice(-kept), kept)) return shown.length - kept
  return undefined
}

/** Threads that know the most of a transcript fit best; of equal ones the one that has waited longest. */
function isBetter(one: Fit, other: Fit): boolean {
  if (one.kind !== other.kind) return one.kind < other.kind
  if (one.newer !== other.newer) return one.newer !== 0 && (other.newer === 0 || one.newer < other.newer)
  return one.thread.userMessageCount > other.thread.userMessageCount
}

function continuationBy({ thread, kind, newer, users }: Fit, facts: RequestFacts): Continuation {
  const dropsMessage = kind === 2
  // After an answer without calls the message at the end is a human's, whatever became of the one before.
  const speaksAtEnd = dropsMessage && facts.endsInUserMessage && !callsLast(facts)
  // A user message before an answer that the run knows was put there by the harness.
  const isAfterNewest = newer >= facts.iteration - 1
  return {
    thread,
    isNewRun: speaksAtEnd || (users > 0 && isAfterNewest),
    dropsMessage,
    showsRun: dropsMessage || !isAfterNewest,
  }
}

/** Returns how a request continues the thread that its client names, whatever its transcript shows. */
function continuationIn(thread: Thread, facts: RequestFacts): Continuation {
  const { previous, userMessageHashes } = facts
  const last = userMessageHashes.at(-1)
  const isNamed = previous !== undefined && thread.responses?.includes(previous) === true
  if (retryOf(thread.run, facts)) return { thread, showsRun: isNamed || !facts.isPrompt }
  // A user message beside a history that the provider keeps is new.
  if (previous !== undefined) return { thread, isNewRun: last !== undefined, showsRun: isNamed }
  if (facts.isPrompt && thread.newest !== undefined) return { thread, isNewRun: true, dropsHistory: true }
  const fit = fitOf(thread, facts)
  if (fit) return continuationBy(fit, facts)
  return { thread, isNewRun: last !== undefined && !thread.userMessageHashes.includes(last) }
}

/**
 * Returns the thread whose history was compacted into a transcript that shows none of its answers, and no other user
 * message than the thread. It is one of these:
 * - a summary: no answer calls a tool, and something stands beside the user messages;
 * - the newest step alone, which is not known yet, if no agent with the same prompt may have made it. Only a run that
 *   goes on is compacted. `undefined` also where such threads belong to several conversations.
 */
function compactedThread(threads: readonly Thread[], facts: RequestFacts, now: number): Thread | undefined {
  const { system, userMessageHashes: shown, assistantHashes, callCounts, isPrompt, isCompacted, messages } = facts
  // After an answer a user speaks.
  if (callCounts.length > 0 && facts.endsInUserMessage) return undefined
  const isStep = callCounts.some((calls) => calls > 0)
  if (isStep && !isCompacted) {
    // Another agent may show its first step: with the same prompt, or in a forgotten thread.
    if (shown.length === 0 || threads.length >= MAX_THREADS) return undefined
    for (const { isPromptRepeated, userMessageHashes } of threads)
      if (isPromptRepeated && userMessageHashes[0] === shown[0]) return undefined
  }
  const compacted: Thread[] = []
  for (const thread of threads) {
    const { run, first, userMessageHashes: known } = thread
    if (thread.system !== system || first === undefined) continue
    if (!shown.every((hash) => known.includes(hash))) continue
    // A prompt may hold messages of the harness too.
    const promptLength = thread.promptLength ?? (isPrompt ? messages : 0)
    const isOver = (run.isAnswered && !run.finalAnswer) || now - run.askedAt >= IDLE_MS
    const isSummary = !isStep && (shown.length === 0 || messages > promptLength)
    const isShorter = messages < (thread.messages ?? 0) && facts.iteration <= run.iteration
    // A client that goes back shows the first answer.
    const isNewestStep = isStep && isShorter && !assistantHashes.includes(first)
    if (isCompacted || (!isOver && (isSummary || isNewestStep))) compacted.push(thread)
  }
  return newestOfOne(compacted)
}

/** Returns the newest of several threads, if all of them belong to one conversation. */
function newestOfOne(threads: readonly Thread[]): Thread | undefined {
  const newest = threads.at(-1)
  return threads.every(({ first }) => first === newest?.first) ? newest : undefined
}
