import { expect, it } from 'vitest'
import { hashOf } from '../../src/core/hash.ts'
import { NEW_SESSION, type Session } from '../../src/core/session/session.ts'
import { type Store, sessionKey } from '../../src/store/store.ts'
import { runWith, threadWith } from '../core/transcript.ts'
import { makeCertificate } from '../support/certificate.ts'
import { describeWith } from '../support/programs.ts'
import { freePort, openReplica, type Replica, startRedis, startWire } from '../support/redis.ts'
import { link, linked, listAll } from '../support/stores.ts'

const KEY = sessionKey('me', 'a')
/** The key of that session in Redis. */
const REDIS_KEY = `test:s:{${KEY}}`

const sessionOf = (iterations: number): Session => ({
  ...NEW_SESSION,
  startedAt: 0,
  counts: { iterations },
})

const countOf = (session: Session | undefined) => session?.counts.iterations ?? 0

/** Counts one more; returns how many there were before. */
const count = (store: Store, key = KEY, mayWait = false) =>
  store.update(key, (session) => ({ session: sessionOf(countOf(session) + 1), result: countOf(session) }), mayWait)

/** Returns an agent of a session that takes some 200 KB. */
const largeThread = (name: string) =>
  threadWith(runWith(), { name, userMessageHashes: Array.from({ length: 2_000 }, (_, at) => hashOf(name, String(at))) })

const openReplicas = async (url: string, length: number): Promise<readonly Replica[]> =>
  Promise.all(Array.from({ length }, () => openReplica(url)))

