/** Sessions in this process's memory: lost with it, bounded in number, age and size. */
import { LRUCache } from 'lru-cache'
import type { FirstAnswer, Run, Session } from '../core/session.ts'
import type { Link, SessionKey, Store } from './store.ts'

export interface MemoryLimits {
  readonly maxSessions: number
  /** Milliseconds since a session was last used. */
  readonly ttl: number
  /** Bytes that all sessions together may take, roughly. */
  readonly maxBytes: number
}

/** How many conversations that began alike may wait for their second request. */
const MAX_FIRSTS = 64

/** What a hash and its place in an array take, roughly, in bytes. */
const BYTES_PER_HASH = 96
const BYTES_PER_THREAD = 512
/** How many responses are remembered by id, for each session that there may be. */
const LINKS_PER_SESSION = 4
/** They may hold results that are to be sent along: what all of them take, beside the sessions. */
const SHARE_OF_LINKS = 0.25
const BYTES_PER_LINK = 256
/** A window of calls and outcomes, and names of messages. */
const BYTES_PER_GUARD = 8_192
/** A call that only its response told of. */
const BYTES_PER_CALL = 384

function sizeOfRun(run: Run): number {
  return run.seen.length * BYTES_PER_HASH + (run.ended ? run.ended.text.length * 2 : 0)
}

function sizeOf(session: Session): number {
  return session.threads.reduce(
    (sum, thread) =>
      sum +
      BYTES_PER_THREAD +
      (thread.humans.length +
        thread.ancestry.length +
        (thread.responses?.length ?? 0) +
        (thread.wentOnFrom?.length ?? 0)) *
        BYTES_PER_HASH +
      (thread.guarded ? BYTES_PER_GUARD + (thread.guarded.made?.length ?? 0) * BYTES_PER_CALL : 0) +
      sizeOfRun(thread.run),
    BYTES_PER_THREAD + (session.contexts?.reductions.length ?? 0) * BYTES_PER_CALL,
  )
}

function sizeOfLink({ owed = [], begun }: Link): number {
  const own = BYTES_PER_LINK + (begun ? sizeOf(begun) : 0)
  return owed.reduce((sum, text) => sum + text.length * 2, own)
}

/** `now` gives milliseconds that only grow, from any point on but 0. */
export function createMemoryStore(limits: MemoryLimits, now: () => number = () => performance.now()): Store {
  const sessions = new LRUCache<string, Session>({
    max: limits.maxSessions,
    ttl: limits.ttl,
    maxSize: limits.maxBytes,
    sizeCalculation: sizeOf,
    updateAgeOnGet: true,
    perf: { now },
    ttlResolution: 0,
  })
  const links = new LRUCache<string, Link>({
    max: limits.maxSessions * LINKS_PER_SESSION,
    maxSize: Math.max(1, Math.floor(limits.maxBytes * SHARE_OF_LINKS)),
    sizeCalculation: sizeOfLink,
    ttl: limits.ttl,
    updateAgeOnGet: true,
    perf: { now },
    ttlResolution: 0,
  })
  const firsts = new LRUCache<string, FirstAnswer[]>({
    max: limits.maxSessions,
    ttl: limits.ttl,
    perf: { now },
    ttlResolution: 0,
  })
  const nameOf = ({ tenant, id }: SessionKey) => `${tenant}:${id}`
  return {
    update(key, change) {
      const name = nameOf(key)
      const { session, result } = change(sessions.get(name))
      sessions.set(name, session)
      return Promise.resolve(result)
    },
    link(tenant, response, link) {
      links.set(nameOf({ tenant, id: response }), link)
      return Promise.resolve()
    },
    linked: (tenant, response) => Promise.resolve(links.get(nameOf({ tenant, id: response }))),
    keepFirst(key, first) {
      const name = nameOf(key)
      firsts.set(name, [...(firsts.get(name) ?? []), first].slice(-MAX_FIRSTS))
      return Promise.resolve()
    },
    takeFirst(key) {
      const name = nameOf(key)
      const kept = firsts.get(name)
      const first = kept?.pop()
      if (kept?.length === 0) firsts.delete(name)
      return Promise.resolve(first)
    },
    get size() {
      return sessions.size
    },
  }
}
