/** Lists of many sessions in Redis: what a page reads there. */
import { expect, it, onTestFinished } from 'vitest'
import { ask, listed } from '../support/admin.ts'
import { runAgent, START } from '../support/agent.ts'
import { startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { runaway, startProvider } from '../support/provider.ts'
import { type Redis, startRedis } from '../support/redis.ts'

const PREFIX = 'governor:'
const INDEX = `${PREFIX}{sessions}`
/** Sessions that were used so long ago are neither at work nor do they need a person. */
const QUIET_MS = 700_000
const HEAD = 250

/** Copies the first session until there are so many, each used some milliseconds before the one before it. */
const FILL = `local key = redis.call('ZRANGE', KEYS[1], -1, -1)[1]
local score = redis.call('ZSCORE', KEYS[1], key)
local own = redis.call('HMGET', ARGV[1] .. 's:{' .. key .. '}', 'v', 's', 'd')
for at = redis.call('ZCARD', KEYS[1]), ARGV[2] - 1 do
  local age = ARGV[3] + at * ARGV[4]
  local data = own[3]:gsub('1%d%d%d%d%d%d%d%d%d%d%d%d', function(time) return string.format('%.0f', time - age) end)
  local copy = '0123456789abcdef:many-' .. at
  redis.call('HSET', ARGV[1] .. 's:{' .. copy .. '}', 'v', own[1], 's', own[2], 'd', data)
  redis.call('ZADD', KEYS[1], score - age, copy)
end`

interface Page {
  readonly sessions: readonly { readonly id: string; readonly last_at: string; readonly state: string }[]
  readonly next: string | null
  readonly total: number
  readonly complete: boolean
  readonly summary: { readonly sessions: number; readonly at_work: number }
}

/** Starts a Governor with one session that is at work; `fill` adds others, `step` milliseconds apart. */
async function start() {
  const provider = await startProvider(runaway())
  onTestFinished(() => provider.close())
  const redis = await startRedis()
  // The machine that runs the tests may be busy.
  const { url } = await startGovernor(provider.url, {
    store: 'redis',
    redis: { url: redis.url, timeout: '5s' },
    budget: { max_iterations: 40 },
  })
  await runAgent(url, START, { headers: { 'x-governor-session': 'at work' }, max: 5 })
  await expect.poll(() => listed(url), { timeout: 20_000 }).toHaveLength(1)
  const fill = (count: number, step: number) =>
    redis.command('EVAL', FILL, '1', INDEX, PREFIX, String(count), String(QUIET_MS), String(step))
  const read = async (query: string) => (await ask(url, `/governor/sessions?${query}`)).json as Page
  return { redis, fill, read }
}

/** Returns the bytes that a server has sent. */
async function bytesFrom(redis: Redis): Promise<number> {
  return Number(/total_net_output_bytes:(\d+)/.exec(String(await redis.command('INFO', 'stats')))?.[1])
}

async function allPages(read: (query: string) => Promise<Page>, query: string): Promise<readonly Page[]> {
  const pages = [await read(query)]
  for (let next = pages[0]?.next; next; next = pages.at(-1)?.next) pages.push(await read(`${query}&cursor=${next}`))
  return pages
}

describeWith('redis-server', 'a list of very many sessions in Redis', () => {
  it('reads as many bytes for a page of 1,000 sessions as for one of 5,000', async () => {
    const { redis, fill, read } = await start()
    const sizes: number[][] = []
    for (const count of [1_000, 5_000]) {
      await fill(count, 20)
      const before = await bytesFrom(redis)
      const first = await read('limit=50')
      const between = await bytesFrom(redis)
      expect(first).toMatchObject({ total: count, complete: true, summary: { sessions: count, at_work: 1 } })
      expect(first.sessions[0]).toMatchObject({ state: 'working' })
      let page = first
      for (let at = 0; at < HEAD / 50; at++) page = await read(`limit=50&cursor=${page.next}`)
      const after = await bytesFrom(redis)
      expect(page.sessions).toHaveLength(50)
      sizes.push([between - before, after - between])
    }
    const [few = [], many = []] = sizes
    // A digit more here and there: times, and numbers of sessions.
    for (const [at, size] of many.entries()) expect(size / (few[at] ?? 0)).toBeCloseTo(1, 1)
  })

  it.each([0, 20])('shows each once, the last used first after those that are sorted (%i ms apart)', async (step) => {
    const { fill, read } = await start()
    await fill(500, step)
    const pages = await allPages(read, 'limit=70')
    const sessions = pages.flatMap((page) => page.sessions)
    expect(new Set(sessions.map(({ id }) => id)).size).toBe(500)
    expect(sessions).toHaveLength(500)
    expect(pages.every(({ total, complete }) => total === 500 && complete)).toBe(true)
    const times = sessions.slice(HEAD).map(({ last_at }) => last_at)
    expect(times).toEqual(times.toSorted().toReversed())
  })

  it('leaves out sessions that were forgotten before their place in the index', async () => {
    const { redis, fill, read } = await start()
    await fill(400, 20)
    const gone = Array.from({ length: 40 }, (_, at) => `${PREFIX}s:{0123456789abcdef:many-${HEAD + at}}`)
    await redis.command('DEL', ...gone)
    const pages = await allPages(read, 'limit=50')
    expect(new Set(pages.flatMap(({ sessions }) => sessions.map(({ id }) => id))).size).toBe(360)
    expect(pages.every(({ complete }) => complete)).toBe(true)
  })

  it('sorts and searches all of them where it is asked to', async () => {
    const { fill, read } = await start()
    await fill(600, 20)
    for (const query of ['sort=cost', 'q=many', 'id=smany-', 'state=idle', 'state=completed']) {
      const pages = await allPages(read, `limit=200&${query}`)
      const sessions = pages.flatMap((page) => page.sessions)
      expect(sessions).toHaveLength(pages[0]?.total ?? -1)
      if (query.startsWith('id')) expect(sessions).toHaveLength(599)
    }
  })
})
