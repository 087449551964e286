/** Which conversation of its session a request belongs to, and whether it begins another run of it. */

import type { Sighting } from './request-facts.ts'
import type { Run, Seen, Session, Thread } from './session.ts'

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
  sighting: Sighting,
  name: string,
  isDerived = false,
): Thread | undefined {
  if (name !== '') return newestOf(threads, (thread) => thread.name === name)
  const { previous, system, humans } = sighting
  if (previous !== undefined) {
    const again = newestOf(threads, (thread) => retryOf(thread.run, sighting) !== undefined)
    if (again) return again
    const gave = newestOf(threads, (thread) => thread.responses?.includes(previous) === true)
    if (gave) return gave
  }
  const isSame = (thread: Thread) => thread.name === '' && thread.system === system
  if (isDerived) return goneOnWith(threads, sighting, isSame)
  const isAlike = (thread: Thread) => isSame(thread) && thread.humans[0] === humans[0]
  const known = showing(threads, sighting, isAlike) ?? goneOnInOtherWords(threads, sighting)
  if (known) return known
  if (threads.some(isAlike)) return begunAlike(threads, sighting, isAlike)
  return (
    showing(threads, sighting, isSame) ??
    newestOf(threads, (thread) => isSame(thread) && thread.humans.some((human) => humans.includes(human))) ??
    (humans.length === 0 ? newestOf(threads, isSame) : undefined)
  )
}

/** Of the threads that pass, the one that knows the newest answer that any of them knows. */
function showing(
  threads: readonly Thread[],
  { ancestry }: Sighting,
  isIt: (thread: Thread) => boolean,
): Thread | undefined {
  for (let at = ancestry.length - 1; at >= 0; at--) {
    const answer = ancestry[at]
    if (answer === undefined) continue
    const found = newestOf(threads, (thread) => isIt(thread) && thread.ancestry.includes(answer))
    if (found) return found
  }
  return undefined
}

/**
 * A run whose system text is another in each request (it says what time it is) is known by its newest answer, as one of
 * several, and by what a human said last: an agent that was given the history and a task is another conversation.
 */
function goneOnInOtherWords(threads: readonly Thread[], { ancestry, humans }: Sighting): Thread | undefined {
  if (ancestry.length < 2) return undefined
  const last = humans.at(-1)
  return newestOf(threads, (thread) => {
    const newest = thread.ancestry.at(-1)
    const isKnown = thread.name === '' && newest !== undefined && ancestry.includes(newest)
    return isKnown && thread.humans.at(-1) === last
  })
}

/**
 * Of threads that began as the transcript does and know no answer that it shows, the one it belongs to. `undefined`: none
 * of them, as it shows several such answers, or the only answer to a prompt that was sent more often than answers to it
 * were shown. One answer besides may be a summary of what was before, or the only one that a client still sends.
 */
function begunAlike(
  threads: readonly Thread[],
  sighting: Sighting,
  isAlike: (thread: Thread) => boolean,
): Thread | undefined {
  const shows = sighting.ancestry.length
  if (shows === 0) {
    const again = newestOf(
      threads,
      (thread) => isAlike(thread) && retryOf(thread.run, sighting) !== undefined,
    )
    return again ?? newestOf(threads, isAlike)
  }
  // One whose history the provider keeps has shown no answer either, until the client sends all of it again.
  const unanswered = newestOf(
    threads,
    (thread) => isAlike(thread) && (thread.ancestry.length === 0 || thread.wentOnFrom !== undefined),
  )
  if (unanswered) return unanswered
  const isOther = sighting.previous === undefined && (shows > 1 || startOf(threads, sighting) !== undefined)
  return isOther ? undefined : newestOf(threads, isAlike)
}

/** The thread whose prompt was sent more often than answers to it were shown, where a transcript shows one and no more. */
export function startOf(
  threads: readonly Thread[],
  { system, humans, ancestry }: Sighting,
): Thread | undefined {
  if (ancestry.length !== 1) return undefined
  return newestOf(
    threads,
    (thread) =>
      thread.name === '' &&
      thread.system === system &&
      thread.humans[0] === humans[0] &&
      (thread.starts ?? 0) > 0,
  )
}

/**
 * Of the threads that pass, which all began as the transcript does, the one it goes on with: it shows one of the newest
 * answers there, else what a human said last. Greetings are often answered in the same words.
 */
function goneOnWith(
  threads: readonly Thread[],
  { ancestry, humans }: Sighting,
  isSame: (thread: Thread) => boolean,
): Thread | undefined {
  const [first] = ancestry
  return (
    newestOf(
      threads,
      (thread) =>
        isSame(thread) && ancestry.some((answer) => answer !== first && thread.ancestry.includes(answer)),
    ) ??
    newestOf(threads, (thread) => {
      const last = thread.humans.at(-1)
      return isSame(thread) && (last === undefined || humans.includes(last))
    })
  )
}

/**
 * A run begins with a human message that the thread has not seen, or with one more than it had: people do say
 * "continue" twice. A transcript that lost messages, and ends in an old one, continues the run; but once the run was
 * stopped and answered, a human who says the same again means it.
 */
export function startsRun(thread: Thread, sighting: Sighting): boolean {
  const last = sighting.humans.at(-1)
  if (last === undefined) return false
  // What a human says beside a history that the provider keeps is new.
  if (sighting.previous !== undefined) return !retryOf(thread.run, sighting)
  if (!thread.humans.includes(last)) return true
  // One more than before, and nothing since: a shorter view of the same history may well have come in between.
  if (sighting.humans.length > thread.humanCount && sighting.iteration === 1) return true
  return thread.run.ended !== undefined && sighting.endsInHuman && !retryOf(thread.run, sighting)
}

/**
 * Does a conversation begin anew that began with the same words before? What is asked holds the prompt and nothing else,
 * and what was before is over: it was stopped, its last answer called nothing, or nothing was asked for ten minutes. Else
 * the prompt may be what a compacted history has left.
 */
export function beginsAnew({ run }: Thread, sighting: Sighting, now: number): boolean {
  if (!sighting.isPrompt || sighting.previous !== undefined || retryOf(run, sighting)) return false
  return run.ended !== undefined || run.isAnswered === true || now - run.askedAt >= IDLE
}

/** The same request as one that the run has seen. */
export function retryOf({ seen }: Run, { fingerprint }: { readonly fingerprint: string }): Seen | undefined {
  for (const one of seen) if (one.fingerprint === fingerprint) return one
  return undefined
}

/**
 * A session without a name of its own is known by how it began. Where the same beginning is shown again, with a newest
 * message that is an old one, somebody started over: that is another run, whatever this one had used.
 */
export function startsOver(thread: Thread, sighting: Sighting): boolean {
  const { run, ancestry } = thread
  // The last step of a run that was stopped, sent again in another form, wants its answer again.
  const isBack = run.ended ? sighting.iteration < run.iteration : sighting.iteration <= run.iteration
  return (
    isBack && sighting.newest !== undefined && ancestry.includes(sighting.newest) && !retryOf(run, sighting)
  )
}
