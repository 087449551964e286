/** The store on several servers: those that Sentinels watch, and a cluster. */
import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { NEW_SESSION } from '../../src/core/session/session.ts'
import { sessionKey } from '../../src/store/store.ts'
import { makeCertificate } from '../support/certificate.ts'
import { describeWith } from '../support/programs.ts'
import {
  freePort,
  openReplica,
  type Redis,
  type Replica,
  startCluster,
  startRedis,
  startSentinel,
} from '../support/redis.ts'
import { link, linked, listAll } from '../support/stores.ts'

const KEYS = Array.from({ length: 60 }, (_, at) => sessionKey('me', `session-${at}`))
const TIMEOUT = 1_000

/** Counts one more request of a session; returns their number. */
const count = ({ store }: Replica, key = KEYS[0] ?? sessionKey('me', 'a')) =>
  store.update(key, (session = NEW_SESSION) => {
    const { iterations = 0 } = session.counts
    return { session: { ...session, counts: { iterations: iterations + 1 } }, result: iterations + 1 }
  })

const countAll = (replica: Replica) => Promise.all(KEYS.map((key) => count(replica, key)))
const all = (number: number) => KEYS.map(() => number)

/** Changes a session again and again until the other replica hears of it. */
async function arrives(from: Replica, to: Replica): Promise<void> {
  const key = sessionKey('me', 'news')
  let hasCome = false
  const end = to.store.subscribe((keys) => {
    hasCome ||= keys.includes(key)
  })
  const change = async () => {
    await count(from, key)
    return hasCome
  }
  await expect.poll(change).toBe(true)
  end()
}

/** Returns how much of all writes a server has. */
async function offsetOf({ command }: Redis): Promise<number> {
  const [, offset] = /(?:slave|master)_repl_offset:(\d+)/.exec(String(await command('INFO', 'replication'))) ?? []
  return Number(offset)
}

describeWith('redis-server', 'replicas on a Redis Cluster', () => {
  it('count as one, whichever server of it they know, in all sessions, lists, links and messages', async () => {
    const servers = await startCluster(3)
    const [one, two] = await Promise.all(servers.slice(0, 2).map(({ url }) => openReplica(url, { cluster: [url] })))
    if (!one || !two) throw new Error('no replicas')
    await Promise.all([one.until(true), two.until(true)])
    expect(await countAll(one)).toEqual(all(1))
    expect(await countAll(two)).toEqual(all(2))
    for (const { command } of servers) expect(await command('DBSIZE')).toBeGreaterThan(10)
    expect((await listAll(two.store)).map(({ key }) => key).toSorted()).toEqual(KEYS.toSorted())
    expect(await listAll(two.store, ['session-7'])).toHaveLength(1)
    await link(one.store, 'me', 'resp_1', { id: 's1', session: 'mine' })
    expect(await linked(two.store, 'me', 'resp_1')).toEqual({ id: 's1', session: 'mine' })
    await arrives(one, two)
    expect([one.lost(), two.lost()]).toEqual([0, 0])
  })

  it.each<[string, (redis: Redis) => unknown, (redis: Redis) => unknown]>([
    ['is gone', (redis) => redis.kill(), (redis) => redis.restart()],
    ['hangs', (redis) => redis.freeze(), (redis) => redis.thaw()],
  ])(
    'lose the server of one part, which %s: only its sessions are counted in memory, and merged later',
    async (_, fail, mend) => {
      const servers = await startCluster(3)
      const cluster = servers.map(({ url }) => url)
      const [url = ''] = cluster
      const one = await openReplica(url, { cluster, timeout: TIMEOUT })
      const two = await openReplica(url, { cluster, timeout: TIMEOUT })
      await countAll(one)
      const [, , failed] = servers
      if (!failed) throw new Error('no server')
      await fail(failed)
      expect(await countAll(one)).toEqual(all(2))
      await Promise.all([one.until(false), two.until(false)])
      expect(await countAll(one)).toEqual(all(3))
      // The sessions of the other parts are shared as before.
      const shared = (await countAll(two)).filter((number) => number === 4).length
      expect(shared).toBeGreaterThan(20)
      expect(shared).toBeLessThan(KEYS.length)
      await mend(failed)
      await Promise.all([one.until(true), two.until(true)])
      await one.store.heal()
      await two.store.heal()
      for (const number of await countAll(two)) expect(number).toBeGreaterThanOrEqual(4)
      const fresh = await openReplica(url, { cluster })
      expect(await countAll(fresh)).toEqual((await countAll(two)).map((number) => number - 1))
    },
  )

  it('work with a user who may run only the documented commands, also while keys move to another server', async () => {
    const servers = await startCluster(3)
    const [from, to] = servers
    if (!from || !to) throw new Error('no servers')
    const text = readFileSync('docs/replicas.md', 'utf8').replaceAll(/\s+/g, ' ')
    const [, both = ''] = /the commands `(hello [^`]+)`/.exec(text) ?? []
    const [, cluster = ''] = /In a cluster, .*? `([^`]+)`/.exec(text) ?? []
    const commands = `${both} ${cluster}`.split(' ').map((name) => `+${name}`)
    const rules = ['on', '>secret', '~test:*', '&test:*', ...commands]
    for (const { command } of servers) await command('ACL', 'SETUSER', 'governor', ...rules)
    const named = servers.map(({ url }) => url.replace('//', '//governor:secret@'))
    const replica = await openReplica(named[0] ?? '', { cluster: named, timeout: 5_000 })
    await replica.until(true)
    expect(await countAll(replica)).toEqual(all(1))
    const [id, target] = [String(await from.command('CLUSTER', 'MYID')), String(await to.command('CLUSTER', 'MYID'))]
    const keys = (await from.command('KEYS', 'test:s:*')) as string[]
    expect(keys.length).toBeGreaterThan(5)
    for (const key of keys) {
      const slot = String(await from.command('CLUSTER', 'KEYSLOT', key))
      await to.command('CLUSTER', 'SETSLOT', slot, 'IMPORTING', id)
      await from.command('CLUSTER', 'SETSLOT', slot, 'MIGRATING', target)
      await from.command('MIGRATE', '127.0.0.1', String(to.port), key, '0', '5000')
    }
    expect(await countAll(replica)).toEqual(all(2))
    expect([replica.lost(), replica.problem()]).toEqual([0, ''])
  })

  it('say so if they were given the address of one server alone', async () => {
    const [server] = await startCluster(3)
    const replica = await openReplica(server?.url ?? '')
    expect(replica.isUp()).toBe(false)
    expect(replica.problem()).toBe('this is a cluster: name its servers in redis.cluster')
  })
})

