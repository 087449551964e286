/** An operator at one replica, the agent at the other, one Redis. */
import { expect, it, onTestFinished } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import { createDayCost } from '../../src/usage/day-cost.ts'
import { act, ask, firstSession, listed, type Shown } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { openEvents } from '../support/events.ts'
import { startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { type Script, startProvider } from '../support/provider.ts'
import { openReplica, startRedis } from '../support/redis.ts'
import { captureTerminal } from '../support/terminal.ts'

const NAMED = { headers: { 'x-governor-session': 'night job' } }
const stuck: Script = ({ json }) =>
  json.tool_choice === 'none'
    ? { text: 'I could not find out.' }
    : { calls: [{ name: 'read_file', arguments: { path: 'a' } }] }

/** Two replicas in front of an agent's provider; `another` starts one more. */
async function startTwo(config: object = {}) {
  const provider = await startProvider(stuck)
  onTestFinished(() => provider.close())
  const redis = await startRedis()
  const another = () =>
    startGovernor(provider.url, {
      store: 'redis',
      redis: { url: redis.url, timeout: '5s' },
      budget: { max_iterations: 40 },
      loop_guard: { mode: 'warn' },
      ...config,
    })
  return { provider, redis, another, agents: await another(), operators: await another() }
}

/** What has to be the same wherever and whenever it is read. */
function lasting({ id, state, terminal, final_answer, runs, iterations, total_iterations }: Shown) {
  return { id, state, terminal, final_answer, runs, iterations, total_iterations }
}

describeWith('redis-server', 'an operator at another replica than the agent', () => {
  it('finds a loop, extends the run once, stops it, and reads the same end everywhere and after a restart', async () => {
    const { agents, operators, another } = await startTwo()
    const pages = [await openEvents(agents.url), await openEvents(operators.url)]
    // A list that was read a moment ago does not hide what began since.
    expect(await listed(operators.url)).toEqual([])
    const { messages } = await runAgent(agents.url, START, { ...NAMED, max: 8 })
    await expect.poll(async () => (await listed(operators.url)).length, { timeout: 20_000 }).toBe(1)
    const seen = await firstSession(operators.url)
    expect(seen).toMatchObject({ state: 'going_round', loop: { tools: ['read_file'], count: 7 } })
    for (const { next } of pages) expect((await next(({ data }) => data.iteration === 8)).data.id).toBe(seen.id)

    const once = { 'idempotency-key': 'a click' }
    await act(operators.url, seen.id, 'extend', { by: '50%' }, once)
    await act(agents.url, seen.id, 'extend', { by: '50%' }, once)
    const step = await callModel(agents.url, messages, NAMED)
    expect(step.headers.get('x-governor-iteration')).toBe('9/60')

    await act(operators.url, seen.id, 'stop')
    for (const { next } of pages) await next(({ data }) => data.stopping === true)
    const last = await callModel(agents.url, [...messages, step.message, result(step)], NAMED)
    expect(last.governor).toMatchObject({ terminal_state: 'stopped', terminal_reason: 'operator' })
    for (const { next } of pages) await next(({ data }) => data.state === 'stopped')

    const ended = lasting(await firstSession(operators.url))
    expect(ended).toMatchObject({ state: 'stopped', final_answer: { text: 'I could not find out.' } })
    expect(lasting(await firstSession(agents.url))).toEqual(ended)
    await agents.governor.close()
    await operators.governor.close()
    const later = await another()
    expect(lasting((await ask(later.url, `/governor/sessions/${seen.id}`)).json as Shown)).toEqual(ended)
    expect((await callModel(later.url, messages, NAMED)).governor).toEqual(last.governor)
  })

  it('reads that Redis is gone, and not that the session is, until the session can be found again', async () => {
    const { redis, agents, operators } = await startTwo()
    await runAgent(agents.url, START, { ...NAMED, max: 3 })
    const { id } = await firstSession(agents.url)
    await redis.kill()
    await operators.until((event) => event.kind === 'store_changed' && !event.isUp)
    for (const name of [id, 'night job']) {
      const path = `/governor/sessions/${encodeURIComponent(name)}`
      const refused = await ask(operators.url, `${path}/extend`, { method: 'POST', body: { by: 5 } })
      expect(refused).toMatchObject({ status: 503, json: { error: { code: 'store_unreachable' } } })
      expect((await ask(operators.url, path)).status).toBe(503)
      expect((await ask(agents.url, `${path}/extend`, { method: 'POST', body: { by: 5 } })).status).toBe(200)
    }
    await redis.restart()
    const unknown = () => ask(operators.url, '/governor/sessions/nobody')
    await expect.poll(async () => (await unknown()).status, { timeout: 20_000 }).toBe(404)
    expect((await unknown()).json).toMatchObject({ error: { code: 'unknown_session' } })
  })

  it('sees the same table from the command line at either replica', async () => {
    const { agents, operators } = await startTwo()
    await runAgent(agents.url, START, { ...NAMED, max: 8 })
    const tables = []
    for (const { url } of [agents, operators]) {
      const terminal = captureTerminal()
      await run(['top', '--url', url], terminal)
      tables.push(terminal.printed)
    }
    expect(tables[0]).toMatch(/looping .*8\/40/)
    // Seconds to the limit pass between the two.
    const [first, second] = tables.map((table) => table.replace(/ \d+[smhd] /g, ' '))
    expect(first).toBe(second)
  })
})

describeWith('redis-server', 'the cost of the day', () => {
  it('has what each replica counted, also while Redis did not answer, and after it lost its data', async () => {
    const redis = await startRedis()
    const open = async (name: string) => {
      const replica = await openReplica(redis.url, { timeout: 200 })
      return { ...replica, day: createDayCost(replica.store, Date.now, name) }
    }
    const one = await open('one')
    one.day.add({ cost: 2 })
    expect(await one.day.today()).toMatchObject({ counts: { cost: 2 } })
    redis.freeze()
    const other = await open('other')
    other.day.add({ cost: 1 })
    expect(await other.day.today()).toMatchObject({ counts: { cost: 1 } })
    one.day.add({ cost: 4, estimated_prices: 1 })
    expect(await one.day.today()).toMatchObject({ counts: { cost: 6 } })
    redis.thaw()
    await Promise.all([one.until(true), other.until(true)])
    const all = { counts: { cost: 7, estimated_prices: 1 } }
    const both = () => Promise.all([one.day.today(), other.day.today()])
    await expect.poll(both).toMatchObject([all, all])
    await redis.kill()
    await redis.restart()
    await Promise.all([one.until(true), other.until(true)])
    await expect.poll(both).toMatchObject([all, all])
  })

  it('keeps what a Governor has counted that ends right after an answer', async () => {
    const { agents, operators } = await startTwo({ models: [{ model: '*', price: { input: 1_000, output: 1_000 } }] })
    await callModel(agents.url, START, NAMED)
    await agents.governor.drain()
    const { cost_usd } = await firstSession(operators.url)
    expect(cost_usd).toBeGreaterThan(0)
    const { json } = await ask(operators.url, '/governor/sessions')
    expect(json).toMatchObject({ summary: { today: { cost_usd } } })
  })
})

function result({ message }: { readonly message: { readonly tool_calls?: readonly { readonly id: string }[] } }) {
  return { role: 'tool', tool_call_id: message.tool_calls?.[0]?.id ?? '', content: 'the result of read_file' }
}
