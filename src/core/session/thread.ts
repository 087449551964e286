/** Finds the thread of a session that a request belongs to, and whether the request begins another run of it. */

import type { RequestFacts } from './request-facts.ts'
import type { RecentRequest, Run, Session, Thread } from './session.ts'

/** Milliseconds without requests after which a run is over. */
const IDLE_MS = 600_000

/** Returns the newest thread that fits. */
function newestOf(threads: readonly Thread[], isIt: (thread: Thread) => boolean): Thread | undefined {
  for (let at = threads.length - 1; at >= 0; at--) {
    const thread = threads[at]
    if (thread && isIt(thread)) return thread
  }
  return undefined
}

/**
 * Returns the thread that a request belongs to; the first of these that exists:
 * - the thread that its header names;
 * - the thread with the response that it continues from;
 * - of the threads with the same system text and first user message, the one that knows the newest answer of the transcript, or
 *   another by {begunAlike};
 * - a thread that knows part of the transcript, as histories get cut off at the front;
 * - for a transcript without user messages (a summary alone), the thread that was last used with its system text.
 *
 * `isDerived`: the session is identified by how it began, so other conversations with the same beginning are threads of it too.
 */
export function findThread(
  { threads }: Session,
  facts: RequestFacts,
  name: string,
  isDerived = false,
): Thread | undefined {
  if (name !== '') return newestOf(threads, (thread) => thread.name === name)
  const { previous, system, userMessageHashes } = facts
  if (previous !== undefined) {
    const again = newestOf(threads, (thread) => retryOf(thread.run, facts) !== undefined)
    if (again) return again
    const gave = newestOf(threads, (thread) => thread.responses?.includes(previous) === true)
    if (gave) return gave
  }
  const isSame = (thread: Thread) => thread.name === '' && thread.system === system
  if (isDerived) return continued(threads, facts, isSame)
  const isAlike = (thread: Thread) => isSame(thread) && thread.userMessageHashes[0] === userMessageHashes[0]
  const known = showing(threads, facts, isAlike) ?? withOtherSystemText(threads, facts)
  if (known) return known
  if (threads.some(isAlike)) return begunAlike(threads, facts, isAlike)
  return (
    showing(threads, facts, isSame) ??
    newestOf(
      threads,
      (thread) =>
        isSame(thread) && thread.userMessageHashes.some((human) => userMessageHashes.includes(human)),
    ) ??
    (userMessageHashes.length === 0 ? newestOf(threads, isSame) : undefined)
  )
}

/** Returns the fitting thread that knows the newest answer of the transcript. */
function showing(
  threads: readonly Thread[],
  { assistantHashes }: RequestFacts,
  isIt: (thread: Thread) => boolean,
): Thread | undefined {
  for (let at = assistantHashes.length - 1; at >= 0; at--) {
    const answer = assistantHashes[at]
    if (answer === undefined) continue
    const found = newestOf(threads, (thread) => isIt(thread) && thread.assistantHashes.includes(answer))
    if (found) return found
  }
  return undefined
}

/**
 * Returns the thread of a run whose system text changes with each request (it states the time): the transcript shows its newest
 * answer among others, and the same last user message. An agent that got the history and a new task is another conversation.
 */
function withOtherSystemText(
  threads: readonly Thread[],
  { assistantHashes, userMessageHashes }: RequestFacts,
): Thread | undefined {
  if (assistantHashes.length < 2) return undefined
  const last = userMessageHashes.at(-1)
  return newestOf(threads, (thread) => {
    const newest = thread.assistantHashes.at(-1)
    const isKnown = thread.name === '' && newest !== undefined && assistantHashes.includes(newest)
    return isKnown && thread.userMessageHashes.at(-1) === last
  })
}

/**
 * Returns the thread of a transcript among those that began like it and know none of its answers. `undefined` if it belongs to
 * none of them: it shows several such answers, or the only answer to a prompt that was sent more often than it was answered.
 * A single answer may also be a summary of the history, or the only one that the client still sends.
 */
function begunAlike(
  threads: readonly Thread[],
  facts: RequestFacts,
  isAlike: (thread: Thread) => boolean,
): Thread | undefined {
  const shows = facts.assistantHashes.length
  if (shows === 0) {
    const again = newestOf(threads, (thread) => isAlike(thread) && retryOf(thread.run, facts) !== undefined)
    return again ?? newestOf(threads, isAlike)
  }
  // A thread whose history the provider keeps has shown no answer either, until the client sends all of it again.
  const unanswered = newestOf(
    threads,
    (thread) =>
      isAlike(thread) && (thread.assistantHashes.length === 0 || thread.continuedFrom !== undefined),
  )
  if (unanswered) return unanswered
  const isOther = facts.previous === undefined && (shows > 1 || startOf(threads, facts) !== undefined)
  return isOther ? undefined : newestOf(threads, isAlike)
}

