/** Models whose price is not known: what everything says about their cost, and what a limit on cost makes of them. */
import { describe, expect, it } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import { createCatalogue } from '../../src/usage/catalogue.ts'
import { ask, firstSession, listed } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'
import { WAYS } from '../support/ways.ts'

/** A cost of nothing, such as `$0` and `$0.00`, and not a limit such as `$0.0050`. */
const NOTHING = /\$0(?:\.0+)?(?![.\d])/

const named = (name: string) => ({ headers: { 'x-governor-session': name } })

async function printed(url: string, ...args: readonly string[]): Promise<string> {
  const terminal = captureTerminal()
  await run([...args, '--url', url], terminal)
  return terminal.printed
}

/** Every cost that the API states about the first session, at any depth. */
function costsIn(value: unknown): readonly Record<string, unknown>[] {
  if (typeof value !== 'object' || value === null) return []
  const own = 'cost_usd' in value ? [value as Record<string, unknown>] : []
  return [...own, ...Object.values(value).flatMap(costsIn)]
}

const LIMITED = ['run', 'session'].flatMap((scope) =>
  WAYS.flatMap((way) => [false, true].map((stream) => ({ ...way, scope, stream }))),
)
const budget = (scope: string, unknown_price: string) => ({
  max_iterations: 4,
  unknown_price,
  [scope]: { max_cost_usd: 0.005 },
})

describe('an unknown price', () => {
  it.each(LIMITED)('is no $0.00 anywhere, and is reported once ($way, $scope, stream: $stream)', async (one) => {
    const { url, logs, events } = await startBoth(one.script, {
      budget: budget(one.scope, 'warn'),
      models: [{ model: 'free', price: { input: 0, output: 0 } }],
    })
    const steps = await one.run(url, one.stream)
    expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations' })
    const session = await firstSession(url)
    const costs = [...costsIn(session), ...costsIn(await listed(url))]
    expect(costs.length).toBeGreaterThan(5)
    for (const { cost_usd, price_known } of costs)
      expect({ cost_usd, price_known }).toEqual({ cost_usd: null, price_known: false })
    expect(session.cost_usd_per_minute).toBeNull()
    for (const { meters } of [session, ...session.threads])
      expect(meters.find(({ name }) => name === 'cost')?.used).toBeNull()
    expect(await printed(url, 'sessions')).not.toMatch(NOTHING)
    expect(await printed(url, 'session', session.id)).not.toMatch(NOTHING)
    expect(events.filter(({ kind }) => kind === 'unpriced_model')).toMatchObject([{ handling: 'warn' }])
    expect(logs.filter((line) => line.includes('price not known'))).toHaveLength(1)
  })

  it.each(LIMITED)(
    'counts as that of the dearest model if so configured ($way, $scope, stream: $stream)',
    async (one) => {
      const { url, events } = await startBoth(one.script, { budget: budget(one.scope, 'estimate') })
      const steps = await one.run(url, one.stream)
      expect(steps.at(-1)?.governor).toMatchObject({
        terminal_state: 'budget_exceeded',
        terminal_reason: 'max_cost',
      })
      for (const { cost_usd, price_known, cost_estimated } of costsIn(await firstSession(url)))
        expect({ isCost: Number(cost_usd) > 0, price_known, cost_estimated }).toEqual({
          isCost: true,
          price_known: false,
          cost_estimated: true,
        })
      expect(await printed(url, 'sessions')).toMatch(/ ~\$\d/)
      expect(events.filter(({ kind }) => kind === 'unpriced_model')).toMatchObject([{ handling: 'estimate' }])
    },
  )

  it.each(LIMITED)(
    'ends the run before its model is asked if so configured ($way, $scope, stream: $stream)',
    async (one) => {
      const { url, provider, events } = await startBoth(one.script, { budget: budget(one.scope, 'refuse') })
      const steps = await one.run(url, one.stream)
      expect(steps).toHaveLength(1)
      expect(steps[0]?.headers.get('x-governor-terminal-reason')).toBe('max_cost')
      expect(steps[0]?.governor).toMatchObject({
        terminal_state: 'budget_exceeded',
        terminal_reason: 'max_cost',
        has_final_answer: false,
        budget_used: 0,
        budget_max: 0.005,
      })
      expect(provider.requests).toEqual([])
      expect(events.filter(({ kind }) => kind === 'unpriced_model')).toMatchObject([{ handling: 'refuse' }])
    },
  )

  it('that is refused is answered with a text that says so, again for each request, until a price is known', async () => {
    const { url, provider } = await startBoth(runaway(), {
      budget: budget('run', 'refuse'),
      models: [{ model: 'mine', price: { input: 1, output: 1 } }],
    })
    for (let again = 0; again < 3; again++) {
      const { status, message, governor } = await callModel(url, START, named('one'))
      expect(status).toBe(200)
      expect(message.content).toMatch(/price is not known, and there is a limit on cost of \$0\.0050/)
      expect(governor).toMatchObject({ terminal_reason: 'max_cost' })
    }
    expect(provider.requests).toEqual([])
    expect(await firstSession(url)).toMatchObject({ state: 'stopped', terminal_reason: 'max_cost' })
    const { headers } = await callModel(url, START, { ...named('one'), body: { model: 'mine' } })
    expect(headers.get('x-governor-terminal-reason')).toBeNull()
    expect(provider.requests).toHaveLength(1)
  })

  it.each([
    ['without a limit on cost', { run: {} }, {}],
    ['in mode observe', { run: { max_cost_usd: 1 } }, { mode: 'observe' }],
    ['where the budget is off', { enabled: false, run: { max_cost_usd: 1 } }, {}],
  ])('is never refused %s', async (_, limits, more) => {
    const { url, provider } = await startBoth(runaway(), {
      budget: { max_iterations: 0, unknown_price: 'refuse', ...limits },
      ...more,
    })
    expect((await callModel(url, START)).headers.get('x-governor-verdict')).toBe('allow')
    expect(provider.requests).toHaveLength(1)
  })

  it('is refused only for the requests that an override matches', async () => {
    const { url, provider } = await startBoth(runaway(), {
      budget: { run: { max_cost_usd: 1 } },
      overrides: [{ model: 'strict-*', budget: { unknown_price: 'refuse' } }],
    })
    await callModel(url, START, { body: { model: 'strict-1' } })
    expect(provider.requests).toHaveLength(0)
    await callModel(url, START, { body: { model: 'other' } })
    expect(provider.requests).toHaveLength(1)
  })

  it('makes a sum with known prices a part of the cost, and every place says so', async () => {
    const { url } = await startBoth(runaway(), {
      models: [{ model: 'mine', price: { input: 1_000, output: 0 } }],
    })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1, body: { model: 'mine' } })
    expect(await firstSession(url)).toMatchObject({ cost_usd: 0.1, price_known: true, cost_estimated: false })
    await runAgent(url, messages, { ...named('one'), max: 1 })
    const session = await firstSession(url)
    expect(session).toMatchObject({ cost_usd: 0.1, price_known: false, cost_estimated: false })
    expect(session.iterations.map(({ usage }) => [usage.cost_usd, usage.price_known])).toEqual([
      [0.1, true],
      [null, false],
    ])
    expect(await printed(url, 'sessions')).toContain('≥$0.10')
    expect(await printed(url, 'session', session.id)).toContain('≥$0.10')
  })

  it('is known to the log from the first answer on, without a limit on cost and with one', async () => {
    const { url, logs, until } = await startBoth(runaway())
    await runAgent(url, START, { max: 2 })
    await until(({ kind }) => kind === 'unpriced_model')
    const lines = logs.filter((line) => line.includes('price not known')).map((line) => JSON.parse(line))
    expect(lines).toMatchObject([{ level: 30, model: 'gpt-test', upstream: 'openai' }])
    expect((await ask(url, '/metrics')).text).not.toMatch(/governor_cost_usd_total\{/)
  })
})

