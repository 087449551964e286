/** Values that replicas share in one process, as Redis keeps them. */
import { doubted, mergeSessions } from '../../src/core/session/merge.ts'
import type { Session } from '../../src/core/session/session.ts'
import {
  createReplicatedValues,
  NOT_STORED,
  NotDoneError,
  type RemoteValues,
  type Versioned,
} from '../../src/store/replicated-values.ts'
import type { SessionKey } from '../../src/store/store.ts'

/** How Redis treats the commands of one replica. `late`: it carries them out, and the replica gets no answer in time. */
export type Link = 'up' | 'refused' | 'late'

/** Returns a server without values. */
export function startServer() {
  const values = new Map<SessionKey, string>()
  const read = (key: SessionKey) => JSON.parse(values.get(key) ?? JSON.stringify(NOT_STORED)) as Versioned<Session>
  const remote = (isUp: () => boolean, link: () => Link = () => 'up'): RemoteValues<Session> => ({
    isUp,
    read: async (key) => read(key),
    async replace(key, expected, next) {
      if (link() === 'refused') throw new NotDoneError('no connection')
      const current = read(key)
      const isSame = current.operations[0] === expected.operations[0]
      if (isSame) values.set(key, JSON.stringify(next))
      if (link() === 'late') throw new Error('no answer in time')
      return isSame ? undefined : current
    },
  })
  return { empty: () => values.clear(), remote }
}

/** Returns the sessions of a replica, without bounds that matter. `lacking`: as the store marks what others may lack. */
export function sessionsOf(
  remote: RemoteValues<Session>,
  replica: string,
  lacking: (session: Session) => Session = (session) => session,
) {
  return createReplicatedValues<Session>({
    remote,
    replica,
    lacking,
    merge: (base, local, theirs, isLost) => (local ? mergeSessions(base, local, theirs, isLost) : theirs),
    doubt: doubted,
    sizeOf: () => 1,
    max: 10,
    maxBytes: 10,
    ttl: 3_600_000,
    now: () => performance.now(),
    lost: () => {},
  })
}
