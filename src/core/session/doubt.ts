/**
 * Runs of a copy that the store could not confirm. Other replicas may have begun and ended runs since, so such a run goes on
 * only in a request that proves it; any other request begins a run, which is counted by its own transcript.
 */
import type { Session } from './session.ts'

/** Marks the newest runs of a copy as not confirmed. */
export function doubted(session: Session): Session {
  const threads = session.threads.map((thread) =>
    thread.run.isDoubted ? thread : { ...thread, run: { ...thread.run, isDoubted: true } },
  )
  return { ...session, threads }
}
