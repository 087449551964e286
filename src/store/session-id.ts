/** Ids of sessions that do not reveal their names: clients choose the names, which may be secrets. */
import { hashOf } from '../core/hash.ts'
import { idOfKey, type SessionKey, sessionKey, tenantOfKey } from './store.ts'

/** Returns the id of a session in the API: letters, digits, `-`, `_` and one dot. */
export function idOf(key: SessionKey): string {
  return `s${idOfKey(key)}.${tenantOfKey(key)}`
}

/** Returns the key of the session with an id of the API; `undefined` if it is not such an id. */
export function keyOf(id: string): SessionKey | undefined {
  const [, session, tenant] = /^s([\w-]{1,64})\.([0-9a-f]{16})$/.exec(id) ?? []
  return session === undefined || tenant === undefined ? undefined : sessionKey(tenant, session)
}

/** Returns the ids that a session may have whose client calls it `name`. Some sessions have no name but their key. */
export function idsNamed(name: string): readonly string[] {
  return [name, hashOf(name)]
}
