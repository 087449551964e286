import { EventEmitter, once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { ask } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'

/** Every answer costs 0.01 dollars: 100 tokens in, 10 out. */
const PRICED = { models: [{ model: '*', price: { input: 90, output: 100 } }] }
const CALLS: Script = ({ json }, number) =>
  json.tools && json.tool_choice !== 'none'
    ? { calls: [{ name: 'search', arguments: { query: number } }] }
    : { text: 'It is 42.' }
const NOON = Date.parse('2026-11-27T12:00:00Z')
const DAY = 86_400_000

const config = (budget: object, more: object = {}) => ({ ...PRICED, budget: { time_zone: 'UTC', ...budget }, ...more })

interface Closed {
  readonly governor?: Readonly<Record<string, unknown>>
  readonly choices: readonly { readonly message: { readonly content: string } }[]
}

const plain = (content: string, more: object = {}) => ({
  model: 'gpt-4.1',
  messages: [{ role: 'user', content }],
  ...more,
})
const post = (url: string, body: object, headers: object = {}, path = '/v1/chat/completions') =>
  fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer sk-1', ...headers },
    body: JSON.stringify(body),
  })
const closedBy = async (response: Promise<Response>) => ((await (await response).json()) as Closed).governor

describe('a limit of a day', () => {
  it('gives a run under way its last answer, and a new run a text of Governor without a call', async () => {
    const { url, provider } = await startBoth(CALLS, config({ day: { max_cost_usd: 0.05 } }), { now: () => NOON })
    const { steps } = await runAgent(url, START, { max: 20 })
    expect(steps.at(-1)?.governor).toEqual({
      terminal_state: 'budget_exceeded',
      terminal_reason: 'max_cost',
      has_final_answer: true,
      budget_used: 0.05,
      budget_max: 0.05,
      scope: 'day',
      resets_at: '2026-11-28T00:00:00.000Z',
      session: expect.any(String),
    })
    expect(provider.requests).toHaveLength(6)
    expect(JSON.stringify(provider.requests.at(-1)?.json)).toContain("You've reached today's cost limit.")
    const refused = await callModel(url, [{ role: 'user', content: 'Another task.' }])
    expect(refused.governor).toMatchObject({ terminal_reason: 'max_cost', scope: 'day', has_final_answer: false })
    expect(provider.requests).toHaveLength(6)
  })

  it('ends requests without tools as well, and says when it begins anew', async () => {
    const { url, provider } = await startBoth(CALLS, config({ day: { max_cost_usd: 0.02 } }), { now: () => NOON })
    for (const text of ['one', 'two']) expect(await closedBy(post(url, plain(text)))).toBeUndefined()
    const response = await post(url, plain('three'))
    expect(response.status).toBe(200)
    expect(response.headers.get('x-governor-resets-at')).toBe('2026-11-28T00:00:00.000Z')
    const { choices, governor } = (await response.json()) as Closed
    expect(governor).toMatchObject({ scope: 'day', terminal_reason: 'max_cost' })
    expect(choices[0]?.message.content).toContain("today's cost limit, $0.0200, is used up")
    expect(provider.requests).toHaveLength(2)
  })

  it.each([
    ['/v1/chat/completions', plain('three'), /"terminal_reason":"max_cost".*"scope":"day"/],
    ['/v1/messages', { max_tokens: 100, ...plain('three') }, /"terminal_reason":"max_cost".*"scope":"day"/],
    ['/v1/responses', { model: 'gpt-4.1', input: 'three' }, /"terminal_reason":"max_cost".*"scope":"day"/],
  ])('answers %s whole and as a stream in its own words', async (path, body, expected) => {
    const { url, provider } = await startBoth(CALLS, config({ day: { max_iterations: 1 } }), { now: () => NOON })
    await post(url, plain('one'))
    for (const stream of [false, true]) {
      const response = await post(url, { ...body, stream }, {}, path)
      expect(response.status).toBe(200)
      const type = stream ? 'text/event-stream' : 'application/json'
      expect(response.headers.get('content-type')).toContain(type)
      expect(await response.text()).toMatch(new RegExp(expected.source.replace('max_cost', 'max_iterations')))
    }
    expect(provider.requests).toHaveLength(1)
  })

  it('begins anew with the next day, also for a run that it ended, and a clock that goes back forgets nothing', async () => {
    let now = NOON
    const { url, provider } = await startBoth(CALLS, config({ day: { max_cost_usd: 0.01 } }), { now: () => now })
    await post(url, plain('one'))
    expect(await closedBy(post(url, plain('two')))).toMatchObject({ scope: 'day' })
    now += DAY
    expect(await closedBy(post(url, plain('two')))).toBeUndefined()
    now -= DAY
    expect(await closedBy(post(url, plain('three')))).toMatchObject({ scope: 'day' })
    expect(provider.requests).toHaveLength(2)
  })

  it('lets ten of fifty requests at once through where there is room for ten', async () => {
    let released: Promise<unknown> = Promise.resolve()
    const answer: Script = async () => {
      await released
      return { text: 'It is 42.' }
    }
    const { url, provider, events, until } = await startBoth(answer, config({ day: { max_cost_usd: 0.1 } }))
    // No request has its answer before Governor has all fifty.
    released = until(() => events.filter(({ kind }) => kind === 'request_began').length === 50)
    const ends = await Promise.all(Array.from({ length: 50 }, (_, at) => closedBy(post(url, plain(`task ${at}`)))))
    expect(ends.filter((end) => end === undefined)).toHaveLength(10)
    expect(provider.requests).toHaveLength(10)
    // What the limit is reached by is known from now on.
    expect(await closedBy(post(url, plain('late')))).toMatchObject({ budget_used: 0.1 })
  })

  it('lets those that wait for others through together once their model has answered, as it is known then what one takes', async () => {
    const gate = new EventEmitter()
    const answer: Script = async (_, number) => {
      // The first answer comes after all requests, the others when nine of them wait for it.
      await once(gate, number === 1 ? 'first' : 'others')
      return { text: 'It is 42.' }
    }
    const budget = config({ day: { max_cost_usd: 0.2 } }, { stop: { ask_timeout: '10m' } })
    const { url, provider, events } = await startBoth(answer, budget)
    const ends = Promise.all(Array.from({ length: 10 }, (_, at) => closedBy(post(url, plain(`task ${at}`)))))
    const begun = () => events.filter(({ kind }) => kind === 'request_began').length
    await expect.poll(begun, { timeout: 20_000 }).toBe(10)
    await expect.poll(() => provider.requests.length, { timeout: 20_000 }).toBe(1)
    gate.emit('first')
    await expect.poll(() => provider.requests.length, { timeout: 20_000 }).toBe(10)
    gate.emit('others')
    expect(await ends).toEqual(Array.from({ length: 10 }, () => undefined))
  })

  it('does not say that it is used up to one that others in flight leave no room', async () => {
    const gate = new EventEmitter()
    const answer: Script = async () => {
      await once(gate, 'freed')
      return { text: 'It is 42.' }
    }
    const budget = config({ day: { max_cost_usd: 0.2 } }, { stop: { ask_timeout: '50ms' } })
    const { url, provider } = await startBoth(answer, budget)
    const first = post(url, plain('one'))
    await expect.poll(() => provider.requests.length, { timeout: 20_000 }).toBe(1)
    const second = (await (await post(url, plain('two'))).json()) as Closed
    expect(second.choices[0]?.message.content).toContain('is used up, or requests in flight hold the rest of it. It')
    gate.emit('freed')
    expect((await first).status).toBe(200)
  })

  it('frees what a request held whose provider failed', async () => {
    const failing: Script = (_, number) =>
      number < 3 ? { status: 400, body: { error: { message: 'no' } } } : { text: 'x' }
    const { url } = await startBoth(failing, config({ day: { max_iterations: 1 } }))
    for (let at = 0; at < 2; at++) expect((await post(url, plain('one'))).status).toBe(400)
    const { json: body } = await ask(url, '/governor/budget')
    expect(body).toMatchObject({ budget: [{ used: { iterations: 0 }, reserved: { iterations: 0 } }] })
  })

  it('cautions a run when less than ten of its steps are left, and warns it below three', async () => {
    const { url, provider } = await startBoth(CALLS, config({ max_iterations: 0, day: { max_cost_usd: 0.2 } }), {
      now: () => NOON,
    })
    await runAgent(url, START, { max: 30 })
    const said = provider.requests.map(({ body }) =>
      /\[BUDGET: Cost ([^ ]+ today)\. (You (?:have|MUST))/.exec(body.toString()),
    )
    expect(said.findIndex((one) => one?.[2] === 'You have')).toBe(11)
    expect(said.findIndex((one) => one?.[2] === 'You MUST')).toBe(18)
    expect(said[18]?.[1]).toBe('$0.18/$0.20 today')
  })

  it('is said by log, event and metric at 75 % and at 95 %, once for each day', async () => {
    const { url, events, logs } = await startBoth(CALLS, config({ day: { max_iterations: 20 } }), { now: () => NOON })
    for (let at = 0; at < 20; at++) await post(url, plain(`task ${at}`))
    const filled = events.filter(({ kind }) => kind === 'scope_filled')
    expect(filled).toMatchObject([
      { share: 0.75, used: 15 },
      { share: 0.95, used: 19 },
    ])
    expect(logs.filter((line) => line.includes('of a limit is used'))).toHaveLength(2)
    const { text } = await ask(url, '/metrics')
    expect(text).toContain('governor_scope_shares_total{scope="day",share="0.75"} 1')
  })

  it('ends nothing where it is only observed, and counts', async () => {
    for (const observed of [
      config({ day: { max_iterations: 1, mode: 'observe' } }),
      config({ day: { max_iterations: 1 } }, { mode: 'observe' }),
    ]) {
      const { url, provider } = await startBoth(CALLS, observed, { now: () => NOON })
      await callModel(url, [{ role: 'user', content: 'one' }])
      const { headers } = await callModel(url, [{ role: 'user', content: 'two' }])
      expect(headers.get('x-governor-observed')).toBe('stop')
      await post(url, plain('three'))
      expect(provider.requests).toHaveLength(3)
    }
  })
})

describe('limits of several scopes', () => {
  it('count each subject for itself, and all together', async () => {
    const limits = [{ per: 'header:X-Team', max_iterations: 1 }, { max_iterations: 3 }]
    const { url, provider } = await startBoth(CALLS, config({ day: limits, hour: { max_iterations: 100 } }))
    const of = (team: string) => closedBy(post(url, plain('one'), { 'x-team': team }))
    expect(await of('red')).toBeUndefined()
    expect(await of('red')).toMatchObject({ scope: 'day', budget_max: 1 })
    expect(await of('blue')).toBeUndefined()
    expect(await of('green')).toBeUndefined()
    expect(await of('white')).toMatchObject({ scope: 'day', budget_max: 3 })
    expect(provider.requests).toHaveLength(3)
    const { json: body } = await ask(url, '/governor/budget')
    expect(body).toMatchObject({
      time_zone: 'UTC',
      budget: [
        { scope: 'hour', per: 'all', subject: null, used: { iterations: 3 } },
        { scope: 'day', per: 'header:x-team', subject: 'red', used: { iterations: 1 }, max: { iterations: 1 } },
        { subject: 'blue' },
        { subject: 'green' },
        { subject: 'white', used: { iterations: 0 } },
        { scope: 'day', per: 'all', subject: null, used: { iterations: 3, tokens: 330, cost_usd: 0.03, runs: 0 } },
      ],
    })
  })

  it('count a run once whose first answer broke off, or was lost, and is asked for again', async () => {
    const { url } = await startBoth(CALLS, config({ week: { max_runs: 1 } }))
    const asked = { ...plain('one'), tools: [{ type: 'function', function: { name: 'search' } }] }
    const again = () => closedBy(post(url, asked, { 'x-governor-session': 'a' }))
    expect([await again(), await again(), await again()]).toEqual([undefined, undefined, undefined])
    const { json: body } = await ask(url, '/governor/budget')
    expect(body).toMatchObject({ budget: [{ used: { iterations: 3, runs: 1 } }] })
    expect(await closedBy(post(url, asked, { 'x-governor-session': 'b' }))).toMatchObject({
      terminal_reason: 'max_runs',
    })
  })

  it('agree with metrics, journal and the cost of the day about requests without tools and without a session', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'sums-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const more = { usage: { journal: join(folder, 'usage.jsonl') } }
    const { url } = await startBoth(CALLS, config({ day: { max_cost_usd: 1 } }, more))
    await post(url, plain('a title'))
    await post(url, plain('a title of a session'), { 'x-governor-session': 'a' })
    await callModel(url, START)
    const [{ json: budget }, { json: usage }] = await Promise.all([
      ask(url, '/governor/budget'),
      ask(url, '/governor/usage'),
    ])
    const { cost_usd: used } = (budget as { budget: readonly [{ used: { cost_usd: number } }] }).budget[0].used
    expect(used).toBeCloseTo(0.03)
    expect(usage).toMatchObject({ total: { cost_usd: used } })
    const { json: listed } = await ask(url, '/governor/sessions')
    expect(listed).toMatchObject({ summary: { today: { cost_usd: used } } })
    const metrics = await (await fetch(`${url}/metrics`)).text()
    const sums = [...metrics.matchAll(/^governor_cost_usd_total.* (\S+)$/gm)].map(([, sum]) => Number(sum))
    expect(sums.reduce((sum, one) => sum + one, 0)).toBeCloseTo(used)
  })

  it('have requests that wait for another look once, and again when that is over, however many wait', async () => {
    let looks = 0
    let end = () => {}
    const areWaiting = new Promise<void>((resolve) => {
      end = resolve
    })
    let release = (_: unknown) => {}
    const released = new Promise<unknown>((resolve) => {
      release = resolve
    })
    const delay = async (_: number, signal: AbortSignal) => {
      looks++
      if (looks === 3) end()
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
    }
    const slow: Script = async (_, number) => {
      if (number === 1) await released
      return { text: 'It is 42.' }
    }
    // There is room in the hour, and in the day once the first one is over.
    const limits = config({ hour: { max_iterations: 100 }, day: { max_iterations: 1 } })
    const { url, until } = await startBoth(slow, limits, { delay })
    const first = post(url, plain('first'))
    await until(({ kind }) => kind === 'request_began')
    const others = [1, 2, 3].map((at) => closedBy(post(url, plain(`other ${at}`))))
    await areWaiting
    release(undefined)
    expect(await closedBy(first)).toBeUndefined()
    expect(await Promise.all(others)).toMatchObject([{ scope: 'day' }, { scope: 'day' }, { scope: 'day' }])
    // One that comes and does not fit may have the others look, once each.
    expect(looks).toBeLessThanOrEqual(9)
  })

  it('let runs under way go on where no more may begin', async () => {
    const { url, provider } = await startBoth(CALLS, config({ max_iterations: 4, week: { max_runs: 1 } }))
    const { steps } = await runAgent(url, START, { max: 10 })
    expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations', scope: 'run' })
    const { governor } = await callModel(url, [{ role: 'user', content: 'Another task.' }])
    expect(governor).toMatchObject({ terminal_reason: 'max_runs', terminal_state: 'budget_exceeded', scope: 'week' })
    expect(await closedBy(post(url, plain('a title')))).toBeUndefined()
    expect(provider.requests).toHaveLength(6)
  })

  it('are raised by an operator until the period ends, and what was ended goes on', async () => {
    let now = NOON
    const { url } = await startBoth(CALLS, config({ day: { max_iterations: 1 } }), { now: () => now })
    await post(url, plain('one'))
    expect(await closedBy(post(url, plain('two')))).toMatchObject({ scope: 'day' })
    const body = { scope: 'day', subject: null, max_iterations: 2 }
    const changed = await ask(url, '/governor/budget', { method: 'PATCH', body })
    expect(changed).toMatchObject({ status: 200, json: { scope: 'day', max: { iterations: 2 } } })
    expect(await closedBy(post(url, plain('two')))).toBeUndefined()
    expect(await closedBy(post(url, plain('three')))).toMatchObject({ budget_max: 2 })
    now += DAY
    await post(url, plain('four'))
    expect(await closedBy(post(url, plain('five')))).toMatchObject({ budget_max: 1 })
    const wrong = await ask(url, '/governor/budget', { method: 'PATCH', body: { ...body, scope: 'month' } })
    expect(wrong).toMatchObject({ status: 404, json: { error: { code: 'unknown_limit' } } })
  })
})

