/** Over three replicas on one Redis, a run is known on each of them by the answers that any of them relayed. */
import fc from 'fast-check'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { listed } from '../support/admin.ts'
import { type Running, startBeforeModel, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { type Redis, startRedis } from '../support/redis.ts'
import { anyReducer, lastSteps, promptAndLast, prunedCalls, summarised, whole } from '../support/reducers.ts'
import {
  type Agent,
  type AgentOptions,
  createAgent,
  human,
  keyOf,
  type Model,
  type ModelServer,
  numberIn,
  runShortened,
  SETTINGS,
  SYSTEM,
  searcher,
  sendTranscript,
  startModel,
  tableOf,
  verdictsOf,
} from '../support/shortened-agent.ts'
import type { Entry } from '../support/transcripts.ts'

interface Cluster {
  readonly model: ModelServer
  readonly redis: Redis
  readonly replicas: readonly Running[]
  /** The URL of the next replica, in turn. */
  next(): string
}

async function startCluster(config: Record<string, unknown>, model: Model = searcher): Promise<Cluster> {
  const server = await startModel(model)
  onTestFinished(() => server.close())
  const redis = await startRedis()
  const store = { store: 'redis', redis: { url: redis.url, timeout: '1s' } }
  const replicas = await Promise.all([1, 2, 3].map(() => startGovernor(server.url, { ...store, ...config })))
  let at = 0
  return { model: server, redis, replicas, next: () => replicas[at++ % 3]?.url ?? '' }
}

/** An agent that sends each request to the next replica. */
function roundRobin({ next }: Cluster, options: Omit<AgentOptions, 'url'>): Agent {
  return createAgent({
    ...options,
    get url() {
      return next()
    },
  })
}

const upTo = (count: number): number[] => Array.from({ length: count }, (_, at) => at + 1)
const THREADS = [{ 'x-claude-code-agent-id': 'agent-1' }, { 'thread-id': 'thread-1' }] as const

describeWith('redis-server', 'an agent whose requests reach one replica after the other', () => {
  const reducers = fc.oneof(
    fc.constantFrom(whole, lastSteps(1), lastSteps(3), promptAndLast(1), prunedCalls(1), summarised('user', 0, true)),
    fc.array(fc.nat(5), { minLength: 1, maxLength: 8 }).map(anyReducer),
  )

  it('reads k at its k-th request, whatever it cuts off, and is stopped at its limit', async () => {
    const cluster = await startCluster({ budget: { max_iterations: 5 } })
    const check = fc.asyncProperty(fc.constantFrom(...SETTINGS), reducers, async ([title, setting], reducer) => {
      const seen = await runShortened(roundRobin(cluster, { ...setting, key: keyOf({}), reducer }), 8)
      const story = `${title}, ${reducer}\n${tableOf(seen)}`
      expect(seen.map(numberIn), story).toEqual([1, 2, 3, 4, 5, 5])
      expect(seen.at(-1)?.reason, story).toBe('max_iterations')
    })
    await fc.assert(check, { numRuns: 12, seed: 38 })
  })

  it('is warned and blocked like one with its whole history', async () => {
    const cluster = await startCluster({})
    const check = fc.asyncProperty(fc.constantFrom(...SETTINGS), reducers, async ([title, setting], reducer) => {
      const options = { ...setting, key: keyOf({ loops: true }) }
      const control = await runShortened(roundRobin(cluster, { ...options, session: 'control', reducer: whole }), 8)
      const key = keyOf({ loops: true })
      const seen = await runShortened(roundRobin(cluster, { ...options, key, reducer }), 8)
      expect(verdictsOf(control).join()).toContain('in place')
      expect(verdictsOf(seen), `${title}, ${reducer}\n${tableOf(seen)}`).toEqual(verdictsOf(control))
    })
    await fc.assert(check, { numRuns: 6, seed: 38 })
  })
})

describeWith('redis-server', 'a thread that the client names', () => {
  it.each(THREADS)(
    'keeps the count of the copy of each replica in an outage, and is one again after it (%o)',
    async (headers) => {
      const cluster = await startCluster({})
      const { redis, replicas } = cluster
      const agents = SETTINGS.filter(([, { session }]) => session).map(([title, setting]) => ({
        title,
        agent: roundRobin(cluster, { ...setting, key: keyOf({}), reducer: promptAndLast(1), headers }),
      }))
      const each = async (steps: number) => {
        for (const { agent } of agents) for (let at = 0; at < steps; at++) await agent.step()
      }
      await each(7)
      await redis.kill()
      await each(4)
      const isBack = replicas.map(({ events, until }) => {
        const before = events.length
        return until((event) => event.kind === 'store_changed' && event.isUp && events.indexOf(event) >= before)
      })
      await redis.restart()
      await Promise.all(isBack)
      await each(6)
      for (const { title, agent } of agents) {
        const numbers = agent.seen.map(numberIn)
        const story = `${title}: ${numbers.join(' ')}\n${tableOf(agent.seen)}`
        // A replica that has lost the store goes on from its own copy, which is at most one round of the others behind.
        expect.soft(Math.min(...numbers.slice(7)), story).toBeGreaterThan(7 - 3)
        // Each replica has counted for itself in the meantime: what it counts once more is at least what any of them had.
        const after = numbers.slice(11)
        expect.soft(after[0], story).toBeGreaterThan(Math.max(...numbers.slice(0, 11)) - 1)
        expect.soft(after, story).toEqual(after.map((_, at) => (after[0] ?? 0) + at))
      }
    },
  )

  it.each(THREADS)('goes on from the copies of the replicas where Redis has lost all data (%o)', async (headers) => {
    const cluster = await startCluster({})
    for (const [title, setting] of SETTINGS.filter(([, { session }]) => session)) {
      const agent = roundRobin(cluster, { ...setting, key: keyOf({}), reducer: promptAndLast(1), headers })
      for (let at = 0; at < 10; at++) await agent.step()
      await cluster.redis.command('FLUSHALL')
      for (let at = 0; at < 6; at++) await agent.step()
      const numbers = agent.seen.map(numberIn)
      const story = `${title}: ${numbers.join(' ')}\n${tableOf(agent.seen)}`
      expect.soft(numbers.slice(0, 10), story).toEqual(upTo(10))
      // The first replica that is asked goes on from the count of its own last request, or from that of another one
      // whose last answer was recorded after the loss. Each later request counts on from the largest count that came.
      const after = numbers.slice(10)
      expect.soft(after[0], story).toBeGreaterThanOrEqual(9)
      for (const [at, number] of after.entries()) {
        if (at > 0) expect.soft(number, story).toBeGreaterThan(after[at - 1] ?? 0)
        expect.soft(number, story).toBeLessThanOrEqual(11 + at)
      }
    }
  })

  it('gets no more calls than its limit, however many different first steps come at once', async () => {
    const cluster = await startCluster({ budget: { max_iterations: 10 } })
    for (const [title, setting] of SETTINGS.filter(([, { session }]) => session)) {
      const key = keyOf({})
      const options = () => ({ ...setting, url: cluster.next(), key, headers: { 'thread-id': 'one' } })
      await sendTranscript(options(), [SYSTEM, human('Find out everything.')])
      const steps = await Promise.all(upTo(24).map((at) => sendTranscript(options(), firstStep(at))))
      const calls = cluster.model.requests.filter((request) => request.key === key && !request.mustAnswer).length
      expect.soft(calls, title).toBeLessThanOrEqual(10)
      expect.soft(steps.filter(({ reason }) => reason === 'max_iterations').length, title).toBeGreaterThanOrEqual(15)
    }
  })
})

/** A first step that is different from all others: nobody relayed its answer. */
function firstStep(at: number): readonly Entry[] {
  const call = { id: `call_first_${at}`, name: 'search', arguments: JSON.stringify({ query: `part ${at}` }) }
  return [
    SYSTEM,
    human('Find out everything.'),
    { kind: 'answer', text: '', calls: [call], number: at },
    { kind: 'result', id: call.id, name: 'search', text: `Found part ${at}.` },
  ]
}

/** How many iterations a session has in all. */
const totalOf = async (url: string, name: string) =>
  (await listed(url)).find((row) => row.name === name)?.total_iterations

describeWith('redis-server', 'a conversation without an id that begins while Redis is away', () => {
  it('counts what a replica has relayed that ends before Redis is back', async () => {
    for (const [title, setting] of SETTINGS.filter(([, { session }]) => !session)) {
      const { redis, replicas } = await startCluster({})
      let at = 0
      const url = () => replicas[at]?.url ?? ''
      const agent = createAgent({
        ...setting,
        key: keyOf({}),
        reducer: whole,
        get url() {
          return url()
        },
      })
      const isDown = replicas.map(({ until }) => until((event) => event.kind === 'store_changed' && !event.isUp))
      await redis.kill()
      await Promise.all(isDown)
      await agent.step()
      at = 1
      await agent.step()
      await replicas[1]?.governor.close()
      const isBack = [0, 2].map((one) => {
        const { events, until } = replicas[one] as Running
        const before = events.length
        return until((event) => event.kind === 'store_changed' && event.isUp && events.indexOf(event) >= before)
      })
      await redis.restart()
      await Promise.all(isBack)
      at = 2
      await agent.step()
      expect.soft(agent.seen.map(numberIn), title).toEqual([1, 2, 3])
    }
  })
})

describeWith('redis-server', "a session's totals", () => {
  it('are the number of answers that were relayed to it, also where first steps come at once', async () => {
    const cluster = await startCluster({})
    for (const [at, [title, setting]] of SETTINGS.filter(([, { session }]) => session).entries()) {
      const session = `session-${at}`
      const key = keyOf({})
      const options = () => ({ ...setting, session, url: cluster.next(), key })
      await sendTranscript(options(), [SYSTEM, human('Find out everything.')])
      await Promise.all(upTo(12).map((step) => sendTranscript(options(), firstStep(step))))
      await vi.waitFor(async () => expect(await totalOf(cluster.next(), session), title).toBe(13), 20_000)
    }
  })

  it('are the number of answers that were relayed to it, whatever its agents cut off and however they fork', async () => {
    const cluster = await startCluster({})
    const [title, setting] = SETTINGS[0] as (typeof SETTINGS)[number]
    const key = keyOf({})
    const agents = [whole, lastSteps(1), summarised('user', 0, true)].map((reducer) =>
      roundRobin(cluster, { ...setting, key, reducer, task: `Find out about ${reducer}.` }),
    )
    for (const at of [0, 1, 2, 2, 0, 1, 1, 0, 2, 0, 0, 1]) await agents[at]?.step()
    const fork = roundRobin(cluster, { ...setting, key, reducer: whole })
    fork.replace([...(agents[0]?.history ?? []), human('Do your part.')])
    for (let at = 0; at < 3; at++) await fork.step()
    await vi.waitFor(async () => expect(await totalOf(cluster.next(), 'session'), title).toBe(15), 20_000)
  })
})

describe('a session that begins with a history from elsewhere', () => {
  it('has only the answers that were relayed to it in its totals', async () => {
    const server = await startModel(searcher)
    onTestFinished(() => server.close())
    const { url } = await startGovernor(server.url, {})
    const elsewhere = await startGovernor(server.url, {})
    for (const [at, [title, setting]] of SETTINGS.filter(([, { session }]) => session).entries()) {
      const options = { ...setting, key: keyOf({}), session: `session-${at}`, reducer: whole }
      const before = createAgent({ ...options, url: elsewhere.url })
      await runShortened(before, 6)
      const agent = createAgent({ ...options, url })
      agent.replace(before.history)
      for (let step = 0; step < 3; step++) await agent.step()
      expect.soft(agent.seen.map(numberIn), `${title}\n${tableOf(agent.seen)}`).toEqual([7, 8, 9])
      expect.soft(await totalOf(url, `session-${at}`), title).toBe(3)
    }
  })
})

describe('an assistant message that no model wrote', () => {
  it.each<[string, (number: number) => readonly Entry[]]>([
    ['says so in words', () => [{ kind: 'answer', text: 'Transferring back to the supervisor.', calls: [] }]],
    [
      'calls a tool of the framework',
      (number) => {
        const call = { id: `transfer_${number}`, name: 'transfer_back', arguments: '{}' }
        return [
          { kind: 'answer', text: 'Transferring back to the supervisor.', calls: [call] },
          { kind: 'result', id: call.id, name: call.name, text: 'Successfully transferred back to the supervisor.' },
        ]
      },
    ],
  ])('is no iteration (it %s)', async (_, after) => {
    const { url } = await startBeforeModel()
    for (const [title, setting] of SETTINGS) {
      const seen = await runShortened(createAgent({ url, ...setting, key: keyOf({}), reducer: whole, after }), 6)
      expect.soft(seen.map(numberIn), `${title}\n${tableOf(seen)}`).toEqual(upTo(6))
    }
  })
})
