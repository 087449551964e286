/** Where sessions are remembered between requests. */
import type { FirstAnswer, Session } from '../core/session.ts'

/** The name that something is kept under for one tenant: made once, as a name that was looked up is found faster again. */
export type SessionKey = string & { readonly __brand: 'SessionKey' }

/**
 * `tenant` is a hash of the credential, never the credential: two tenants never share a session. `id` is the session's,
 * or what else something of the tenant's is known by.
 */
export function sessionKey(tenant: string, id: string): SessionKey {
  return `${tenant}:${id}` as SessionKey
}

/** The tenant in a key: a hash, in which no colon stands. */
export function tenantOfKey(key: SessionKey): string {
  return key.slice(0, key.indexOf(':'))
}

/** Where a session is that a client names by the id of a response. */
export interface Link {
  /** The session's id in its key. */
  readonly id: string
  /** The session's id as the client is told it. */
  readonly session: string
  /** What is known of a session that only its first response names: it begins when a client goes on from that. */
  readonly begun?: Session
  /** Results, in the provider's own form, of calls that the client has not seen: they go with what it sends next. */
  readonly owed?: readonly string[]
  /** The response that took the place of this one. */
  readonly as?: string
}

/** What is there at once where it can be: memory has nothing to wait for, and a promise would have everybody wait. */
export type Soon<T> = T | Promise<T>

/** Goes on with something as soon as it is there. */
export function after<T, U>(value: Soon<T>, next: (value: T) => Soon<U>): Soon<U> {
  return value instanceof Promise ? value.then(next) : next(value)
}

/** What can't be done is thrown, or rejects. */
export interface Store {
  /**
   * Replaces a session by what `change` makes of it and returns what `change` adds. `change` is pure: a store that
   * several processes share may run it again after losing a race.
   */
  update<T>(
    key: SessionKey,
    change: (session: Session | undefined) => { session: Session; result: T },
  ): Soon<T>
  /** A session as it is; `undefined` where none is known under that key, or not any more. */
  get(key: SessionKey): Soon<Session | undefined>
  /** Remembers which session a response belongs to. */
  link(tenant: string, response: string, link: Link): Soon<void>
  /** The session that a response belongs to; `undefined` where that is not known, or not any more. */
  linked(tenant: string, response: string): Soon<Link | undefined>
  /** Keeps the first answer of a conversation that has no name yet, under a key made of what was asked. */
  keepFirst(key: SessionKey, first: FirstAnswer): Soon<void>
  /** Takes the newest one out that was kept there: of several conversations that began alike, any will do. */
  takeFirst(key: SessionKey): Soon<FirstAnswer | undefined>
  /** Sessions held now. */
  readonly size: number
}