describe('sums of limits', () => {
  it('count a run once whose first request comes again before it is answered', async () => {
    const gate = new EventEmitter()
    const [both, freed] = [once(gate, 'both'), once(gate, 'freed')]
    const script: Script = async (_, number) => {
      if (number === 2) gate.emit('both')
      await freed
      return { text: 'Done.' }
    }
    const { url } = await startBoth(script, config({ day: { max_runs: 9 } }))
    const asked = [1, 2].map(() => callModel(url, START, { headers: { 'x-governor-session': 'a' } }))
    await both
    gate.emit('freed')
    await Promise.all(asked)
    const used = async () => (await ask(url, '/governor/budget')).json
    await expect.poll(used).toMatchObject({ budget: [{ used: { iterations: 2, runs: 1 } }] })
  })

  it('count a run once that an operator resets, which goes on where no more may begin', async () => {
    const { url } = await startBoth(CALLS, config({ day: { max_runs: 1 } }))
    const named = { headers: { 'x-governor-session': 'a' } }
    const { messages } = await runAgent(url, START, { ...named, max: 2 })
    await ask(url, '/governor/sessions/a/reset', { method: 'POST', body: {} })
    expect((await callModel(url, messages, named)).governor).toBeUndefined()
    expect((await ask(url, '/governor/budget')).json).toMatchObject({ budget: [{ used: { iterations: 3, runs: 1 } }] })
    expect((await callModel(url, START)).governor).toMatchObject({ terminal_reason: 'max_runs' })
  })

  it('survive a restart, and are one for two Governors beside each other', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'governor-scopes-'))
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
    const limited = config(
      { day: { max_iterations: 3 }, week: { per: 'model', max_runs: 9 } },
      { usage: { journal: join(folder, 'usage.jsonl') } },
    )
    const [one, other] = [await startBoth(CALLS, limited), await startBoth(CALLS, limited)]
    await post(one.url, plain('one'))
    await vi.waitFor(async () => {
      const { json: body } = await ask(other.url, '/governor/budget')
      expect(body).toMatchObject({ budget: [{ scope: 'day', used: { iterations: 1 } }, { scope: 'week' }] })
    }, 20_000)
    await post(other.url, plain('two'))
    await one.governor.close()
    await other.governor.close()
    const third = await startBoth(CALLS, limited)
    const { json } = await ask(third.url, '/governor/budget')
    expect(json).toMatchObject({ budget: [{ scope: 'day' }, { scope: 'week', per: 'model', subject: 'gpt-4.1' }] })
    expect(await closedBy(post(third.url, plain('three')))).toBeUndefined()
    expect(await closedBy(post(third.url, plain('four')))).toMatchObject({ budget_used: 3 })
  })
})
