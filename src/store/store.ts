/**
 * The interface of stores: they remember sessions between requests, and hold what several processes share.
 * Every method may take a round trip, and rejects if the store fails. The store in memory makes each change
 * before the call returns.
 */

import type { Changed, Session } from '../core/session/session.ts'
import type { TranscriptEntry } from '../core/transcript/kept-transcript.ts'

/** The key of a tenant's session or value. Make it once: a lookup by the same string object is faster. */
export type SessionKey = string & { readonly __brand: 'SessionKey' }

/**
 * Returns the key of a tenant's session or value, so that tenants never share any. `tenant`: a hash of the
 * credential; `id`: the id of the session, or the name of the value.
 */
export function sessionKey(tenant: string, id: string): SessionKey {
  return `${tenant}:${id}` as SessionKey
}

/** The tenant of values that all tenants share. */
export const SHARED = ''

/** Returns the tenant in a key. It is a hash, which contains no colon. */
export function tenantOfKey(key: SessionKey): string {
  return key.slice(0, key.indexOf(':'))
}

/** Returns the id in a key. */
export function idOfKey(key: SessionKey): string {
  return key.slice(key.indexOf(':') + 1)
}

/** The session of a response that a client may continue by its id. */
export interface Link {
  /** The session's id in its key. */
  readonly id: string
  /** The session's id as clients see it. */
  readonly session: string
  /**
   * The first state of a session that has only a response id; stored when a client continues the response.
   */
  readonly begun?: Session
  /** Results of calls that the client never got, as the provider's JSON, for the client's next request. */
  readonly pendingResults?: readonly string[]
  /** Id of the response that replaced this one. */
  readonly redirectTo?: string
}

/**
 * A kind of values: plain JSON of a few kilobytes, bounded by the code that writes it. Larger ones have
 * `sizeOf`.
 */
export interface ValueKind<Value> {
  /** One word, different from those of all other kinds. */
  readonly name: string
  /** Milliseconds from the last change until a value is forgotten; unset: as for an unused session. */
  readonly ttl?: number
  /** The value where none was written, or it was forgotten. */
  readonly empty: Value
  /**
   * Returns the bytes of a value in memory, roughly, for a kind of large values: all of them together may
   * take as much memory as all sessions.
   */
  readonly sizeOf?: (value: Value) => number
}

/** Bytes of an entry of a transcript besides its text. */
const BYTES_PER_ENTRY = 256

/** What users and assistants said, by session; written only where `sessions.transcript` is on. */
export const TRANSCRIPTS: ValueKind<readonly TranscriptEntry[]> = {
  name: 'transcript',
  empty: [],
  sizeOf: (entries) => entries.reduce((size, { text }) => size + BYTES_PER_ENTRY + text.length * 2, 0),
}

/** Returns a session's next state. Pure: a store runs it again if another process was faster. */
export type SessionChange<Result> = (session: Session | undefined) => Changed<Result>

/** Returns a value's next state; `undefined` removes it. Pure: a store may run it again. */
export type ValueChange<Value, Result> = (value: Value) => {
  readonly value: Value | undefined
  readonly result: Result
}

/** A session in a list. */
export interface ListedSession {
  readonly key: SessionKey
  readonly session: Session
}

/** Remembers sessions, links from responses to them, and shared values; passes messages between processes. */
export interface Store {
  /** Replaces a session by the one that `change` returns. A change that throws changes nothing. */
  update<Result>(key: SessionKey, change: SessionChange<Result>): Promise<Result>
  /** Returns a session; `undefined` if it was never stored, or was forgotten. */
  get(key: SessionKey): Promise<Session | undefined>
  /**
   * Yields all sessions, or those of all tenants with one of `ids`, once each, in no particular order.
   * Sessions that begin meanwhile may be left out. Calls `missed` if some could not be read.
   */
  all(ids?: readonly string[], missed?: () => void): AsyncIterable<ListedSession>
  /** Remembers the session of a response. */
  link(tenant: string, response: string, link: Link): Promise<void>
  /** Returns the session of a response; `undefined` if it was never linked, or was forgotten. */
  linked(tenant: string, response: string): Promise<Link | undefined>
  /** Returns a small value; `kind.empty` if there is none. */
  value<Value>(kind: ValueKind<Value>, key: SessionKey): Promise<Value>
  /** Replaces a small value by the one that `change` returns, and returns its result. */
  updateValue<Value, Result>(
    kind: ValueKind<Value>,
    key: SessionKey,
    change: ValueChange<Value, Result>,
  ): Promise<Result>
  /** Sends a message to the current subscribers of a channel in all processes. */
  publish(channel: string, message: string): Promise<void>
  /** Calls `listener`, which must not throw, with every message of the channel; returns a function that ends it. */
  subscribe(channel: string, listener: (message: string) => void): Promise<() => Promise<void>>
  /** Returns the number of sessions. Rejects if the store can't be reached. */
  count(): Promise<number>
}
