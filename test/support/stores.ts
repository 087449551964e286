/** Stores in memory that behave like a store of several processes: they fail, or lose races. */
import type { Session } from '../../src/core/session/session.ts'
import { createMemoryStore } from '../../src/store/memory.ts'
import { LINKS, type Link, type ListedSession, type Store, sessionKey } from '../../src/store/store.ts'

/** A store in memory, with room for 100 sessions unless a test says otherwise. */
export const createStore = (maxSessions = 100): Store =>
  createMemoryStore({ max: maxSessions, ttl: 60_000, maxBytes: maxSessions * 100_000 })

/** Returns all sessions of a store. */
export async function listAll(store: Store, ids?: readonly string[]): Promise<ListedSession[]> {
  const all: ListedSession[] = []
  for await (const one of store.all(ids)) all.push(one)
  return all
}

/** Links a response to its session. */
export const link = (store: Store, tenant: string, response: string, value: Link): Promise<void> =>
  store.updateValue(LINKS, sessionKey(tenant, response), () => ({ value, result: undefined }))

/** Returns the link of a response. */
export const linked = (store: Store, tenant: string, response: string): Promise<Link | undefined> =>
  store.value(LINKS, sessionKey(tenant, response))

/** Adds copies of the first session of a store, until it has `count`; their iterations are 1 to 99. Returns when all are there. */
export async function fillStore(store: Store, count: number): Promise<void> {
  const [{ session } = {}] = await listAll(store)
  if (!session) throw new Error('the store holds no session')
  for (let at = 1; at < count; at++) {
    // 7,919 is prime: neighbours in the store are far apart in a list by risk.
    const counts = { iterations: 1 + ((at * 7_919) % 99) }
    const threads = session.threads.map((thread) => ({ ...thread, run: { ...thread.run, counts } }))
    await store.update(sessionKey('0123456789abcdef', `many-${at}`), () => ({
      session: { ...session, threads },
      result: undefined,
    }))
  }
}

/** A store in which a call fails if `fails` returns true for its number, from 1. */
export function failingStore(fails: (call: number) => boolean): Store {
  const store = createStore()
  let calls = 0
  const attempt = async <Result>(call: () => Promise<Result>): Promise<Result> => {
    if (fails(++calls)) throw new Error('the store is down')
    return call()
  }
  return {
    update: (key, change) => attempt(() => store.update(key, change)),
    get: (key) => attempt(() => store.get(key)),
    all: (...asked) => store.all(...asked),
    value: (kind, key) => attempt(() => store.value(kind, key)),
    updateValue: (kind, key, change) => attempt(() => store.updateValue(kind, key, change)),
    subscribe: (listener) => store.subscribe(listener),
    count: () => attempt(() => store.count()),
  }
}

/** A store that changes each session with `spoil` before it returns it. */
export function spoilingStore(spoil: (session: Session) => Session): Store {
  const store = createStore()
  return {
    ...store,
    update: (key, change) => store.update(key, (session) => change(session && spoil(session))),
  }
}

/** The same store, in which every change loses a race first: it runs twice, and the first result is lost. */
export function racing(store: Store = createStore()): Store {
  return {
    ...store,
    update: (key, change) =>
      store.update(key, (session) => {
        change(session)
        return change(session)
      }),
    updateValue: (kind, key, change) =>
      store.updateValue(kind, key, (value) => {
        change(value)
        return change(value)
      }),
  }
}
