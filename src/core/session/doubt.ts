/**
 * Runs of a copy that the store could not confirm. Other replicas may have begun and ended runs since, so such a run goes on
 * only in a request that proves it; any other request begins a run, which is counted by its own transcript.
 */
import type { RequestFacts } from './request-facts.ts'
import type { Session, Thread } from './session.ts'
import { retryOf, showsRun } from './thread.ts'

/** Marks the newest runs of a copy as not confirmed. */
export function doubted(session: Session): Session {
  const threads = session.threads.map((thread) =>
    thread.run.isDoubted ? thread : { ...thread, run: { ...thread.run, isDoubted: true } },
  )
  return { ...session, threads }
}

/** Returns whether a request belongs to the newest run of a thread: it shows or names one of its answers, or repeats a request. */
export function provesRun(thread: Thread, facts: RequestFacts): boolean {
  const { previous } = facts
  if (previous !== undefined && thread.responses?.includes(previous)) return true
  return showsRun(thread, facts) || retryOf(thread.run, facts) !== undefined
}