describe('the dearest known price', () => {
  const million = { input: 1_000_000, output: 1_000_000 }
  const at = (name: string, origin = 'http://127.0.0.1') => ({ name, origin, prefix: '' })

  it.each(['openai', 'anthropic'])('of %s is at least that of each of its models', async (name) => {
    const catalogue = createCatalogue([])
    expect(catalogue.dearestAt(at(name))).toBeUndefined()
    await catalogue.load()
    const most = catalogue.dearestAt(at(name))?.(million) ?? 0
    for (const model of ['gpt-4o', 'gpt-4', 'o1-pro', 'claude-opus-4-1', 'claude-sonnet-4-5'])
      if (model.startsWith('claude') === (name === 'anthropic'))
        expect(catalogue.modelAt(model, at(name)).price?.(million)).toBeLessThanOrEqual(most)
  })

  it('of an upstream that the package does not know is the dearest configured one, if any', async () => {
    const price = (input: number) => ({ input, output: 0 })
    const catalogue = createCatalogue([
      { model: 'a', price: price(1) },
      { model: 'b', upstream: 'mine', price: price(3) },
      { model: 'c', upstream: 'other', price: price(9) },
    ])
    await catalogue.load()
    expect(catalogue.dearestAt(at('mine'))?.(million)).toBe(3)
    const none = createCatalogue([])
    await none.load()
    expect(none.dearestAt(at('mine'))).toBeUndefined()
  })
})
