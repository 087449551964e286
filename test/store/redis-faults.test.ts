import { rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import type { Run, Session } from '../../src/core/session/session.ts'
import { terminalOf } from '../../src/core/terminal.ts'
import { sessionKey } from '../../src/store/store.ts'
import { runWith, threadWith } from '../core/transcript.ts'
import { describeWith } from '../support/programs.ts'
import { type Fate, freePort, openReplica, type Redis, type Replica, startRedis, startWire } from '../support/redis.ts'
import { link, linked } from '../support/stores.ts'

const KEY = sessionKey('me', 'a')
const TOKENS = 10
/** Milliseconds: short, as these tests wait for it; long enough for a busy machine. */
const TIMEOUT = 400

const tokensOf = (session: Session | undefined) => session?.counts.input ?? 0
const iterationOf = (session: Session | undefined) => session?.threads[0]?.run.counts.iterations ?? 0

/** The session after one more iteration, which took ten tokens. */
function after(session: Session | undefined, changes: Partial<Run> = {}): Session {
  const input = tokensOf(session) + TOKENS
  const iteration = iterationOf(session) + 1
  const counts = { iterations: iteration, input }
  const recentRequests = [{ fingerprint: `request ${iteration}`, iteration }]
  const { finalAnswer } = session?.threads[0]?.run ?? {}
  const run = runWith({ startedAt: 1, askedAt: iteration, counts, recentRequests, finalAnswer, ...changes })
  return { threads: [threadWith(run)], startedAt: 1, counts }
}

/** Counts one more iteration; returns its number. */
const count = ({ store }: Replica, key = KEY, changes: Partial<Run> = {}) =>
  store.update(key, (session) => {
    const next = after(session, changes)
    return { session: next, result: iterationOf(next) }
  })

/** Returns what a new replica reads, once the others have written all their changes. */
async function stored(redis: Redis, ...replicas: readonly Replica[]): Promise<Session | undefined> {
  for (const { store } of replicas) await store.heal()
  const fresh = await openReplica(redis.url)
  return fresh.store.get(KEY)
}

describeWith('redis-server', 'the Redis store while Redis fails', () => {
  it.each<[string, Fate]>([
    ['after the server has made it', 'deaf'],
    ['before it arrives', 'lost'],
  ])('counts a change once if the connection dies %s', async (_, fate) => {
    const redis = await startRedis()
    const wire = await startWire(redis.port)
    const replica = await openReplica(wire.url, { timeout: TIMEOUT })
    expect(await count(replica)).toBe(1)
    let isBroken = false
    wire.onRequest((bytes) => {
      if (isBroken || !bytes.includes('EVALSHA')) return 'passed'
      isBroken = true
      return fate
    })
    expect(await count(replica)).toBe(2)
    expect(replica.lost()).toBe(1)
    await replica.until(false)
    await replica.until(true)
    const session = await stored(redis, replica)
    expect(iterationOf(session)).toBe(2)
    expect(tokensOf(session)).toBe(2 * TOKENS)
  })

  it('counts an uncertain change once, even if this replica and another one counted more since', async () => {
    const redis = await startRedis()
    const wire = await startWire(redis.port)
    const replica = await openReplica(wire.url, { timeout: TIMEOUT })
    const other = await openReplica(redis.url)
    await count(replica)
    let isBroken = false
    wire.onRequest((bytes) => {
      if (isBroken || !bytes.includes('EVALSHA')) return 'passed'
      isBroken = true
      return 'deaf'
    })
    await count(replica)
    await count(replica)
    expect(await count(other)).toBe(3)
    await replica.until(false)
    await replica.until(true)
    const session = await stored(redis, replica)
    expect(tokensOf(session)).toBe(4 * TOKENS)
    expect(iterationOf(session)).toBe(3)
  })

  it.each<[string, (redis: Redis) => unknown, (redis: Redis) => unknown]>([
    ['hangs', (redis) => redis.freeze(), (redis) => redis.thaw()],
    ['is gone', (redis) => redis.kill(), (redis) => redis.restart()],
    [
      'answers too late',
      (redis) => redis.command('CLIENT', 'PAUSE', '60000', 'WRITE'),
      (redis) => redis.command('CLIENT', 'UNPAUSE'),
    ],
  ])('continues to count while Redis %s, and merges these counts afterwards', async (_, fail, mend) => {
    const redis = await startRedis()
    const replica = await openReplica(redis.url, { timeout: TIMEOUT })
    const keys = Array.from({ length: 50 }, (_, at) => sessionKey('me', String(at)))
    expect(await Promise.all(keys.map((key) => count(replica, key)))).toEqual(keys.map(() => 1))
    await fail(redis)
    expect(await Promise.all(keys.map((key) => count(replica, key)))).toEqual(keys.map(() => 2))
    expect(await Promise.all(keys.map((key) => count(replica, key)))).toEqual(keys.map(() => 3))
    expect(replica.lost()).toBe(100)
    await mend(redis)
    await replica.until(true)
    await replica.store.heal()
    const fresh = await openReplica(redis.url)
    for (const key of keys) {
      expect(await count(fresh, key)).toBe(4)
      expect(tokensOf(await fresh.store.get(key))).toBe(4 * TOKENS)
    }
  })

  it('counts in Redis where its connection breaks and the next one is made in time', async () => {
    const redis = await startRedis()
    const replica = await openReplica(redis.url, { timeout: 10_000 })
    expect(await count(replica)).toBe(1)
    const isDown = replica.until(false)
    await redis.command('CLIENT', 'KILL', 'SKIPME', 'yes')
    await isDown
    expect(await count(replica)).toBe(2)
    expect(replica.lost()).toBe(0)
    expect(tokensOf(await (await openReplica(redis.url)).store.get(KEY))).toBe(2 * TOKENS)
  })

  it('notices a server that hangs while there are no requests', async () => {
    const redis = await startRedis()
    const replica = await openReplica(redis.url)
    redis.freeze()
    await replica.until(false)
    redis.thaw()
    await replica.until(true)
    expect(await count(replica)).toBe(1)
    expect(replica.lost()).toBe(0)
  })

  it('loses no session when all keys are flushed during fifty running sessions', async () => {
    const redis = await startRedis()
    const replica = await openReplica(redis.url)
    const keys = Array.from({ length: 50 }, (_, at) => sessionKey('me', String(at)))
    await Promise.all(keys.map((key) => count(replica, key)))
    await redis.command('FLUSHALL')
    expect(await Promise.all(keys.map((key) => count(replica, key)))).toEqual(keys.map(() => 2))
    expect(replica.lost()).toBe(0)
    expect(await replica.store.count()).toBe(50)
  })

  it('restores what any replica knew of a session after a flush, even if a replica that knew nothing wrote it first', async () => {
    const redis = await startRedis()
    const [late, early, fresh] = [
      await openReplica(redis.url),
      await openReplica(redis.url),
      await openReplica(redis.url),
    ]
    await count(early)
    for (let at = 0; at < 4; at++) await count(late)
    await redis.command('FLUSHALL')
    expect(await count(fresh)).toBe(1)
    expect(await count(early)).toBe(2)
    expect(await count(late)).toBe(6)
    expect(await count(fresh)).toBe(7)
    expect(tokensOf(await stored(redis))).toBe(7 * TOKENS)
  })

  it('writes again what the old server had not told its replica before a failover', async () => {
    const [first, second] = [await startRedis(), await startRedis()]
    const wire = await startWire(first.port)
    const replica = await openReplica(wire.url, { timeout: TIMEOUT })
    await count(replica)
    await second.command('REPLICAOF', '127.0.0.1', String(first.port))
    const key = `test:s:{${KEY}}`
    await expect.poll(() => second.command('EXISTS', key), { timeout: 20_000 }).toBe(1)
    await second.command('REPLICAOF', 'NO', 'ONE')
    expect(await count(replica)).toBe(2)
    wire.leadTo(second.port)
    await first.kill()
    await replica.until(false)
    await replica.until(true)
    await expect.poll(async () => tokensOf(await stored(second)), { timeout: 20_000 }).toBe(2 * TOKENS)
  })

  it('continues with the counts of the old server after a failover to its replica', async () => {
    const atOnce = ['--repl-diskless-sync-delay', '0']
    const first = await startRedis('redis-server', atOnce)
    const second = await startRedis('redis-server', atOnce)
    const wire = await startWire(first.port)
    const replica = await openReplica(wire.url, { timeout: TIMEOUT })
    await second.command('REPLICAOF', '127.0.0.1', String(first.port))
    await count(replica)
    // Waits until the second server has it.
    await expect
      .poll(async () => String(await second.command('INFO', 'replication')))
      .toContain('master_link_status:up')
    expect(await count(replica)).toBe(2)
    await first.command('WAIT', '1', '5000')
    first.freeze()
    await second.command('REPLICAOF', 'NO', 'ONE')
    wire.leadTo(second.port)
    expect(await count(replica)).toBe(3)
    await replica.until(false)
    await replica.until(true)
    expect(await count(replica)).toBe(4)
    expect(tokensOf(await stored(second, replica))).toBe(4 * TOKENS)
  })

  it.each<[string, (redis: Redis) => Promise<unknown>, (redis: Redis) => Promise<unknown>]>([
    [
      'READONLY',
      async (redis) => redis.command('REPLICAOF', '127.0.0.1', String(await freePort())),
      (redis) => redis.command('REPLICAOF', 'NO', 'ONE'),
    ],
    [
      'OOM',
      (redis) => redis.command('CONFIG', 'SET', 'maxmemory', '1'),
      (redis) => redis.command('CONFIG', 'SET', 'maxmemory', '0'),
    ],
    [
      'MISCONF',
      async (redis) => {
        const [, folder = ''] = Object.values((await redis.command('CONFIG', 'GET', 'dir')) as object)
        const dir = folder || String(Object.values((await redis.command('CONFIG', 'GET', 'dir')) as object)[0])
        await redis.command('CONFIG', 'SET', 'save', '3600 1')
        rmSync(dir, { recursive: true })
        await redis.command('BGSAVE')
        await expect.poll(async () => String(await redis.command('INFO', 'persistence'))).toContain('bgsave_status:err')
      },
      (redis) => redis.command('CONFIG', 'SET', 'stop-writes-on-bgsave-error', 'no'),
    ],
  ])('closes the connection to a server that answers %s, until that accepts writes', async (code, fail, mend) => {
    const redis = await startRedis()
    const replica = await openReplica(redis.url)
    expect(await count(replica)).toBe(1)
    await fail(redis)
    expect(await count(replica)).toBe(2)
    expect(replica.isUp()).toBe(false)
    expect(replica.problem()).toContain(code)
    // Several attempts to connect: none of them may take the server for usable.
    for (let attempts = 0; attempts < 20; attempts++) await redis.command('CLIENT', 'ID')
    expect(replica.rises()).toBe(1)
    await mend(redis)
    await replica.until(true)
    expect(replica.rises()).toBe(2)
    expect(tokensOf(await stored(redis, replica))).toBe(2 * TOKENS)
  })

  it('counts in memory from the start if the server belongs to a cluster that is down', async () => {
    const redis = await startRedis('redis-server', ['--cluster-enabled', 'yes'])
    const replica = await openReplica(redis.url)
    expect(replica.isUp()).toBe(false)
    expect(replica.problem()).toBe('this is a cluster: name its servers in redis.cluster')
    expect(await count(replica)).toBe(1)
    expect(await count(replica)).toBe(2)
  })

  it('counts in memory from the start if the server is still loading its data', async () => {
    const server = createServer((socket) => {
      socket.on('error', () => {})
      socket.on('data', () => socket.write('-LOADING Redis is loading the dataset in memory\r\n'))
    })
    const port = await freePort()
    server.listen(port, '127.0.0.1')
    onTestFinished(() => void server.close())
    const replica = await openReplica(`redis://127.0.0.1:${port}`)
    expect(replica.isUp()).toBe(false)
    expect(replica.problem()).toContain('LOADING')
    expect(await count(replica)).toBe(1)
  })

  it('merges two separated replicas: the larger iteration, the usage of both, and a stop of either', async () => {
    const redis = await startRedis()
    const [one, two] = [await startWire(redis.port), await startWire(redis.port)]
    const replicas = [
      await openReplica(one.url, { timeout: TIMEOUT }),
      await openReplica(two.url, { timeout: TIMEOUT }),
    ] as const
    await count(replicas[0])
    await count(replicas[1])
    for (const wire of [one, two]) wire.onRequest(() => 'lost')
    for (let at = 0; at < 3; at++) await count(replicas[0])
    const meter = { name: 'iterations', used: 3, max: 3 } as const
    const finalAnswer = { text: 'done', model: 'm', terminal: terminalOf({ meter }, 's', true) }
    await count(replicas[1], KEY, { finalAnswer })
    await Promise.all(replicas.map((replica) => replica.until(false)))
    for (const wire of [one, two]) wire.onRequest(() => 'passed')
    await Promise.all(replicas.map((replica) => replica.until(true)))
    const session = await stored(redis, ...replicas)
    expect(iterationOf(session)).toBe(4)
    expect(tokensOf(session)).toBe(6 * TOKENS)
    expect(session?.threads).toHaveLength(1)
    expect(session?.threads[0]?.run.finalAnswer).toEqual(finalAnswer)
  })

  it.each([
    ['added something to it', [0, 1]],
    ['wrote it without a change', [1, 0]],
  ])('keeps what a replica added to a list in a value, where the one that %s is back first', async (_, order) => {
    const kind = { name: 'test', ttl: 3_600_000, empty: { list: [] as readonly string[] } }
    const redis = await startRedis()
    const wires = [await startWire(redis.port), await startWire(redis.port)]
    const replicas = await Promise.all(wires.map(({ url }) => openReplica(url, { timeout: TIMEOUT })))
    const write = (replica: Replica | undefined, ...more: string[]) =>
      replica?.store.updateValue(kind, KEY, ({ list }) => ({ value: { list: [...list, ...more] }, result: undefined }))
    await write(replicas[0], 'a')
    await write(replicas[1])
    for (const wire of wires) wire.onRequest(() => 'lost')
    await write(replicas[0], 'b')
    await write(replicas[1])
    await Promise.all(replicas.map((replica) => replica.until(false)))
    await redis.command('FLUSHALL')
    for (const at of order) {
      wires[at]?.onRequest(() => 'passed')
      await replicas[at]?.until(true)
      await replicas[at]?.store.heal()
    }
    const fresh = await openReplica(redis.url)
    expect((await fresh.store.value(kind, KEY)).list.toSorted()).toEqual(['a', 'b'])
  })

  it('keeps the larger count if a replica first saw the session while it was cut off', async () => {
    const redis = await startRedis()
    const wire = await startWire(redis.port)
    const cut = await openReplica(wire.url, { timeout: TIMEOUT })
    const other = await openReplica(redis.url)
    for (let at = 0; at < 7; at++) await count(other)
    wire.onRequest(() => 'lost')
    // The transcript says that it is the fifth.
    expect(await count(cut, KEY, { counts: { iterations: 5, input: TOKENS } })).toBe(5)
    await cut.until(false)
    wire.onRequest(() => 'passed')
    await cut.until(true)
    const session = await stored(redis, cut)
    expect(iterationOf(session)).toBe(7)
    expect(tokensOf(session)).toBe(8 * TOKENS)
  })

  it.each([1, 2])(
    'keeps its connection if %i answers in a row come too late, and settles them when they come',
    async (late) => {
      const redis = await startRedis()
      const wire = await startWire(redis.port)
      const replica = await openReplica(wire.url, { timeout: TIMEOUT })
      await count(replica)
      let isHeld = true
      wire.onRequest(() => (isHeld ? 'held' : 'passed'))
      for (let at = 0; at < late; at++) expect(await count(replica)).toBe(2 + at)
      expect(replica.isUp()).toBe(true)
      isHeld = false
      wire.release()
      // Without a further request.
      const settled = async () => tokensOf(await (await openReplica(redis.url)).store.get(KEY))
      await expect.poll(settled).toBe((1 + late) * TOKENS)
      expect(replica.rises()).toBe(1)
      expect(await count(replica)).toBe(2 + late)
      expect(tokensOf(await stored(redis, replica))).toBe((2 + late) * TOKENS)
    },
  )

  it('gives its connection up if three answers in a row come too late', async () => {
    const redis = await startRedis()
    const wire = await startWire(redis.port)
    const replica = await openReplica(wire.url, { timeout: TIMEOUT })
    await count(replica)
    wire.onRequest(() => 'held')
    for (let at = 0; at < 3; at++) await count(replica)
    expect(replica.isUp()).toBe(false)
    expect(replica.problem()).toBe(`no answer within ${TIMEOUT} ms`)
  })

  it('keeps its connection if many requests at once get no answer in time', async () => {
    const redis = await startRedis()
    const wire = await startWire(redis.port)
    const replica = await openReplica(wire.url, { timeout: TIMEOUT })
    wire.onRequest(() => 'held')
    await Promise.all(Array.from({ length: 50 }, (_, at) => count(replica, sessionKey('me', String(at)))))
    expect(replica.isUp()).toBe(true)
  })

  it.each(['subscribe', 'zscan', 'hmget', 'hset', 'time'])(
    'says from the start that its user may not run %s, and does not change its mind',
    async (command) => {
      const redis = await startRedis()
      await redis.command('ACL', 'SETUSER', 'governor', 'on', '>secret', '~*', '&*', '+@all', `-${command}`)
      const replica = await openReplica(redis.url.replace('//', '//governor:secret@'))
      expect(replica.isUp()).toBe(false)
      expect(replica.problem().toLowerCase()).toMatch(
        new RegExp(`no permissions.*${command}|can't run this command`, 's'),
      )
      replica.store.subscribe(() => {})
      expect(await count(replica)).toBe(1)
      expect(replica.rises()).toBe(0)
    },
  )

  it.each([
    ['6.0.16', false],
    ['6.1.9', false],
    ['5.0.7', false],
    ['6.2.0', true],
    ['7.4.1', true],
    ['10.0.0', true],
  ])('says whether version %s is new enough (%s)', async (version, isNew) => {
    const server = createServer((socket) => {
      socket.on('error', () => {})
      socket.on('data', (bytes) => {
        const hello = `%2\r\n$7\r\nversion\r\n$${version.length}\r\n${version}\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n`
        socket.write(/hello/i.test(bytes.toString()) ? hello : '-ERR not now\r\n')
      })
    })
    const port = await freePort()
    server.listen(port, '127.0.0.1')
    onTestFinished(() => void server.close())
    const { problem } = await openReplica(`redis://127.0.0.1:${port}`)
    if (isNew) expect(problem()).toContain('not now')
    else expect(problem()).toBe(`version ${version} is too old: 6.2 or newer is needed`)
  })

  it('says that a list is not complete if Redis goes away while it is read', async () => {
    const redis = await startRedis()
    const replica = await openReplica(redis.url, { timeout: TIMEOUT })
    const other = await openReplica(redis.url)
    const keys = Array.from({ length: 1_000 }, (_, at) => sessionKey('me', String(at)))
    await Promise.all(keys.map((key, at) => count(at === 0 ? replica : other, key)))
    // The index is written beside the sessions.
    await vi.waitFor(async () => expect(await replica.store.count()).toBe(keys.length), 20_000)
    let isComplete = true
    const listed = new Set<string>()
    const all = replica.store.all(undefined, () => {
      isComplete = false
    })
    for await (const { key } of all) {
      if (listed.size === 0) await redis.kill()
      listed.add(key)
    }
    expect(isComplete).toBe(false)
    expect(listed.size).toBeLessThan(1_000)
    expect(listed).toContain(keys[0])
  })

  it('keeps links and small values that were written during an outage', async () => {
    const redis = await startRedis()
    const replica = await openReplica(redis.url, { timeout: TIMEOUT })
    const other = await openReplica(redis.url)
    const list = { name: 'list', empty: [] as readonly string[] }
    const key = sessionKey('', 'model')
    const add = ({ store }: Replica, item: string) =>
      store.updateValue(list, key, (known) => ({ value: [...known, item], result: undefined }))
    await add(replica, 'first')
    redis.freeze()
    await add(replica, 'second')
    await link(replica.store, 'me', 'resp_1', { id: 's1', session: 'mine' })
    expect(await linked(replica.store, 'me', 'resp_1')).toEqual({ id: 's1', session: 'mine' })
    redis.thaw()
    await Promise.all([replica.until(true), other.until(true)])
    await add(other, 'third')
    await replica.store.heal()
    expect(await linked(other.store, 'me', 'resp_1')).toEqual({ id: 's1', session: 'mine' })
    expect((await other.store.value(list, key)).toSorted()).toEqual(['first', 'second', 'third'])
  })
})

describe('a Redis that cannot be reached at all', () => {
  it('leaves a replica with its own memory, which loses nothing', async () => {
    const replica = await openReplica(`redis://127.0.0.1:${await freePort()}`)
    const numbers = await Promise.all(Array.from({ length: 20 }, () => count(replica)))
    expect(numbers).toEqual(Array.from({ length: 20 }, (_, at) => at + 1))
    expect(replica.problem()).toContain('ECONNREFUSED')
    let isComplete = true
    const all = replica.store.all(undefined, () => {
      isComplete = false
    })
    for await (const { key } of all) expect(key).toBe(KEY)
    expect(isComplete).toBe(false)
    expect(await replica.store.count()).toBe(1)
  })
})
