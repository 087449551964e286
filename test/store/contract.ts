/** The tests that every store must pass. */
import { describe, expect, it } from 'vitest'
import { NEW_SESSION, type Session } from '../../src/core/session/session.ts'
import { SHARED, type Store, sessionKey, type ValueKind } from '../../src/store/store.ts'
import { linked, link as linkTo, listAll } from '../support/stores.ts'

/** A store under test, and its clock. */
export interface StoreUnderTest {
  readonly store: Store
  /** Lets so many milliseconds pass for the store. */
  readonly pass: (ms: number) => void | Promise<void>
}

/** Milliseconds for which a store under test keeps a session that is not used. */
export const CONTRACT_TTL = 3_600_000

const key = (id: string, tenant = 'me') => sessionKey(tenant, id)

/** A session of so many iterations. */
function sessionOf(iterations: number): Session {
  return { ...NEW_SESSION, startedAt: 0, counts: { iterations } }
}

const countOf = (session: Session | undefined) => session?.counts.iterations ?? 0

/** Counts one more in a session; returns how many there were before. */
const count = (store: Store, id: string, tenant = 'me') =>
  store.update(key(id, tenant), (session) => ({
    session: sessionOf(countOf(session) + 1),
    result: countOf(session),
  }))

const NUMBERS: ValueKind<readonly number[]> = { name: 'numbers', ttl: 1_000_000, empty: [] }
const LASTING: ValueKind<readonly number[]> = { name: 'lasting', empty: [] }
const room = { sizeOf: (list: readonly number[]) => list.length * 8, perSession: 1, share: 1 }
const LARGE: ValueKind<readonly number[]> = { name: 'large', empty: [], room }

const add = (store: Store, kind: ValueKind<readonly number[]>, name: string, number: number) =>
  store.updateValue(kind, key(name, SHARED), (known) => ({
    value: [...known, number],
    result: known.length,
  }))

