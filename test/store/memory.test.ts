import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { NEW_SESSION, type Session } from '../../src/core/session/session.ts'
import { terminalOf } from '../../src/core/terminal.ts'
import { createMemoryStore, type MemoryLimits } from '../../src/store/memory.ts'
import { type SessionKey, type Store, sessionKey, type ValueKind } from '../../src/store/store.ts'
import { runWith, threadWith } from '../core/transcript.ts'
import { link, linked } from '../support/stores.ts'
import { CONTRACT_TTL, describeStore } from './contract.ts'

const LIMITS: MemoryLimits = { max: 100, ttl: 60_000, maxBytes: 10_000_000 }
const key = (id: string, tenant = 'me') => sessionKey(tenant, id)

/** A session that says which iteration it is in, and may hold an answer of some length. */
function sessionAt(iteration: number, text = ''): Session {
  const meter = { name: 'iterations', used: 1, max: 1 } as const
  const ended = { text, model: 'm', terminal: terminalOf({ meter }, 's', true) }
  const run = runWith({ counts: { iterations: iteration }, finalAnswer: text === '' ? undefined : ended })
  return { ...NEW_SESSION, threads: [threadWith(run)] }
}

const sizeOf = async (store: Store) => await store.count()

const iterationOf = (session: Session | undefined) => session?.threads[0]?.run.counts.iterations ?? 0

/** Counts one more; returns the new count, so 1 if the session was unknown. */
const count = (store: Store, name: SessionKey, text = '') =>
  store.update(name, (session) => {
    const next = sessionAt(iterationOf(session) + 1, text)
    return { session: next, result: iterationOf(next) }
  })

describeStore('the memory store', () => {
  let now = 1
  const store = createMemoryStore({ ...LIMITS, ttl: CONTRACT_TTL }, () => now)
  return {
    store,
    pass: (ms) => {
      now += ms
    },
  }
})

describe('the memory store', () => {
  it('makes each change before the call returns, so that the next call sees it', async () => {
    const store = createMemoryStore(LIMITS)
    const toMine = { id: 's1', session: 'mine' }
    const changes = [count(store, key('a')), link(store, 'me', 'resp_1', toMine)]
    expect(iterationOf(await store.get(key('a')))).toBe(1)
    expect(await linked(store, 'me', 'resp_1')).toEqual(toMine)
    await Promise.all(changes)
  })

  it('holds the configured number of sessions and forgets the least recently used first', async () => {
    const store = createMemoryStore({ ...LIMITS, max: 3 })
    for (const id of ['a', 'b', 'c', 'a', 'd']) await count(store, key(id))
    expect(await sizeOf(store)).toBe(3)
    expect(await count(store, key('a'))).toBe(3)
    expect(await count(store, key('b'))).toBe(1)
  })

  it('holds the configured number of bytes, including recorded answers', async () => {
    const store = createMemoryStore({ ...LIMITS, maxBytes: 50_000 })
    const text = 'x'.repeat(10_000)
    for (let at = 0; at < 10; at++) await count(store, key(`session ${at}`), text)
    expect(await sizeOf(store)).toBe(2)
    expect(await count(store, key('session 9'))).toBe(2)
    expect(await count(store, key('session 0'))).toBe(1)
  })

  it('does not keep a session that is larger than the bound of all sessions', async () => {
    const store = createMemoryStore({ ...LIMITS, maxBytes: 10_000 })
    expect(await count(store, key('a'), 'x'.repeat(10_000))).toBe(1)
    expect(await sizeOf(store)).toBe(0)
  })

  it('can hold an empty session', async () => {
    const store = createMemoryStore(LIMITS)
    await store.update(key('a'), () => ({ session: NEW_SESSION, result: undefined }))
    expect(await store.update(key('a'), (session) => ({ session: NEW_SESSION, result: session }))).toBe(NEW_SESSION)
  })

  it('forgets a session that was not used for its time to live, which each use restarts', async () => {
    let now = 1
    const store = createMemoryStore({ ...LIMITS, ttl: 1_000 }, () => now)
    await count(store, key('a'))
    for (const expected of [2, 3]) {
      now += 900
      expect(await count(store, key('a'))).toBe(expected)
    }
    now += 1_001
    expect(await count(store, key('a'))).toBe(1)
  })
})

