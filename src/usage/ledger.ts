/** The sums of scopes of time in the store: what is used, and what requests in flight hold. */

import { LRUCache } from 'lru-cache'
import { atMost } from '../core/bounds/cache-bound.ts'
import {
  type Account,
  type Ask,
  knownAccount,
  LEASE_MS,
  limitsIn,
  type PartChange,
  partAfter,
  type ScopeLimits,
  type Standing,
  type SubjectLimits,
  standingOf,
  sumsOf,
  type TimeAmounts,
} from '../core/budget/ledger.ts'
import type { Period } from '../core/budget/scopes.ts'
import type { Counts } from '../core/counters.ts'
import { hashOf } from '../core/hash.ts'
import { ignore } from '../core/thrown.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from '../store/store.ts'

/** Where a request counts: limits, the period, and the subject. */
export interface Place extends SubjectLimits {
  readonly period: Period
  /** Of its account: the same in all processes. */
  readonly name: string
}

/** Characters of a subject; a client may send a header of 64 KB. */
const MAX_SUBJECT = 64
/** How many accounts, and how many subjects of one scope and period, are known by name. */
export const MAX_ACCOUNTS = 20_000
const MAX_SUBJECTS = 1_000
/**
 * Milliseconds for which an account is kept after its period: for requests that are still in flight, or until a clock
 * that jumped ahead goes back. The clock of a store that replicas share does not jump.
 */
const KEPT_SHARED_MS = 600_000
export const KEPT_MS = 172_800_000

/** Returns the place of a subject in a period; `null` is the subject of all requests. */
export function placeOf(rule: ScopeLimits, period: Period, subject: string | null): Place {
  const known = subject === null || subject.length <= MAX_SUBJECT ? subject : hashOf(subject)
  return { rule, period, subject: known, name: `${period.name} ${rule.per}${known === null ? '' : ` ${known}`}` }
}

/** What a change did to an account: what was used before and after it, and the limits. */
export interface Settled {
  readonly before: Counts
  readonly after: Counts
  readonly limits: TimeAmounts
}

export type Ledger = ReturnType<typeof createLedger>

function newState(store: Store, now: () => number, own: `p:${string}`) {
  const listening: { changed?: () => void; beforeHold?: () => Promise<void>; renewal?: NodeJS.Timeout | undefined } = {}
  return {
    ...listening,
    store,
    own,
    /** Milliseconds since the epoch, by the clock of the store. */
    time: () => now() + (store.ahead?.() ?? 0),
    /**
     * Own parts, and the limits of operators: if the store loses its data, each process writes them again. Whole
     * accounts, if no other process shares the store: it drops values where there are many.
     */
    parts: new LRUCache<string, { readonly kept: Account; readonly end: number }>(atMost(MAX_ACCOUNTS)),
    /** The names of all accounts that were changed here, or read from a file. */
    known: new LRUCache<string, true>(atMost(MAX_ACCOUNTS)),
    inFlight: new Map<string, { readonly place: Place; requests: number }>(),
    listeners: new Set<() => void>(),
    indexed: new LRUCache<string, Place>(atMost(MAX_ACCOUNTS)),
  }
}

type State = ReturnType<typeof newState>

function kindOf<Value>({ store, time }: State, name: string, end: number, empty: Value): ValueKind<Value> {
  const kept = store.ahead ? KEPT_SHARED_MS : KEPT_MS
  return { name, ttl: Math.max(0, Math.ceil(end - time())) + kept, empty }
}

const accountsUntil = (state: State, end: number) => kindOf<Account>(state, 'time_budget', end, {})
const subjectsUntil = (state: State, end: number) => kindOf<readonly string[]>(state, 'time_subjects', end, [])

/** Returns an account of the store with what is kept here. */
function withKept({ parts, own }: State, name: string, stored: Account): Account {
  return knownAccount(parts.get(name)?.kept ?? {}, stored, own)
}

async function accountOf(state: State, { name, period }: Place): Promise<Account> {
  const stored = await state.store.value(accountsUntil(state, period.end), sessionKey(SHARED, name))
  return withKept(state, name, stored)
}

/** Changes an account. `by` is pure: a store may run it again. */
async function change<Result>(
  state: State,
  name: string,
  end: number,
  by: (account: Account, at: number) => { readonly account: Account; readonly result: Result },
): Promise<Result> {
  const { store, own, parts } = state
  const at = state.time()
  state.known.set(name, true)
  const { kept, result } = await store.updateValue(accountsUntil(state, end), sessionKey(SHARED, name), (stored) => {
    // Of the changes that were under way when the store lost its data, the last that it made is known only now.
    const { account, result } = by(withKept(state, name, stored), at)
    const { [own]: part, limits } = account
    const shared = part && { [own]: part, ...(limits && { limits }) }
    return { value: account, result: { kept: store.ahead ? shared : account, result } }
  })
  if (kept) parts.set(name, { kept, end })
  return result
}

