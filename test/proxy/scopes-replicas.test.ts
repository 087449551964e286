import fc from 'fast-check'
import { expect, it, onTestFinished } from 'vitest'
import type { Ask } from '../../src/core/budget/ledger.ts'
import type { Counts } from '../../src/core/counters.ts'
import { createLedger, type Place } from '../../src/usage/ledger.ts'
import { ask } from '../support/admin.ts'
import { dayAt } from '../support/day-limit.ts'
import { NOON_ZONE, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { startProvider } from '../support/provider.ts'
import { openReplica, type Redis, startRedis, startWire } from '../support/redis.ts'

const asks = (cost: number): Ask => ({ counts: { iterations: 1, cost }, isGuess: false })

/** Ledgers of replicas, each with a clock that is wrong by so many milliseconds. */
async function replicas(redis: Redis, prefix: string, wrong: readonly number[]) {
  return Promise.all(
    wrong.map(async (by, at) => {
      const now = () => Date.now() + by
      const { store } = await openReplica(redis.url, { prefix, now })
      return createLedger(store, now, `${prefix}${at}`)
    }),
  )
}

describeWith('redis-server', 'sums of scopes of time on one Redis', () => {
  it('keep three replicas to the limit, one call and what calls cost beyond their estimates, in any schedule', async () => {
    const redis = await startRedis()
    let schedules = 0
    const step = fc.record({
      who: fc.integer({ min: 0, max: 2 }),
      does: fc.constantFrom('ask', 'ask', 'end'),
      estimate: fc.integer({ min: 1, max: 40 }),
      real: fc.double({ min: 0, max: 2, noNaN: true }),
      which: fc.nat(),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(fc.array(step, { maxLength: 6 }), { maxLength: 12 }), async (rounds) => {
        const all = await replicas(redis, `g${schedules++}:`, [0, 7_200_000, -7_200_000])
        const place = dayAt(all[0]?.time() ?? 0, NOON_ZONE)
        const flying: { who: number; held: Counts | undefined; cost: number }[] = []
        let excess = 0
        let largest = 0
        let spent = 0
        const end = async (at: number) => {
          const [one] = flying.splice(at, 1)
          if (!one) return
          spent += one.cost
          await all[one.who]?.settle(place, { iterations: 1, cost: one.cost }, one.held)
        }
        // What stands in one round happens at once.
        for (const round of rounds)
          await Promise.all(
            round.map(async ({ who, does, estimate, real, which }) => {
              if (does === 'end') return end(which % Math.max(1, flying.length))
              const [standing] = (await all[who]?.hold([place], asks(estimate), false)) ?? []
              if (!standing?.hold) return
              const cost = estimate * real
              excess += Math.max(0, cost - estimate)
              largest = Math.max(largest, cost)
              flying.push({ who, held: standing.hold, cost })
            }),
          )
        while (flying.length > 0) await end(0)
        expect(spent).toBeLessThanOrEqual(100 + largest + excess + 1e-6)
        for (const one of all) {
          const { used, held } = await one.read(place)
          expect(used.cost ?? 0).toBeCloseTo(spent, 5)
          expect(held).toEqual({})
          one.close()
        }
      }),
      { numRuns: 12 },
    )
  })

  it('name the same period by the clock of Redis, whatever the clocks of replicas say; their keys end after it', async () => {
    const redis = await startRedis()
    const all = await replicas(redis, 'clocks:', [0, 90_000_000, -90_000_000])
    const places: Place[] = []
    for (const one of all) {
      const place = dayAt(one.time(), NOON_ZONE)
      places.push(place)
      await one.settle(place, { cost: 5 }, undefined)
    }
    expect(new Set(places.map(({ name }) => name)).size).toBe(1)
    const [place] = places
    if (!place) throw new Error('no place')
    expect((await all[0]?.read(place))?.used).toEqual({ cost: 15 })
    const keys = (await redis.command('KEYS', 'clocks:v:*time_budget*')) as string[]
    expect(keys).toHaveLength(1)
    const left = Number(await redis.command('PTTL', keys[0] ?? ''))
    expect(left).toBeLessThanOrEqual(place.period.end - Date.now() + 600_000 + 5_000)
  })

  it('go on with the last known sum and their own while Redis fails, and are whole again after it', async () => {
    const redis = await startRedis()
    const [one, other] = await replicas(redis, 'down:', [0, 0])
    if (!one || !other) throw new Error('no replicas')
    const place = dayAt(one.time(), NOON_ZONE)
    await one.settle(place, { cost: 60 }, undefined)
    await other.settle(place, { cost: 20 }, undefined)
    await one.setLimits(place, { cost: 99 })
    await one.settle(place, { cost: 1 }, undefined)
    await redis.kill()
    await other.settle(place, { cost: 5 }, undefined)
    const [standing] = await one.hold([place], asks(30), false)
    expect(standing?.used).toMatchObject({ cost: 81 })
    const [late] = await one.hold([place], asks(30), true)
    await one.settle(place, { cost: 30 }, late?.hold)
    expect((await one.hold([place], asks(1), false))[0]?.hold).toBeUndefined()
    await redis.restart()
    // Redis has lost everything: each writes its own part, and what an operator has set, again.
    const sums = async () => {
      for (const ledger of [one, other]) await ledger.settle(place, {}, undefined)
      return [(await one.read(place)).used, (await other.read(place)).used]
    }
    await expect.poll(sums).toEqual([{ cost: 116 }, { cost: 116 }])
    expect((await other.read(place)).limits).toMatchObject({ cost: 99 })
  })

  it('are whole where Redis loses its data, or goes back to an older state, between two changes of one process', async () => {
    const redis = await startRedis()
    const wire = await startWire(redis.port)
    const { store } = await openReplica(wire.url, { prefix: 'lost:' })
    const ledger = createLedger(store, Date.now, 'lost')
    onTestFinished(() => ledger.close())
    const place = dayAt(ledger.time(), NOON_ZONE)
    const spend = (cost: number) => ledger.settle(place, { cost }, undefined)
    await spend(1)
    const [key = ''] = (await redis.command('KEYS', 'lost:v:*time_budget*')) as string[]
    await redis.command('COPY', key, 'older')
    const losses = [['COPY', 'older', key, 'REPLACE'], ['FLUSHALL']]
    for (const [at, loss] of losses.entries()) {
      let writes = 0
      const isHeld = new Promise<void>((resolve) => {
        wire.onRequest((bytes) => {
          if (!bytes.includes(key) || ++writes !== 2) return 'passed'
          resolve()
          return 'held'
        })
      })
      const both = [spend(10), spend(100)]
      await isHeld
      await redis.command(...loss)
      wire.release()
      await Promise.all(both)
      expect((await ledger.read(place)).used).toEqual({ cost: 1 + 110 * (at + 1) })
    }
  })

  it.each([
    ['restarts empty', (redis: Redis) => redis.kill().then(redis.restart)],
    ['is flushed', ({ command }: Redis) => command('FLUSHALL')],
    ['is flushed, and it ends at once', ({ command }: Redis, end: () => unknown) => command('FLUSHALL').then(end)],
  ])('are whole after Redis %s, although one of two Governors gets no request any more', async (_, lose) => {
    const provider = await startProvider(async () => ({ text: 'It is 42.' }))
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const day = [{ max_iterations: 5 }, { per: 'header:x-team', max_iterations: 50 }]
    const models = [{ model: '*', price: { input: 90, output: 100 } }]
    const config = { store: 'redis', redis: { url: redis.url }, models, budget: { day } }
    const [one, other] = await Promise.all([startGovernor(provider.url, config), startGovernor(provider.url, config)])
    const post = async (url: string) => {
      const response = await fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: 'Bearer sk-1', 'x-team': url },
        body: JSON.stringify({ model: 'gpt-4.1', messages: [{ role: 'user', content: 'task' }] }),
      })
      return ((await response.json()) as { governor?: object }).governor
    }
    for (let at = 0; at < 4; at++) expect(await post(other.url)).toBeUndefined()
    const listed = async () => (await ask(one.url, '/governor/sessions')).json
    await expect.poll(listed, { timeout: 10_000 }).toMatchObject({ summary: { today: { cost_usd: 0.04 } } })
    await lose(redis, () => other.governor.close())
    const budget = async () => (await ask(one.url, '/governor/budget')).json
    const sums = [{ used: { iterations: 4 } }, { subject: other.url, used: { iterations: 4 } }]
    await expect.poll(budget, { timeout: 10_000 }).toMatchObject({ budget: sums })
    await expect.poll(listed).toMatchObject({ summary: { today: { cost_usd: 0.04 } } })
    expect(await post(one.url)).toBeUndefined()
    expect(await post(one.url)).toMatchObject({ scope: 'day', budget_used: 5, budget_max: 5 })
    expect(provider.requests).toHaveLength(5)
  })

  it('let about ten of fifty requests at once through three Governors where there is room for ten', async () => {
    const provider = await startProvider(async () => ({ text: 'It is 42.' }))
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const models = [{ model: '*', price: { input: 90, output: 100 } }]
    const budget = { day: { max_cost_usd: 0.1 } }
    const config = { store: 'redis', redis: { url: redis.url, timeout: '5s' }, models, budget }
    const three = await Promise.all([0, 1, 2].map(() => startGovernor(provider.url, config)))
    const ends = await Promise.all(
      Array.from({ length: 50 }, async (_, at) => {
        const response = await fetch(`${three[at % 3]?.url}/v1/chat/completions`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', authorization: 'Bearer sk-1' },
          body: JSON.stringify({ model: 'gpt-4.1', messages: [{ role: 'user', content: `task ${at}` }] }),
        })
        return ((await response.json()) as { governor?: object }).governor
      }),
    )
    const passed = ends.filter((end) => end === undefined).length
    expect(passed).toBeGreaterThanOrEqual(10)
    expect(passed).toBeLessThanOrEqual(12)
    expect(provider.requests).toHaveLength(passed)
    const { json } = await ask(three[1]?.url ?? '', '/governor/budget')
    expect(json).toMatchObject({ budget: [{ used: { iterations: passed } }] })
  })
})
