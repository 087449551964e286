/** Which conversation of its session a request belongs to, and whether it begins another run of it. */
import type { Run, Seen, Session, Thread } from './session.ts'
import type { Sighting } from './sighting.ts'

/** The newest thread of those that pass. */
function newestOf(threads: readonly Thread[], isIt: (thread: Thread) => boolean): Thread | undefined {
  for (let at = threads.length - 1; at >= 0; at--) {
    const thread = threads[at]
    if (thread && isIt(thread)) return thread
  }
  return undefined
}

/**
 * The thread a request belongs to: the one its header names; else the one that gave the response it goes on from; else
 * the one with the same system text and first human message; else, as histories get compacted or cut off at the front,
 * the one with the same system text that knows part of what this transcript shows. A transcript that shows nothing to go
 * by (only a summary) continues the thread that was last used with that system text. `isDerived`: the session has no name but
 * how it began, so that conversations with the same beginning are threads of it as long as they are not the same one.
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
  const first = humans[0]
  const isSame = (thread: Thread) => thread.name === '' && thread.system === system
  if (isDerived) return goneOnWith(threads, sighting, isSame)
  return (
    newestOf(threads, (thread) => isSame(thread) && thread.humans[0] === first) ??
    newestOf(threads, (thread) => isSame(thread) && sharesHistory(thread, sighting)) ??
    (first === undefined ? newestOf(threads, isSame) : undefined)
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