describe('a full memory store', () => {
  const remembers = async (store: Store, name: SessionKey) => (await count(store, name)) > 1

  it('drops the least recently used session of the tenant with the most sessions', async () => {
    const store = createMemoryStore({ ...LIMITS, max: 10 })
    await count(store, key('small', 'a'))
    for (let at = 0; at < 30; at++) await count(store, key(`s${at}`, 'b'))
    expect(await sizeOf(store)).toBe(10)
    expect(await remembers(store, key('small', 'a'))).toBe(true)
    expect(await remembers(store, key('s29', 'b'))).toBe(true)
    expect(await remembers(store, key('s20', 'b'))).toBe(false)
  })

  it('drops sessions of the tenant whose sessions take the most bytes', async () => {
    const store = createMemoryStore({ ...LIMITS, maxBytes: 100_000 })
    for (let at = 0; at < 8; at++) await count(store, key(`s${at}`, 'a'))
    for (let at = 0; at < 20; at++) await count(store, key(`s${at}`, 'b'), 'x'.repeat(10_000))
    for (let at = 0; at < 8; at++) expect(await remembers(store, key(`s${at}`, 'a'))).toBe(true)
    expect(await remembers(store, key('s19', 'b'))).toBe(true)
    expect(await remembers(store, key('s0', 'b'))).toBe(false)
  })

  it('drops expired sessions before sessions in use', async () => {
    let now = 1
    const store = createMemoryStore({ ...LIMITS, max: 6, ttl: 1_000 }, () => now)
    for (const tenant of ['a', 'b', 'c']) await count(store, key('old', tenant))
    now += 600
    for (const id of ['x', 'y']) await count(store, key(id, 'd'))
    now += 600
    for (const id of ['z', 'w', 'v']) await count(store, key(id, 'd'))
    for (const id of ['x', 'y', 'z', 'w', 'v']) expect(await remembers(store, key(id, 'd'))).toBe(true)
  })

  it('keeps the newest sessions of each tenant, up to an equal share, after any uses', async () => {
    const use = fc.record({ tenant: fc.constantFrom('a', 'b', 'c', 'd'), id: fc.nat({ max: 12 }) })
    await fc.assert(
      fc.asyncProperty(fc.array(use, { maxLength: 120 }), async (uses) => {
        const store = createMemoryStore({ ...LIMITS, max: 8 })
        for (const { tenant, id } of uses) await count(store, key(String(id), tenant))
        expect(await sizeOf(store)).toBeLessThanOrEqual(8)
        for (const tenant of ['a', 'b', 'c', 'd']) {
          const used = uses.filter((one) => one.tenant === tenant).map(({ id }) => id)
          const newest = [...new Set(used.toReversed())].slice(0, 2)
          for (const id of newest) expect(await remembers(store, key(String(id), tenant))).toBe(true)
        }
      }),
      { numRuns: 100 },
    )
  })
})

describe('a link in the memory store', () => {
  const toMine = { id: 's1', session: 'mine' }

  it('is dropped if there are too many links', async () => {
    const store = createMemoryStore({ ...LIMITS, max: 2 })
    for (let at = 0; at < 20; at++) await link(store, 'me', `resp_${at}`, toMine)
    expect(await linked(store, 'me', 'resp_0')).toBeUndefined()
    expect(await linked(store, 'me', 'resp_19')).toEqual(toMine)
  })

  it('is dropped if the pending results of links take too much room', async () => {
    const store = createMemoryStore({ max: 100, ttl: 1_000, maxBytes: 40_000 })
    const pendingResults = ['x'.repeat(2_000)]
    for (let at = 0; at < 4; at++) await link(store, 'me', `resp_${at}`, { ...toMine, pendingResults })
    expect(await linked(store, 'me', 'resp_0')).toBeUndefined()
    expect(await linked(store, 'me', 'resp_3')).toEqual({ ...toMine, pendingResults })
  })
})

it('the memory store keeps the most recently changed small values', async () => {
  const store = createMemoryStore({ ...LIMITS, max: 1 })
  const kind: ValueKind<{ readonly at?: number }> = { name: 'at', empty: {} }
  const write = (at: number) => store.updateValue(kind, key(String(at)), () => ({ value: { at }, result: undefined }))
  for (let at = 0; at < 3_000; at++) await write(at)
  expect(await store.value(kind, key('0'))).toBe(kind.empty)
  expect(await store.value(kind, key('2999'))).toEqual({ at: 2_999 })
})

it('the memory store keeps the large values that were changed last, as many as fit into the memory of sessions', async () => {
  const store = createMemoryStore({ max: 100, ttl: 1_000, maxBytes: 100_000 })
  const room = { sizeOf: ({ length }: string) => length, perSession: 1, share: 1 }
  const kind: ValueKind<string> = { name: 'text', empty: '', room }
  const write = (at: number) =>
    store.updateValue(kind, key(String(at)), () => ({ value: `${at}`.padEnd(20_000), result: undefined }))
  for (let at = 0; at < 20; at++) await write(at)
  const kept = await Promise.all(Array.from({ length: 20 }, (_, at) => store.value(kind, key(String(at)))))
  expect(kept.filter((text) => text !== '')).toEqual(kept.slice(-5))
})
