/** Limits of scopes of time as operators see them: in the rows of sessions and in the head line, and how they are raised. */
import { describe, expect, it } from 'vitest'
import type { SessionPage } from '../../src/ops/sessions/api-schema.ts'
import { headText, limitNote, limitText } from '../../src/ops/sessions/labels.ts'
import { ask, firstSession, listed } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { openEvents } from '../support/events.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'

/** Every answer costs a cent: 100 tokens in, 10 out. */
const models = [{ model: '*', price: { input: 90, output: 100 } }]
const config = (budget: object) => ({ models, budget: { time_zone: 'UTC', ...budget } })
const named = (name: string, more: object = {}) => ({ headers: { 'x-governor-session': name, ...more } })
const NOON = Date.parse('2026-11-27T12:30:00Z')
const pageOf = async (url: string) => (await ask(url, '/governor/sessions')).json as SessionPage

describe('a limit of a scope of time', () => {
  it('is the limit that a session shows, where its share is the largest of all', async () => {
    const day = [{ max_cost_usd: 0.1 }, { per: 'header:x-team', max_iterations: 5 }]
    const { url } = await startBoth(runaway(), config({ day, max_iterations: 8 }), { now: () => NOON })
    await runAgent(url, START, { ...named('one', { 'x-team': 'red' }), max: 2 })
    await runAgent(url, START, { ...named('two', { 'x-team': 'blue' }), max: 4 })
    const limits = Object.fromEntries((await listed(url)).map(({ name, limit }) => [name, limit]))
    expect(limits).toEqual({
      // 6 cents of the 10 of all, and 4 of the 5 iterations of blue.
      one: { meter: 'cost', scope: 'day', used: 0.06, max: 0.1, share: 0.6 },
      two: { meter: 'iterations', scope: 'day', used: 4, max: 5, share: 0.8 },
    })
    const detail = await firstSession(url)
    expect(detail.limit?.scope).toBe('day')
    expect(`${limitText(detail)} ${limitNote(detail)}`).toMatch(/^(?:4 of 5 iterations|\$0\.06 of \$0\.10) ?,? ?today$/)
    // It says nothing of one session more than of another.
    expect((await listed(url)).map(({ state }) => state)).toEqual(['working', 'working'])
  })

  it('for all requests together stands in the head line, with its share and when it begins anew', async () => {
    const budget = { day: { max_cost_usd: 0.04 }, hour: { per: 'model', max_runs: 9 } }
    const { url } = await startBoth(runaway(), config(budget), { now: () => NOON })
    await runAgent(url, START, { ...named('one'), max: 3 })
    const { summary } = await pageOf(url)
    const resets_at = '2026-11-28T00:00:00.000Z'
    const limit = { meter: 'cost', scope: 'day', used: 0.03, max: 0.04, share: 0.75, resets_at }
    expect(summary?.limits).toEqual([limit])
    expect(headText(summary as NonNullable<typeof summary>)).toMatch(/^1 at work · .* · \$0\.03 of \$0\.04 today$/)
  })

  it('is set to whole numbers, as in the configuration; only dollars have fractions', async () => {
    const { url } = await startBoth(runaway(), config({ day: { max_iterations: 4 } }))
    const set = (limits: object) =>
      ask(url, '/governor/budget', { method: 'PATCH', body: { scope: 'day', subject: null, ...limits } })
    for (const limit of ['max_iterations', 'max_runs', 'max_tokens'])
      expect([limit, (await set({ [limit]: 1.5 })).status]).toEqual([limit, 400])
    expect((await set({ max_iterations: 2, max_cost_usd: 1.5 })).json).toMatchObject({
      max: { iterations: 2, cost_usd: 1.5 },
    })
  })

  it.each(['header:X-Team', 'header:x-team'])('is found by the name of its header in any case (%s)', async (per) => {
    const day = [
      { per: 'header:x-Team', max_iterations: 4 },
      { per: 'model', max_iterations: 5 },
    ]
    const { url } = await startBoth(runaway(), config({ day }))
    const body = { scope: 'day', per, subject: 'Red', max_iterations: 9 }
    expect((await ask(url, '/governor/budget', { method: 'PATCH', body })).json).toMatchObject({
      per: 'header:x-team',
      subject: 'Red',
      max: { iterations: 9 },
    })
  })

  it('that an operator raises is raised in rows, head line and events', async () => {
    const { url } = await startBoth(runaway(), config({ day: { max_cost_usd: 0.04 } }))
    await runAgent(url, START, { ...named('one'), max: 3 })
    const body = { scope: 'day', subject: null, max_cost_usd: 0.1 }
    await ask(url, '/governor/budget', { method: 'PATCH', body })
    const { sessions, summary } = await pageOf(url)
    expect([sessions[0]?.limit?.max, summary?.limits[0]?.max]).toEqual([0.1, 0.1])
    const events = await openEvents(url)
    await callModel(url, START, named('two'))
    const { data } = await events.next(({ event, data: { name } }) => event === 'session' && name === 'two')
    expect(data).toMatchObject({ limit: { scope: 'day', max: 0.1 } })
  })

  it('is no limit of a session whose period is over, nor one that only observes', async () => {
    const time = { now: NOON }
    const budget = { hour: { max_cost_usd: 1 }, day: { max_runs: 1, mode: 'observe' } }
    const { url } = await startBoth(() => ({ text: 'Done.' }), config({ ...budget, max_iterations: 0 }), {
      now: () => time.now,
    })
    await runAgent(url, START, named('one'))
    expect((await listed(url))[0]?.limit).toMatchObject({ meter: 'cost', scope: 'hour', used: 0.01 })
    expect((await pageOf(url)).summary?.limits.map(({ scope }) => scope)).toEqual(['hour'])
    time.now += 1_800_000
    expect((await listed(url)).map(({ limit }) => limit)).toEqual([null])
  })
})
