/** Which conversation of its session a request belongs to, and whether it begins another run of it. */

import type { RequestFacts } from './request-facts.ts'
import type { RecentRequest, Run, Session, Thread } from './session.ts'

/** A run that nothing was asked of for so long is over, in milliseconds. */
const IDLE = 600_000

/** The newest thread of those that pass. */
function newestOf(threads: readonly Thread[], isIt: (thread: Thread) => boolean): Thread | undefined {
  for (let at = threads.length - 1; at >= 0; at--) {
    const thread = threads[at]
    if (thread && isIt(thread)) return thread
  }
  return undefined
}

/**
 * The thread a request belongs to: the one its header names; else the one that gave the response it goes on from; else,
 * of those that began with the same system text and human message, the one that knows the newest of the answers that it
 * shows, or another by {begunAlike}; else, as histories get cut off at the front, one that knows part of what it shows. A
 * transcript that shows nothing to go by (only a summary) continues the thread that was last used with that system text.
 * `isDerived`: the session has no name but how it began, so that conversations with the same beginning are threads of it
 * as long as they are not the same one.
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
  if (isDerived) return goneOnWith(threads, facts, isSame)
  const isAlike = (thread: Thread) => isSame(thread) && thread.userMessageHashes[0] === userMessageHashes[0]
  const known = showing(threads, facts, isAlike) ?? goneOnInOtherWords(threads, facts)
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

/** Of the threads that pass, the one that knows the newest answer that any of them knows. */
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
 * A run whose system text is another in each request (it says what time it is) is known by its newest answer, as one of
 * several, and by what a human said last: an agent that was given the history and a task is another conversation.
 */
function goneOnInOtherWords(
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
 * Of threads that began as the transcript does and know no answer that it shows, the one it belongs to. `undefined`: none
 * of them, as it shows several such answers, or the only answer to a prompt that was sent more often than answers to it
 * were shown. One answer besides may be a summary of what was before, or the only one that a client still sends.
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
  // One whose history the provider keeps has shown no answer either, until the client sends all of it again.
  const unanswered = newestOf(
    threads,
    (thread) =>
      isAlike(thread) && (thread.assistantHashes.length === 0 || thread.continuedFrom !== undefined),
  )
  if (unanswered) return unanswered
  const isOther = facts.previous === undefined && (shows > 1 || startOf(threads, facts) !== undefined)
  return isOther ? undefined : newestOf(threads, isAlike)
}

/** The thread whose prompt was sent more often than answers to it were shown, where a transcript shows one and no more. */
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
 * Of the threads that pass, which all began as the transcript does, the one it goes on with: it shows one of the newest
 * answers there, else what a human said last. Greetings are often answered in the same words.
 */
function goneOnWith(
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
 * A run begins with a human message that the thread has not seen, or with one more than it had: people do say
 * "continue" twice. A transcript that lost messages, and ends in an old one, continues the run; but once the run was
 * stopped and answered, a human who says the same again means it.
 */
export function startsRun(thread: Thread, facts: RequestFacts): boolean {
  const last = facts.userMessageHashes.at(-1)
  if (last === undefined) return false
  // What a human says beside a history that the provider keeps is new.
  if (facts.previous !== undefined) return !retryOf(thread.run, facts)
  if (!thread.userMessageHashes.includes(last)) return true
  // One more than before, and nothing since: a shorter view of the same history may well have come in between.
  if (facts.userMessageHashes.length > thread.userMessageCount && facts.iteration === 1) return true
  return thread.run.finalAnswer !== undefined && facts.endsInUserMessage && !retryOf(thread.run, facts)
}

/**
 * Does a conversation begin anew that began with the same words before? What is asked holds the prompt and nothing else,
 * and what was before is over: it was stopped, its last answer called nothing, or nothing was asked for ten minutes. Else
 * the prompt may be what a compacted history has left.
 */
export function beginsAnew({ run }: Thread, facts: RequestFacts, now: number): boolean {
  if (!facts.isPrompt || facts.previous !== undefined || retryOf(run, facts)) return false
  return run.finalAnswer !== undefined || run.isAnswered === true || now - run.askedAt >= IDLE
}

/** The same request as one that the run has seen. */
export function retryOf(
  { recentRequests }: Run,
  { fingerprint }: { readonly fingerprint: string },
): RecentRequest | undefined {
  for (const one of recentRequests) if (one.fingerprint === fingerprint) return one
  return undefined
}

/**
 * A session without a name of its own is known by how it began. Where the same beginning is shown again, with a newest
 * message that is an old one, somebody started over: that is another run, whatever this one had used.
 */
export function startsOver(thread: Thread, facts: RequestFacts): boolean {
  const { run, assistantHashes } = thread
  // The last step of a run that was stopped, sent again in another form, wants its answer again.
  const isBack = run.finalAnswer ? facts.iteration < run.iteration : facts.iteration <= run.iteration
  return (
    isBack &&
    facts.newestAssistant !== undefined &&
    assistantHashes.includes(facts.newestAssistant) &&
    !retryOf(run, facts)
  )
}
