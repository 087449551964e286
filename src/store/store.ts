/**
 * Where sessions are remembered between requests, and what several processes share. Every method may take a round trip and
 * rejects where it can't be done. A store in memory makes each change before the call returns, so that whoever calls
 * next sees it.
 */
import type { Session } from '../core/session/session.ts'

/** The name that something is kept under for one tenant: made once, as a name that was looked up is found faster again. */
export type SessionKey = string & { readonly __brand: 'SessionKey' }

/**
 * `tenant` is a hash of the credential, never the credential: two tenants never share a session. `id` is the session's,
 * or what else something of the tenant's is known by.
 */
export function sessionKey(tenant: string, id: string): SessionKey {
  return `${tenant}:${id}` as SessionKey
}

/** The tenant of values that all tenants share. */
export const SHARED = ''

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
  readonly pendingResults?: readonly string[]
  /** The response that took the place of this one. */
  readonly redirectTo?: string
}

/** A kind of small values, a few kilobytes of plain JSON at most: whoever writes one bounds it. */
export interface ValueKind<Value> {
  /** One word, different from those of all other kinds. */
  readonly name: string
  /** Milliseconds from the last change until a value is forgotten; unset: as long as an unused session is kept. */
  readonly ttl?: number
  /** Stands for a value that was never written, or was forgotten. */
  readonly empty: Value
}

/** Makes a session out of the one that is known. Pure: a store runs it again where another process was faster. */
export type SessionChange<Result> = (session: Session | undefined) => {
  readonly session: Session
  readonly result: Result
}

/** Makes a value out of the one that is known; `undefined` removes it. Pure: a store may run it again. */
export type ValueChange<Value, Result> = (value: Value) => {
  readonly value: Value | undefined
  readonly result: Result
}

/** A session in a list. */
export interface ListedSession {
  readonly key: SessionKey
  readonly session: Session
}

export interface SessionPage {
  readonly sessions: readonly ListedSession[]
  /** Asks for the next page; `undefined` on the last one. */
  readonly cursor: string | undefined
}

export interface StoreHealth {
  /** Sessions held now. */
  readonly sessions: number
}

/** Milliseconds for which the pages of one list belong together. */
export const SNAPSHOT_MS = 30_000

export interface Store {
  /** Replaces a session by what `change` makes of it; returns what `change` adds. A change that throws changes nothing. */
  update<Result>(key: SessionKey, change: SessionChange<Result>): Promise<Result>
  /** A session as it is; `undefined` where none is known under that key, or not any more. */
  get(key: SessionKey): Promise<Session | undefined>
  /**
   * A page of at most `limit` sessions, in no particular order. All pages come from one snapshot of which sessions there
   * are, each of them once, as it is now; one that is gone since is left out. A cursor is good for SNAPSHOT_MS at least;
   * `undefined`: it is not good any more.
   */
  list(limit: number, cursor?: string): Promise<SessionPage | undefined>
  /** Remembers which session a response belongs to. */
  link(tenant: string, response: string, link: Link): Promise<void>
  /** The session that a response belongs to; `undefined` where that is not known, or not any more. */
  linked(tenant: string, response: string): Promise<Link | undefined>
  /** A small value; `kind.empty` where there is none. */
  value<Value>(kind: ValueKind<Value>, key: SessionKey): Promise<Value>
  /** Replaces a small value by what `change` makes of it; returns what `change` adds. */
  updateValue<Value, Result>(
    kind: ValueKind<Value>,
    key: SessionKey,
    change: ValueChange<Value, Result>,
  ): Promise<Result>
  /** Gives a message to all that subscribe to the channel now, in whichever process; nobody gets it later. */
  publish(channel: string, message: string): Promise<void>
  /** Calls `listener`, which must not throw, with every message of the channel; returns the way to end that. */
  subscribe(channel: string, listener: (message: string) => void): Promise<() => Promise<void>>
  /** What the store says of itself. Rejects where it can't be reached. */
  health(): Promise<StoreHealth>
}