/** Defines the tests of one store. `open` gives an empty one that keeps unused sessions for CONTRACT_TTL. */
export function describeStore(name: string, open: () => StoreUnderTest | Promise<StoreUnderTest>): void {
  describe(`${name}: sessions`, () => {
    it('an update gets the last state and returns the result of the change', async () => {
      const { store } = await open()
      const known: (Session | undefined)[] = []
      for (const number of [1, 2]) {
        const result = await store.update(key('a'), (session) => {
          known.push(session)
          return { session: sessionOf(number), result: `result ${number}` }
        })
        expect(result).toBe(`result ${number}`)
      }
      expect(known).toEqual([undefined, sessionOf(1)])
      expect(await store.get(key('a'))).toEqual(sessionOf(2))
    })

    it('no update of a session is lost, however many run at once', async () => {
      const { store } = await open()
      const before = await Promise.all(Array.from({ length: 50 }, () => count(store, 'a')))
      expect(before.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 50 }, (_, at) => at))
    })

    it('no tenant sees the sessions of another', async () => {
      const { store } = await open()
      await count(store, 'a', 'me')
      expect(await store.get(key('a', 'you'))).toBeUndefined()
      expect(await count(store, 'a', 'you')).toBe(0)
      expect(await count(store, 'b', 'me')).toBe(0)
      expect(await count(store, 'a', 'me')).toBe(1)
    })

    it('a session stays as it was when a change throws, and the update rejects with the same error', async () => {
      const { store } = await open()
      await count(store, 'a')
      const fault = new Error('fault')
      const update = store.update(key('a'), () => {
        throw fault
      })
      await expect(update).rejects.toBe(fault)
      expect(await count(store, 'a')).toBe(1)
    })

    it('a session is forgotten when it was not used for its time to live, and not before', async () => {
      const { store, pass } = await open()
      await count(store, 'a')
      await pass(CONTRACT_TTL - 100_000)
      expect(await count(store, 'a')).toBe(1)
      await pass(CONTRACT_TTL - 100_000)
      expect(countOf(await store.get(key('a')))).toBe(2)
      await pass(CONTRACT_TTL + 100_000)
      expect(await store.get(key('a'))).toBeUndefined()
      expect(await count(store, 'a')).toBe(0)
    })

    it('the number of sessions is reported', async () => {
      const { store } = await open()
      for (const id of ['a', 'b', 'a']) await count(store, id)
      expect(await store.count()).toBe(2)
    })
  })

  describe(`${name}: lists of sessions`, () => {
    it.each([1, 3, 60])('a list of %i contains each session once, in its current state', async (length) => {
      const { store } = await open()
      const ids = Array.from({ length }, (_, at) => `session-${at}`)
      await Promise.all(ids.map((id) => count(store, id)))
      await count(store, 'session-0')
      const all = await listAll(store)
      expect(all.map((one) => one.key).toSorted()).toEqual(ids.map((id) => key(id)).toSorted())
      expect(countOf(all.find((one) => one.key === key('session-0'))?.session)).toBe(2)
    })

    it('a list lacks no session because others begin, or are used, while it is read', async () => {
      const { store } = await open()
      const ids = Array.from({ length: 60 }, (_, at) => `session-${at}`)
      await Promise.all(ids.map((id) => count(store, id)))
      const listed = new Set<string>()
      let more = 0
      for await (const one of store.all()) {
        expect(listed.has(one.key)).toBe(false)
        listed.add(one.key)
        if (listed.size % 10 === 0) await Promise.all([count(store, `new-${more++}`), count(store, 'session-7')])
      }
      expect(ids.filter((id) => !listed.has(key(id)))).toEqual([])
    })

    it('a search by ids finds the sessions of all tenants that have one of them', async () => {
      const { store } = await open()
      for (const id of ['a', 'b', 'c']) await count(store, id)
      await count(store, 'a', 'you')
      const found = await listAll(store, ['a', 'c', 'unknown'])
      expect(found.map((one) => one.key).toSorted()).toEqual([key('a'), key('c'), key('a', 'you')].toSorted())
    })

    it('a list contains no session that was forgotten', async () => {
      const { store, pass } = await open()
      await count(store, 'a')
      await pass(CONTRACT_TTL + 100_000)
      await count(store, 'b')
      expect((await listAll(store)).map((one) => one.key)).toEqual([key('b')])
      expect(await listAll(store, ['a'])).toEqual([])
    })

    it('a list without sessions is empty', async () => {
      const { store } = await open()
      expect(await listAll(store)).toEqual([])
    })
  })

  describe(`${name}: links from responses to sessions`, () => {
    const link = { id: 's1', session: 'mine', pendingResults: ['{}'], begun: sessionOf(1) }

    it('a link is visible only to its own tenant', async () => {
      const { store } = await open()
      await linkTo(store, 'me', 'resp_1', link)
      expect(await linked(store, 'me', 'resp_1')).toEqual(link)
      expect(await linked(store, 'you', 'resp_1')).toBeUndefined()
      expect(await linked(store, 'me', 'resp_2')).toBeUndefined()
    })

    it('a later link of a response replaces the earlier one', async () => {
      const { store } = await open()
      await linkTo(store, 'me', 'resp_1', link)
      await linkTo(store, 'me', 'resp_1', { id: 's1', session: 'mine', redirectTo: 'resp_2' })
      expect(await linked(store, 'me', 'resp_1')).toEqual({ id: 's1', session: 'mine', redirectTo: 'resp_2' })
    })
  })

  describe(`${name}: small values`, () => {
    it('a value is kept by kind and name, and is empty by default', async () => {
      const { store } = await open()
      expect(await store.value(NUMBERS, key('a', SHARED))).toBe(NUMBERS.empty)
      expect(await add(store, NUMBERS, 'a', 1)).toBe(0)
      expect(await add(store, NUMBERS, 'a', 2)).toBe(1)
      expect(await store.value(NUMBERS, key('a', SHARED))).toEqual([1, 2])
      expect(await store.value(LASTING, key('a', SHARED))).toEqual([])
      expect(await store.value(NUMBERS, key('b', SHARED))).toEqual([])
      expect(await store.value(NUMBERS, key('a', 'me'))).toEqual([])
      expect(await store.count()).toBe(0)
    })

    it('no update of a value is lost, however many run at once', async () => {
      const { store } = await open()
      await Promise.all(Array.from({ length: 50 }, (_, at) => add(store, NUMBERS, 'a', at)))
      expect(await store.value(NUMBERS, key('a', SHARED))).toHaveLength(50)
    })

    it.each([NUMBERS, LARGE])('a change can remove a value of the kind $name', async (kind) => {
      const { store } = await open()
      await add(store, kind, 'a', 1)
      const taken = await store.updateValue(kind, key('a', SHARED), (known) => ({
        value: undefined,
        result: known,
      }))
      expect(taken).toEqual([1])
      expect(await store.value(kind, key('a', SHARED))).toBe(kind.empty)
    })

    it('large values are kept apart from small ones, and as long as sessions', async () => {
      const { store, pass } = await open()
      await Promise.all([1, 2, 3].map((number) => add(store, LARGE, 'a', number)))
      expect(await store.value(LARGE, key('a', SHARED))).toHaveLength(3)
      expect(await store.value(NUMBERS, key('a', SHARED))).toEqual([])
      await pass(CONTRACT_TTL - 100_000)
      expect(await store.value(LARGE, key('a', SHARED))).toHaveLength(3)
      await pass(200_000)
      expect(await store.value(LARGE, key('a', SHARED))).toBe(LARGE.empty)
    })

    it('a value expires by its kind after its last change, however often it is read', async () => {
      const { store, pass } = await open()
      await add(store, NUMBERS, 'a', 1)
      await add(store, LASTING, 'a', 1)
      await pass(900_000)
      await add(store, NUMBERS, 'a', 2)
      await pass(900_000)
      expect(await store.value(NUMBERS, key('a', SHARED))).toEqual([1, 2])
      await pass(200_000)
      expect(await store.value(NUMBERS, key('a', SHARED))).toBe(NUMBERS.empty)
      expect(await store.value(LASTING, key('a', SHARED))).toEqual([1])
      await pass(CONTRACT_TTL)
      expect(await store.value(LASTING, key('a', SHARED))).toBe(LASTING.empty)
    })
  })

  describe(`${name}: changes of sessions`, () => {
    /** Subscribes; `until` resolves with the keys that came once there are so many. */
    const listenTo = (store: Store) => {
      const heard: string[] = []
      let look = () => {}
      const end = store.subscribe((keys) => {
        heard.push(...keys)
        look()
      })
      const until = (length: number) =>
        new Promise<readonly string[]>((resolve) => {
          look = () => (heard.length >= length ? resolve(heard) : undefined)
          look()
        })
      return { until, end }
    }

    it('reach all subscribers, and a session that changes often is named once', async () => {
      const { store } = await open()
      const [one, two] = [listenTo(store), listenTo(store)]
      await Promise.all(['a', 'a', 'b', 'a'].map((id) => count(store, id)))
      for (const { until } of [one, two]) expect((await until(2)).toSorted()).toEqual([key('a'), key('b')])
    })

    it('do not reach an ended subscription, nor one that begins later', async () => {
      const { store } = await open()
      const [ended, still] = [listenTo(store), listenTo(store)]
      await count(store, 'first')
      expect(await ended.until(1)).toEqual([key('first')])
      ended.end()
      ended.end()
      await count(store, 'second')
      expect(await still.until(2)).toEqual([key('first'), key('second')])
      const late = listenTo(store)
      await count(store, 'third')
      expect(await still.until(3)).toEqual([key('first'), key('second'), key('third')])
      expect(await late.until(1)).toEqual([key('third')])
      expect(await ended.until(1)).toEqual([key('first')])
    })
  })
}