describeWith('redis-server', 'replicas on servers that Sentinels watch', () => {
  describeWith('redis-sentinel', 'redis-sentinel', () => {
    it('follow a failover, and count on with the counts of the server that failed', async () => {
      const atOnce = ['--repl-diskless-sync-delay', '0']
      const first = await startRedis('redis-server', atOnce)
      const second = await startRedis('redis-server', atOnce)
      await second.command('REPLICAOF', '127.0.0.1', String(first.port))
      await expect
        .poll(async () => String(await second.command('INFO', 'replication')))
        .toContain('master_link_status:up')
      const sentinels = await Promise.all([1, 2, 3].map(() => startSentinel('mine', first.port, 2)))
      // They find each other and the second server by and by.
      for (const { command } of sentinels) {
        const known = async () => JSON.stringify(await command('SENTINEL', 'MASTER', 'mine'))
        await expect.poll(known).toMatch(/"num-slaves":"1","num-other-sentinels":"2"/)
      }
      const options = { sentinel: { name: 'mine', nodes: sentinels.map(({ url }) => url) }, timeout: TIMEOUT }
      const one = await openReplica('redis://unused', options)
      const two = await openReplica('redis://unused', options)
      // A Sentinel that does not answer at once is asked again a second later.
      await Promise.all([one.until(true), two.until(true)])
      expect(await countAll(one)).toEqual(all(1))
      expect(await countAll(two)).toEqual(all(2))
      await arrives(one, two)
      expect(await countAll(one)).toEqual(all(3))
      const written = await offsetOf(first)
      await expect.poll(() => offsetOf(second)).toBeGreaterThanOrEqual(written)
      await first.kill()
      expect(await countAll(one)).toEqual(all(4))
      // A server that becomes the primary one closes its connections.
      const role = async () => String(await second.command('INFO', 'replication').catch(() => ''))
      await expect.poll(role).toContain('role:master')
      // A replica without requests notices later.
      await expect.poll(() => Math.min(one.rises(), two.rises())).toBe(2)
      await Promise.all([one.until(true), two.until(true)])
      await one.store.heal()
      expect(await countAll(two)).toEqual(all(5))
      await arrives(two, one)
    })

    it('work with a password of the Sentinels and another one of the server, and say what is wrong', async () => {
      const server = await startRedis('redis-server', ['--requirepass', 'of-server'])
      const lines = ['requirepass of-sentinel', 'sentinel auth-pass mine of-server']
      const { url } = await startSentinel('mine', server.port, 1, lines)
      const open = (password: string, own: string, name = 'mine') => {
        const nodes = [url.replace('//', `//:${own}@`)]
        return openReplica(`redis://:${password}@unused`, { sentinel: { name, nodes } })
      }
      const replica = await open('of-server', 'of-sentinel')
      await replica.until(true)
      expect(await count(replica)).toBe(1)
      const refused = 'WRONGPASS invalid username-password pair or user is disabled.'
      const problems = [await open('of-server', 'x'), await open('of-server', 'of-sentinel', 'other')]
      expect(problems.map(({ problem }) => problem())).toEqual([
        `no connection within 1000 ms: ${refused}`,
        'no connection within 1000 ms: ERR No such master with that name',
      ])
      const named = `they name 127.0.0.1:${server.port}, which can't be used: check its user and password`
      const wrong = await open('x', 'of-sentinel')
      expect(wrong.problem()).toBe(`no connection within 1000 ms: ${named}`)
    })

    it('never ask one in plain text whose address says rediss://', async () => {
      const [{ options, pem }, port, own] = [makeCertificate(), await freePort(), await freePort()]
      await startRedis('redis-server', options(port))
      const tls = options(own).join(' ').slice(2).split(' --')
      await startSentinel('mine', port, 1, ['tls-replication yes', ...tls])
      const sentinel = { name: 'mine', nodes: [`rediss://localhost:${own}`] }
      const unknown = await openReplica('redis://unused', { sentinel })
      const problem = unknown.problem().replace(/;.*/, '')
      expect([unknown.isUp(), problem]).toEqual([false, 'no connection within 1000 ms: self-signed certificate'])
      const replica = await openReplica('redis://unused', { sentinel, tls: { ca: pem } })
      await replica.until(true)
      expect(await count(replica)).toBe(1)
    })

    it('say so if they were given the address of a Sentinel as that of the server', async () => {
      const server = await startRedis()
      const sentinel = await startSentinel('mine', server.port, 1)
      const replica = await openReplica(sentinel.url)
      expect(replica.isUp()).toBe(false)
      expect(replica.problem()).toBe('this is a Sentinel: name it in redis.sentinel.nodes, and no server')
    })
  })
})
