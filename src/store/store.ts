/**
 * The interface of stores: they remember sessions between requests, and hold what several processes share. Every method
 * may take a round trip, and rejects if the store fails. The store in memory makes each change before the call returns.
 */

import type { TranscriptEntry } from '../core/conversation/kept-transcript.ts'
import { hashOf } from '../core/hash.ts'
import type { LaterAnswer } from '../core/session/later-answer.ts'
import type { Changed, Session, Thread } from '../core/session/session.ts'
import { presentable } from '../core/text/presentable.ts'

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

/** Returns the id of a session in the API, which does not reveal its name: letters, digits, `-`, `_` and one dot. */
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
  const shown = presentable(name)
  return [shown, hashOf(shown)]
}

/** A kind of values: plain JSON of a few kilobytes, bounded by the code that writes it, unless it has `room`. */
export interface ValueKind<Value> {
  readonly name: string
  /** Milliseconds from the last change until a value is forgotten; unset: as for an unused session. */
  readonly ttl?: number
  readonly empty: Value
  /** Room in memory of its own, for a kind of large values. */
  readonly room?: {
    readonly sizeOf: (value: NonNullable<Value>) => number
    /** How many values there may be for each session that may be kept. */
    readonly perSession: number
    /** Bytes of all values, as a share of those of all sessions, on top of them. */
    readonly share: number
  }
  /** Where the store lacks it, it was lost, or was never written. */
  readonly isNeverRemoved?: true
  /** A client may name it before it is written. */
  readonly mayBeLate?: true
}

/** Bytes of a hash and its place in an array, roughly. */
const BYTES_PER_HASH = 96
const BYTES_PER_THREAD = 512
/** Bytes of the loop state: a window of calls and results, and hashes of messages. */
const BYTES_PER_LOOP_STATE = 8_192
const BYTES_PER_CALL = 384

function sizeOfThread({ userMessageHashes, relayed = [], responses, continuedFrom, loopState, run }: Thread): number {
  let hashes =
    userMessageHashes.length + run.recentRequests.length + (responses?.length ?? 0) + (continuedFrom?.length ?? 0)
  for (const { callIds } of relayed) hashes += 2 + callIds.length
  let size = BYTES_PER_THREAD + hashes * BYTES_PER_HASH
  if (loopState) size += BYTES_PER_LOOP_STATE + (loopState.pendingCalls?.length ?? 0) * BYTES_PER_CALL
  if (run.finalAnswer) size += run.finalAnswer.text.length * 2
  return size
}

/** Bytes of an iteration or a run that is kept for people to read, of a link, or of what stands beside a text. */
const BYTES_PER_RECORD = 256

/** Returns the bytes that a session takes in memory, roughly. */
export function sizeOfSession({ threads, reductions = [], record }: Session): number {
  let size = BYTES_PER_THREAD + reductions.length * BYTES_PER_CALL
  if (record) size += (record.iterations.length + record.runs.length) * BYTES_PER_RECORD
  for (const thread of threads) size += sizeOfThread(thread)
  return size
}

/** The session of a response that a client may continue by its id. */
export interface Link {
  /** The session's id in its key. */
  readonly id: string
  /** The session's id as clients see it. */
  readonly session: string
  /** The first state of a session that has only a response id; stored when a client continues the response. */
  readonly begun?: Session | undefined
  /** Results of calls that the client never got, as the provider's JSON, for the client's next request. */
  readonly pendingResults?: readonly string[]
  readonly redirectTo?: string
  /** Set until a client has fetched the response, if the provider makes it in the background. */
  readonly later?: LaterAnswer
}

/** Links from responses to sessions, by the id of the response. */
export const LINKS: ValueKind<Link | undefined> = {
  name: 'link',
  empty: undefined,
  room: {
    sizeOf({ pendingResults = [], begun, later }) {
      const size = BYTES_PER_RECORD * (later ? 5 : 1) + (begun ? sizeOfSession(begun) : 0)
      return pendingResults.reduce((sum, text) => sum + text.length * 2, size)
    },
    perSession: 4,
    share: 0.25,
  },
  isNeverRemoved: true,
  mayBeLate: true,
}