describeWith('redis-server', 'replicas on one Redis', () => {
  it('lose no change of a session and make none twice, whichever replica each of 256 changes goes to', async () => {
    const { url } = await startRedis()
    const replicas = await openReplicas(url, 4)
    const changes = Array.from({ length: 64 }, () => replicas.map(({ store }) => count(store))).flat()
    const before = await Promise.all(changes)
    expect(before.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 256 }, (_, at) => at))
    expect(replicas.map((replica) => replica.lost())).toEqual([0, 0, 0, 0])
  })

  it('try a change on their own copy first, and again if another replica was faster', async () => {
    const { url, command } = await startRedis()
    const one = await openReplica(url)
    const two = await openReplica(url)
    const runs: number[] = []
    const run = ({ store }: Replica) =>
      store.update(KEY, (session) => {
        runs.push(countOf(session))
        return { session: sessionOf(countOf(session) + 1), result: undefined }
      })
    for (const replica of [one, one, two, two, one]) await run(replica)
    expect(runs).toEqual([0, 1, 0, 2, 3, 2, 4])
    const stats = String(await command('INFO', 'commandstats'))
    // Each script once.
    expect(/cmdstat_eval:calls=(\d+)/.exec(stats)?.[1]).toBe('3')
  })

  it('write a change that may wait together with the next one, which finds it made', async () => {
    const { url, command } = await startRedis()
    const { store } = await openReplica(url)
    expect(await count(store)).toBe(0)
    const written = async () => /cmdstat_evalsha:calls=(\d+)/.exec(String(await command('INFO', 'commandstats')))?.[1]
    const before = Number(await written())
    const waiting = count(store, KEY, true)
    expect(await count(store)).toBe(2)
    expect(await waiting).toBe(1)
    expect(Number(await written()) - before).toBe(1)
  })

  it('write a change that may wait a moment later where no other comes, and before they read the session or end', async () => {
    const { url } = await startRedis()
    const [one, two] = await openReplicas(url, 2)
    if (!one || !two) throw new Error('no replicas')
    await count(one.store, KEY, true)
    expect(countOf(await two.store.get(KEY))).toBe(1)
    const second = count(one.store, KEY, true)
    expect(countOf(await one.store.get(KEY))).toBe(2)
    await second
    void count(one.store, KEY, true)
    await one.store.close()
    expect(countOf(await two.store.get(KEY))).toBe(3)
  })

  it('lose nothing of a change that waits while another replica changes the session', async () => {
    const { url } = await startRedis()
    const [one, two] = await openReplicas(url, 2)
    if (!one || !two) throw new Error('no replicas')
    const waiting = Array.from({ length: 20 }, () => count(one.store, KEY, true))
    await Promise.all(Array.from({ length: 20 }, () => count(two.store)))
    const before = await Promise.all(waiting)
    expect(new Set(before).size).toBe(20)
    expect(countOf(await two.store.get(KEY))).toBe(40)
  })

  it('send the script again to a server that lost it, and repeat nothing else', async () => {
    const { url, command } = await startRedis()
    const { store, lost } = await openReplica(url)
    await count(store)
    await command('SCRIPT', 'FLUSH')
    expect(await count(store)).toBe(1)
    expect(await count(store)).toBe(2)
    expect(lost()).toBe(0)
  })

  it('see what the others linked, learned, changed and store', async () => {
    const { url } = await startRedis()
    const [one, two] = await openReplicas(url, 2)
    if (!one || !two) throw new Error('no replicas')
    const kind = { name: 'edits', empty: [] as readonly string[] }
    const heard = new Promise((resolve) => two.store.subscribe(resolve))
    await count(one.store)
    expect(await heard).toEqual([KEY])
    await link(one.store, 'me', 'resp_1', { id: 's1', session: 'mine' })
    expect(await linked(two.store, 'me', 'resp_1')).toEqual({ id: 's1', session: 'mine' })
    await one.store.updateValue(kind, sessionKey('', 'm'), () => ({ value: ['user'], result: undefined }))
    expect(await two.store.value(kind, sessionKey('', 'm'))).toEqual(['user'])
    await count(two.store, sessionKey('you', 'b'))
    for (const { store } of [one, two])
      expect((await listAll(store)).map(({ key }) => key).toSorted()).toEqual([KEY, sessionKey('you', 'b')])
    expect(await two.store.count()).toBe(2)
  })

  it('hear only of sessions that have changed, whatever else comes through the channel', async () => {
    const { url, command } = await startRedis()
    const { store, rises } = await openReplica(url)
    const heard: (readonly string[])[] = []
    const arrived = new Promise<void>((resolve) => {
      store.subscribe((keys) => {
        heard.push(keys)
        if (keys.includes(KEY)) resolve()
      })
    })
    for (const message of ['[]', '', 'no JSON', '{}', 'null', '[1]', '[[]]'])
      await command('PUBLISH', 'test:session-changes', message)
    // Each replica checks the channel when it connects.
    const other = await openReplica(url)
    await count(other.store)
    await arrived
    expect(heard).toEqual([[KEY]])
    // Nor does a message end the connection.
    expect(rises()).toBe(1)
  })

  it('subscribe again on a new connection', async () => {
    const redis = await startRedis()
    const [one, two] = await openReplicas(redis.url, 2)
    if (!one || !two) throw new Error('no replicas')
    const heard: string[] = []
    let came = () => {}
    two.store.subscribe((keys) => {
      heard.push(...keys)
      came()
    })
    await redis.kill()
    await Promise.all([count(one.store), count(two.store)])
    expect([one.isUp(), two.isUp()]).toEqual([false, false])
    await redis.restart()
    await Promise.all([one.until(true), two.until(true)])
    const again = sessionKey('me', 'again')
    const arrived = new Promise<void>((resolve) => {
      came = () => heard.includes(again) && resolve()
    })
    await count(one.store, again)
    await arrived
  })

  it('use an encrypted connection, and reject a certificate that they cannot verify', async () => {
    const { options, pem } = makeCertificate()
    const port = await freePort()
    await startRedis('redis-server', options(port))
    const url = `rediss://localhost:${port}`
    const replica = await openReplica(url, { tls: { ca: pem } })
    expect([replica.isUp(), replica.problem()]).toEqual([true, ''])
    await count(replica.store)
    expect(await count(replica.store)).toBe(1)
    // A file for the connection encrypts it, whatever the address says.
    const named = await openReplica(url.replace('rediss', 'redis'), { tls: { ca: pem } })
    expect([named.isUp(), await count(named.store)]).toEqual([true, 2])
    const other = await openReplica(url)
    // Newer versions of Node add what to do about it.
    const advice = '; if the root CA is installed locally, try running Node.js with --use-system-ca'
    expect([other.isUp(), other.problem().replace(advice, '')]).toEqual([false, 'self-signed certificate'])
  })

  it('say in the words of TLS alone why the server refuses them without a certificate of their own', async () => {
    const { options, pem } = makeCertificate()
    const port = await freePort()
    await startRedis('redis-server', [...options(port).slice(0, -1), 'yes'])
    const replica = await openReplica(`rediss://localhost:${port}`, { tls: { ca: pem } })
    expect([replica.isUp(), replica.problem()]).toEqual([false, 'tlsv13 alert certificate required'])
  })

  it('keep sessions of two credentials and of two prefixes separate', async () => {
    const { url } = await startRedis()
    const one = await openReplica(url, { prefix: 'one:' })
    const two = await openReplica(url, { prefix: 'two:' })
    await count(one.store)
    expect(await count(two.store)).toBe(0)
    expect(await count(one.store, sessionKey('you', 'a'))).toBe(0)
    expect(await one.store.count()).toBe(2)
  })

  it('give every key a time to live, and use one hash tag per session', async () => {
    const { url, command } = await startRedis()
    const { store } = await openReplica(url)
    await count(store)
    await link(store, 'me', 'resp_1', { id: 's1', session: 'mine' })
    await store.updateValue({ name: 'kind', empty: [] as readonly string[] }, KEY, () => ({
      value: ['x'],
      result: 0,
    }))
    const keys = (await command('KEYS', '*')) as readonly string[]
    expect(keys.length).toBeGreaterThanOrEqual(5)
    for (const key of keys) {
      expect(key).toMatch(/^test:.*\{[^{}]+\}/)
      expect(await command('PTTL', key)).toBeGreaterThan(0)
    }
    expect(keys).toContain(REDIS_KEY)
  })

  it('read a long list in steps, while all of its sessions are used and others begin', async () => {
    const { url, command } = await startRedis()
    const { store, lost } = await openReplica(url)
    const keys = Array.from({ length: 3_000 }, (_, at) => sessionKey('me', `session-${at}`))
    await Promise.all(keys.map((key) => count(store, key)))
    const seen = new Set<string>()
    for await (const { key } of store.all()) {
      expect(seen.has(key)).toBe(false)
      seen.add(key)
      if (seen.size % 100 === 0)
        await Promise.all([count(store, sessionKey('me', `new-${seen.size}`)), count(store, keys[seen.size % 7])])
    }
    expect(keys.filter((key) => !seen.has(key))).toEqual([])
    const stats = String(await command('INFO', 'commandstats'))
    expect(Number(/cmdstat_zscan:calls=(\d+)/.exec(stats)?.[1])).toBeGreaterThan(10)
    // One command reads one session.
    expect(Number(/cmdstat_hmget:calls=(\d+)/.exec(stats)?.[1])).toBeGreaterThanOrEqual(3_000)
    expect(lost()).toBe(0)
  })

  it('find the sessions of one name without reading others', async () => {
    const { url, command } = await startRedis()
    const { store } = await openReplica(url)
    await Promise.all(Array.from({ length: 200 }, (_, at) => count(store, sessionKey('me', `session-${at}`))))
    await command('CONFIG', 'RESETSTAT')
    expect((await listAll(store, ['session-7', 'none'])).map(({ key }) => key)).toEqual(['me:session-7'])
    const stats = String(await command('INFO', 'commandstats'))
    expect(Number(/cmdstat_hmget:calls=(\d+)/.exec(stats)?.[1])).toBe(1)
  })

  it.each([
    ['large', 2, 4],
    ['small', 0, 64],
  ])('list %s sessions so that few bytes are under way at once', async (_, threads, most) => {
    const { port } = await startRedis()
    const wire = await startWire(port)
    const { store } = await openReplica(wire.url)
    const session = { ...NEW_SESSION, threads: Array.from({ length: threads }, (_, at) => largeThread(String(at))) }
    const keys = Array.from({ length: 200 }, (_, at) => sessionKey('me', `session-${at}`))
    for (const key of keys) await store.update(key, () => ({ session, result: undefined }))
    const asked: number[] = []
    wire.onRequest((bytes) => {
      asked.push(bytes.split('HMGET').length - 1)
      return 'passed'
    })
    expect(await listAll(store)).toHaveLength(200)
    expect(asked.reduce((sum, one) => sum + one)).toBe(200)
    expect(Math.max(...asked)).toBeLessThanOrEqual(most)
  })

  it('drop the oldest threads of a session that is too large for Redis', async () => {
    const { url, command } = await startRedis()
    const { store, lost } = await openReplica(url)
    const threads = Array.from({ length: 20 }, (_, at) => largeThread(String(at)))
    await store.update(KEY, () => ({ session: { ...NEW_SESSION, threads }, result: undefined }))
    const kept = (await store.get(KEY))?.threads.map(({ name }) => name) ?? []
    expect(kept.length).toBeLessThan(20)
    expect(kept.at(-1)).toBe('19')
    expect(Number(await command('MEMORY', 'USAGE', REDIS_KEY))).toBeLessThan(1_500_000)
    expect(lost()).toBe(0)
  })

  it('work with a Redis user who may run only the documented commands', async () => {
    const redis = await startRedis()
    const commands = [
      ...['evalsha', 'eval', 'hget', 'hmget', 'hset', 'del', 'pexpire', 'ping', 'hello'],
      ...['zadd', 'zrange', 'zrem', 'zcount', 'zscan', 'time', 'publish', 'subscribe'],
    ]
    const rules = ['on', '>secret', '~test:*', '&test:*', ...commands.map((name) => `+${name}`)]
    await redis.command('ACL', 'SETUSER', 'governor', ...rules)
    const { store, isUp, problem } = await openReplica(redis.url.replace('//', '//governor:secret@'))
    expect([isUp(), problem()]).toEqual([true, ''])
    await count(store)
    expect(await count(store)).toBe(1)
    expect(await listAll(store)).toHaveLength(1)
    const wrong = await openReplica(redis.url.replace('//', '//governor:wrong@'))
    expect(wrong.isUp()).toBe(false)
    expect(wrong.problem()).toContain('WRONGPASS')
    expect(wrong.problem()).not.toContain('wrong@')
  })
})