function changePart(state: State, { name, period, rule }: Place, by: PartChange): Promise<Settled> {
  const { own } = state
  return change(state, name, period.end, (account, at) => {
    const after = { ...account, [own]: partAfter(account[own], by, at) }
    const sums = { before: sumsOf(account, at).used, after: sumsOf(after, at).used }
    return { account: after, result: { ...sums, limits: limitsIn(account, rule) } }
  })
}

/** Holds what a request asks for in one place, if it fits there. */
function holdIn(state: State, { name, period, rule }: Place, ask: Ask, isForced: boolean): Promise<Standing> {
  const { own } = state
  return change(state, name, period.end, (account, at) => {
    const standing = standingOf(account, ask, limitsIn(account, rule), at)
    const hold = standing.hold ?? (isForced ? ask.counts : undefined)
    if (!hold) return { account, result: standing }
    return { account: { ...account, [own]: partAfter(account[own], { hold }, at) }, result: { ...standing, hold } }
  })
}

/** A request holds something: the process says so again and again while it lives. */
function beginHold(state: State, place: Place): void {
  const known = state.inFlight.get(place.name)
  if (known) known.requests++
  else state.inFlight.set(place.name, { place, requests: 1 })
  const renew = () => {
    for (const { place: held } of state.inFlight.values()) changePart(state, held, {}).catch(ignore)
  }
  state.renewal ??= setInterval(renew, LEASE_MS / 3).unref()
}

function endHold(state: State, { name }: Place): void {
  const known = state.inFlight.get(name)
  if (known && --known.requests <= 0) state.inFlight.delete(name)
  if (state.inFlight.size > 0) return
  clearInterval(state.renewal)
  state.renewal = undefined
}

/** Tells those who wait that a request has freed what it held, or that a limit was raised. */
function wakeAll(state: State): void {
  state.changed?.()
  for (const listener of [...state.listeners]) listener()
}

function release(state: State, place: Place, held: Counts, used?: Counts): Promise<Settled> {
  endHold(state, place)
  const settled = changePart(state, place, { release: held, used })
  const wake = () => wakeAll(state)
  settled.then(wake, wake)
  return settled
}

/** Makes the subjects of all processes known to each, so that an operator sees them. */
function index(state: State, place: Place): void {
  const { indexed, store } = state
  const { name, subject, period, rule } = place
  if (subject === null || indexed.has(name)) return
  indexed.set(name, place)
  const key = sessionKey(SHARED, `${period.name} ${rule.per}`)
  const noted = store.updateValue(subjectsUntil(state, period.end), key, (known) => ({
    value: known.includes(subject) ? known : [...known.slice(1 - MAX_SUBJECTS), subject],
    result: undefined,
  }))
  noted.catch(() => indexed.delete(name))
}

/** Returns where a request stands in each place, and holds nothing. */
function look(state: State, places: readonly Place[], ask: Ask): Promise<Standing[]> {
  return Promise.all(
    places.map(async (place) => {
      const account = await accountOf(state, place)
      return standingOf(account, ask, limitsIn(account, place.rule), state.time())
    }),
  )
}

const withoutHold = ({ hold: _, ...standing }: Standing): Standing => standing

/**
 * Returns where a request stands in each place. It holds what it asks for in all of them; if it does not fit into one
 * that ends requests, in none. `isForced`: it holds that in any case. `isWaiting`: it knows that it does not fit, and
 * looks first: what it held for a moment would wake all others that wait when it is given back, and they this one.
 */
async function hold(
  state: State,
  places: readonly Place[],
  ask: Ask,
  isForced: boolean,
  isWaiting: boolean,
): Promise<readonly Standing[]> {
  const reading = state.beforeHold?.()
  if (reading) await reading
  if (isWaiting && !isForced) {
    const seen = await look(state, places, ask)
    if (!seen.every((standing, at) => standing.hold || places[at]?.rule.isObserved)) return seen.map(withoutHold)
  }
  const asked = places.map((place) => {
    index(state, place)
    return holdIn(state, place, ask, isForced || place.rule.isObserved)
  })
  const standings = await Promise.all(asked)
  for (const [at, place] of places.entries()) if (standings[at]?.hold) beginHold(state, place)
  if (standings.every((standing) => standing.hold)) return standings
  return standings.map((standing, at) => {
    const place = places[at]
    if (standing.hold && place) release(state, place, standing.hold).catch(ignore)
    return withoutHold(standing)
  })
}

/** How many accounts are written at once. */
const RESTORED_AT_ONCE = 16

