/** Sessions in this process's memory: lost with it, bounded in number, age and size. */
import type { FirstAnswer, Session, Thread } from '../core/session.ts'
import { Shelf } from './shelf.ts'
import { type Link, type Store, sessionKey } from './store.ts'

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

function sizeOfThread({ humans, ancestry, responses, wentOnFrom, guarded, errors, run }: Thread): number {
  const hashes =
    humans.length + ancestry.length + run.seen.length + (responses?.length ?? 0) + (wentOnFrom?.length ?? 0)
  let size = BYTES_PER_THREAD + hashes * BYTES_PER_HASH
  if (guarded) size += BYTES_PER_GUARD + (guarded.made?.length ?? 0) * BYTES_PER_CALL
  for (const { newest } of errors ?? []) size += BYTES_PER_CALL + newest.body.length * 2
  if (run.ended) size += run.ended.text.length * 2
  return size
}

function sizeOf({ threads, forgotten, contexts }: Session): number {
  let size = BYTES_PER_THREAD + (contexts?.reductions.length ?? 0) * BYTES_PER_CALL
  size += (forgotten?.length ?? 0) * BYTES_PER_HASH
  for (const thread of threads) size += sizeOfThread(thread)
  return size
}

function sizeOfLink({ owed = [], begun }: Link): number {
  const own = BYTES_PER_LINK + (begun ? sizeOf(begun) : 0)
  return owed.reduce((sum, text) => sum + text.length * 2, own)
}

/** `now` gives milliseconds that only grow, from any point on but 0. All that it is asked for is there at once. */
export function createMemoryStore(limits: MemoryLimits, now: () => number = () => performance.now()): Store {
  const { maxSessions: max, ttl, maxBytes } = limits
  const sessions = new Shelf<Session>({ max, ttl, maxBytes, sizeOf, now })
  const links = new Shelf<Link>({
    max: max * LINKS_PER_SESSION,
    ttl,
    maxBytes: Math.max(1, Math.floor(maxBytes * SHARE_OF_LINKS)),
    sizeOf: sizeOfLink,
    now,
  })
  const firsts = new Shelf<FirstAnswer[]>({ max, ttl, maxBytes: max, sizeOf: () => 1, now })
  return {
    update(key, change) {
      const known = sessions.get(key)
      const { session, result } = change(known?.value)
      sessions.put(key, session, known)
      return result
    },
    get: (key) => sessions.get(key)?.value,
    link(tenant, response, link) {
      const name = sessionKey(tenant, response)
      links.put(name, link, links.get(name))
    },
    linked: (tenant, response) => links.get(sessionKey(tenant, response))?.value,
    keepFirst(key, first) {
      const known = firsts.get(key)
      if (!known) {
        firsts.put(key, [first], undefined)
        return
      }
      known.value.push(first)
      if (known.value.length > MAX_FIRSTS) known.value.shift()
    },
    takeFirst(key) {
      const known = firsts.get(key)?.value
      const first = known?.pop()
      if (known?.length === 0) firsts.delete(key)
      return first
    },
    get size() {
      return sessions.size
    },
  }
}