describeWith('redis-server', 'a session that another version of Governor stored', () => {
  it.each(['2', '4'])(
    'is neither read nor overwritten where its form has number %s, and no request fails',
    async (form) => {
      const { url, command } = await startRedis()
      const other = '{"o":["r9.1"],"sessions":"in another form"}'
      await command('HSET', REDIS_KEY, 'v', 'r9.1', 's', form, 'd', other)
      const { store, isUp, lost } = await openReplica(url)
      expect(await count(store)).toBe(0)
      expect(await count(store)).toBe(1)
      expect(countOf(await store.get(KEY))).toBe(2)
      expect(await command('HMGET', REDIS_KEY, 'v', 's', 'd')).toEqual(['r9.1', form, other])
      expect([isUp(), lost()]).toEqual([true, 2])
      expect(await count(store, sessionKey('me', 'other'))).toBe(0)
      expect(lost()).toBe(2)
    },
  )

  it('fails only its own requests if it is damaged, and delays no others', async () => {
    const { url, command } = await startRedis()
    const damaged = '{"o":["r1.3"],"v":{"threads":null,"counts":{}}}'
    await command('HSET', REDIS_KEY, 'v', 'r1.3', 's', '3', 'd', damaged)
    const { store, isUp } = await openReplica(url)
    const use = () => store.update(KEY, (session = NEW_SESSION) => ({ session, result: session.threads.length }))
    await expect(use()).rejects.toThrow(TypeError)
    await expect(use()).rejects.toThrow(TypeError)
    expect(await count(store, sessionKey('me', 'other'))).toBe(0)
    expect(isUp()).toBe(true)
    expect(await command('HGET', REDIS_KEY, 'd')).toBe(damaged)
  })

  it('is left alone if the key contains no session at all', async () => {
    const { url, command } = await startRedis()
    await command('SET', REDIS_KEY, 'a text of another program')
    const { store, isUp } = await openReplica(url)
    expect(await count(store)).toBe(0)
    expect(await count(store)).toBe(1)
    expect(isUp()).toBe(true)
    expect(await command('GET', REDIS_KEY)).toBe('a text of another program')
  })
})