/** Writes what this process has counted in periods that go on, which the store may have lost. Never rejects. */
async function restore(state: State): Promise<void> {
  const { parts, indexed, time } = state
  const places = [...indexed.values()].filter(({ period }) => period.end > time())
  indexed.clear()
  for (const place of places) index(state, place)
  const left = [...parts].filter(([, { end }]) => end > time())
  const next = async () => {
    for (let one = left.pop(); one; one = left.pop()) {
      const [name, { end }] = one
      await change(state, name, end, (account) => ({ account, result: undefined })).catch(ignore)
    }
  }
  await Promise.all(Array.from({ length: RESTORED_AT_ONCE }, next))
  wakeAll(state)
}

async function subjectsIn(state: State, { name, end }: Period, per: string): Promise<readonly string[]> {
  await state.beforeHold?.()
  const key = `${name} ${per}`
  const shared = await state.store.value(subjectsUntil(state, end), sessionKey(SHARED, key))
  const here = [...state.known.keys()].filter((one) => one.startsWith(`${key} `))
  return [...new Set([...shared, ...here.map((one) => one.slice(key.length + 1))])]
}

/** Limits that an operator sets; one that is `undefined` is the configured one again. */
type LimitsSet = { readonly [Name in keyof TimeAmounts]?: number | undefined }

async function setLimits(state: State, place: Place, set: LimitsSet): Promise<void> {
  const { own } = state
  index(state, place)
  await change(state, place.name, place.period.end, (account, at) => {
    // What is set later counts, also if the clock was set back meanwhile.
    const setAt = Math.max(at, (account.limits?.setAt ?? 0) + 1)
    const all = Object.entries({ ...account.limits?.max, ...set })
    const max = Object.fromEntries(all.filter(([, one]) => one !== undefined))
    // Each process that shares a file names the accounts that it knows by its own part.
    const part = account[own] ?? partAfter(undefined, {}, at)
    return { account: { ...account, limits: { max, setAt }, [own]: part }, result: undefined }
  })
  wakeAll(state)
}

/**
 * Creates the sums of a process, whose name is random. `now`: milliseconds since the epoch; where replicas share a
 * store, its clock counts. Its methods reject if the store fails.
 */
export function createLedger(store: Store, now: () => number, process: string) {
  const state = newState(store, now, `p:${process}`)
  const { own, time, listeners } = state
  const begun = new LRUCache<string, true>(atMost(MAX_ACCOUNTS))
  return {
    own,
    time,
    /** Returns whether an answer is the first of a run: a client may send a request again before it is answered. */
    begins(run: string): boolean {
      const isFirst = !begun.has(run)
      begun.set(run, true)
      return isFirst
    },
    /** Returns whether an answer of a run was counted: a run that an operator resets is no new one. */
    hasBegun: (run: string) => begun.has(run),
    hold: (places: readonly Place[], ask: Ask, isForced: boolean, isWaiting = false) =>
      hold(state, places, ask, isForced, isWaiting),
    /** Counts what was used; what a request held is free again. */
    settle(place: Place, used: Counts | undefined, held: Counts | undefined): Promise<Settled> {
      if (held) return release(state, place, held, used)
      const settled = changePart(state, place, { used })
      settled.then(state.changed, ignore)
      return settled
    },
    /** Calls `listener` when more may fit; returns what ends that. */
    onFreed(listener: () => void): () => void {
      listeners.add(listener)
      return () => void listeners.delete(listener)
    },
    /** Returns what is used and held in a place, and its limits. */
    async read(place: Place) {
      await state.beforeHold?.()
      const account = await accountOf(state, place)
      return { ...sumsOf(account, time()), limits: limitsIn(account, place.rule) }
    },
    subjects: (period: Period, per: string) => subjectsIn(state, period, per),
    /** Sets limits until the period ends. */
    setLimits: (place: Place, set: LimitsSet) => setLimits(state, place, set),
    /** The accounts that are kept here, with the ends of their periods. */
    kept: () => [...state.parts].map(([name, { end, kept }]) => ({ name, end, account: kept })),
    /** Changes an account as a whole, and returns it. */
    merge(name: string, end: number, by: (account: Account) => Account): Promise<Account> {
      return change(state, name, end, (before) => {
        const account = by(before)
        return { account, result: account }
      })
    },
    /** Call it when the store can be reached again: it may have lost everything. Never rejects. */
    restore: () => restore(state),
    /** Sets who keeps the sums beside the store: `read` may be needed before a request, `write` after a change. */
    keepWith(read: () => Promise<void>, write: () => void): void {
      state.beforeHold = read
      state.changed = write
    },
    close(): void {
      clearInterval(state.renewal)
      state.inFlight.clear()
    },
  }
}