/** Returns the thread whose prompt was sent more often than it was answered, for a transcript with exactly one answer. */
export function startOf(
  threads: readonly Thread[],
  { system, userMessageHashes, assistantHashes }: RequestFacts,
): Thread | undefined {
  if (assistantHashes.length !== 1) return undefined
  return newestOf(
    threads,
    (thread) =>
      thread.name === '' &&
      thread.system === system &&
      thread.userMessageHashes[0] === userMessageHashes[0] &&
      (thread.unansweredStarts ?? 0) > 0,
  )
}

/**
 * Returns the fitting thread that a transcript continues: it shows one of the thread's answers after the first, or else the
 * thread's last user message. The first answer proves nothing: greetings are often answered in the same words.
 */
function continued(
  threads: readonly Thread[],
  { assistantHashes, userMessageHashes }: RequestFacts,
  isSame: (thread: Thread) => boolean,
): Thread | undefined {
  const [first] = assistantHashes
  return (
    newestOf(
      threads,
      (thread) =>
        isSame(thread) &&
        assistantHashes.some((answer) => answer !== first && thread.assistantHashes.includes(answer)),
    ) ??
    newestOf(threads, (thread) => {
      const last = thread.userMessageHashes.at(-1)
      return isSame(thread) && (last === undefined || userMessageHashes.includes(last))
    })
  )
}

/**
 * Returns whether a request begins a run: with a user message that is new to the thread, or with one more than before, as users
 * do say "continue" twice. A transcript that lost messages and ends in an old one continues the run; once the run was stopped,
 * the same user message again begins another.
 */
export function startsRun(thread: Thread, facts: RequestFacts): boolean {
  const last = facts.userMessageHashes.at(-1)
  if (last === undefined) return false
  // A user message beside a history that the provider keeps is new.
  if (facts.previous !== undefined) return !retryOf(thread.run, facts)
  if (!thread.userMessageHashes.includes(last)) return true
  // One more than before, and no known answer after it: a request with a shorter history may have come in between. Of a history
  // that the provider kept, no answer is known.
  const mayKnow = thread.continuedFrom === undefined || facts.iteration === 1
  if (facts.userMessageHashes.length > thread.userMessageCount && mayKnow && !showsRun(thread, facts))
    return true
  return thread.run.finalAnswer !== undefined && facts.endsInUserMessage && !retryOf(thread.run, facts)
}

/** Returns whether a transcript shows an answer that the thread knows after its last user message. */
export function showsRun({ assistantHashes }: Thread, facts: RequestFacts): boolean {
  if (facts.iteration === 1) return false
  return facts.assistantHashes.slice(1 - facts.iteration).some((answer) => assistantHashes.includes(answer))
}

/**
 * Returns whether a request begins its conversation again: it contains only the prompt, and the run before is over: it was
 * stopped, its last answer called no tool, or no request came for ten minutes. Otherwise the prompt may be the rest of a compacted
 * history.
 */
export function beginsAnew({ run }: Thread, facts: RequestFacts, now: number): boolean {
  if (!facts.isPrompt || facts.previous !== undefined || retryOf(run, facts)) return false
  return run.finalAnswer !== undefined || run.isAnswered === true || now - run.askedAt >= IDLE_MS
}

/** Returns the request of the run with the same bytes; `undefined` if there is none. */
export function retryOf(
  { recentRequests }: Run,
  { fingerprint }: { readonly fingerprint: string },
): RecentRequest | undefined {
  for (const one of recentRequests) if (one.fingerprint === fingerprint) return one
  return undefined
}

/**
 * Returns whether a request starts a conversation over: the transcript went back to an answer that the thread knows. That is
 * another run, because a session without a name is identified by how it began.
 */
export function startsOver(thread: Thread, facts: RequestFacts): boolean {
  const { run, assistantHashes } = thread
  // The last step of a stopped run in another form starts no run: it asks for the answer again.
  const isBack = run.finalAnswer ? facts.iteration < run.iteration : facts.iteration <= run.iteration
  return (
    isBack &&
    facts.newestAssistant !== undefined &&
    assistantHashes.includes(facts.newestAssistant) &&
    !retryOf(run, facts)
  )
}