/** Links, where it is known that one is written before a client can name its response. */
const { mayBeLate: _, ...atOnce } = LINKS
export const LINKS_AT_ONCE: ValueKind<Link | undefined> = atOnce

/** The session of a call that a client got. */
export interface RelayedCall {
  /** The session's id in its key, and as clients see it; unset while it has none. */
  readonly id?: string | undefined
  readonly session?: string | undefined
  /** Its first state, while it has no id. */
  readonly begun?: Session | undefined
  /** The operation that brought the answer. */
  readonly operation: string
  /** Answers of several conversations have a call with this id, so it identifies none of them. */
  readonly isAmbiguous?: true
}

/** Sessions of clients that send no session id, by the ids of the calls that they got. */
export const RELAYED_CALLS: ValueKind<RelayedCall | undefined> = {
  name: 'relayed',
  empty: undefined,
  room: {
    sizeOf: ({ begun }) => BYTES_PER_RECORD + (begun ? sizeOfSession(begun) : 0),
    perSession: 8,
    share: 0.25,
  },
  isNeverRemoved: true,
}

/** What users and assistants said, by session; written only where `sessions.transcript` is on. */
export const TRANSCRIPTS: ValueKind<readonly TranscriptEntry[]> = {
  name: 'transcript',
  empty: [],
  room: {
    sizeOf: (entries) => entries.reduce((size, { text }) => size + BYTES_PER_RECORD + text.length * 2, 0),
    perSession: 1,
    share: 1,
  },
}

/** Returns a session's next state. Pure: a store runs it again if another process was faster. */
type SessionChange<Result> = (session: Session | undefined) => Changed<Result>

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

/** A place in the order of sessions by their last use: after so many sessions of a score. */
export type RecentPlace = readonly [score: number, passed: number]

/** The keys of a part of all sessions. */
export interface RecentKeys {
  readonly keys: readonly SessionKey[]
  /** Where the rest begins; unset if these are the last ones. */
  readonly next: RecentPlace | undefined
  /** The number of all sessions. */
  readonly total: number
}

/** Remembers sessions and values, and says in all processes which sessions change. */
export interface Store {
  /**
   * Replaces a session by the one that `change` returns. A change that throws changes nothing. `mayWait`: it may be
   * written with the next change of this session, which finds it made, 50 ms later at the latest.
   */
  update<Result>(key: SessionKey, change: SessionChange<Result>, mayWait?: boolean): Promise<Result>
  /** Returns a session; `undefined` if it was never stored, or was forgotten. */
  get(key: SessionKey): Promise<Session | undefined>
  /**
   * Yields all sessions, or those of all tenants with one of `ids`, once each, in no particular order; or those with
   * `keys`, in their order. Sessions that begin meanwhile may be left out. Calls `missed` if some could not be read.
   */
  all(ids?: readonly string[], missed?: () => void, keys?: readonly SessionKey[]): AsyncIterable<ListedSession>
  /**
   * Returns the keys of sessions by their last use, the newest first, to a minute: `least` of them, and all that were
   * used within so many milliseconds. Unset where `all` costs no more. Rejects if the store can't be reached.
   */
  recent?(least: number, within: number, from?: RecentPlace): Promise<RecentKeys>
  value<Value>(kind: ValueKind<Value>, key: SessionKey): Promise<Value>
  /** Returns what this process knows of a value, which may be old; unset where `value` costs no more. */
  copyOf?<Value>(kind: ValueKind<Value>, key: SessionKey): Value | undefined
  updateValue<Value, Result>(
    kind: ValueKind<Value>,
    key: SessionKey,
    change: ValueChange<Value, Result>,
  ): Promise<Result>
  /**
   * Calls `listener`, which must not throw, with the keys of sessions that have changed in any process, at most four
   * times a second; returns a function that ends it.
   */
  subscribe(listener: (keys: readonly SessionKey[]) => void): () => void
  /**
   * Returns by how many milliseconds the clock of the store is ahead of this process, as it was last seen. Unset if no
   * other process shares the store.
   */
  ahead?(): number
  /** Returns whether others may have changes that the store does not have yet. Unset if no other process shares it. */
  mayLack?(): boolean
  /** Returns the number of sessions. Rejects if the store can't be reached. */
  count(): Promise<number>
}
