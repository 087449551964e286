/** A limit that was reached stays reached, whatever function of Governor throws then, once or always. */
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { ask } from '../support/admin.ts'
import { afterStep, callModel } from '../support/agent.ts'
import { breakable, breakModules } from '../support/breakable.ts'
import { type ChatMessage, type Received, startProvider } from '../support/provider.ts'

/** A function that throws, once or with each call. */
interface Broken {
  readonly name: string
  readonly isAlways: boolean
}

const faults = { isOn: false, broken: undefined as Broken | undefined, called: new Set<string>() }
const faultOf = (name: string) => {
  if (!faults.isOn) return undefined
  faults.called.add(name)
  const { broken } = faults
  if (broken?.name !== name) return undefined
  if (!broken.isAlways) faults.broken = undefined
  return new Error(`a fault in ${name}`)
}

// All that is imported from here on can be broken.
let repair: () => void
let support: typeof import('../support/governor.ts') & typeof import('../support/stores.ts')
let dialects: typeof import('../../src/dialect/index.ts')['DIALECTS']
beforeAll(async () => {
  repair = breakModules('core', faultOf)
  support = { ...(await import('../support/governor.ts')), ...(await import('../support/stores.ts')) }
  dialects = (await import('../../src/dialect/index.ts')).DIALECTS
})
afterAll(() => repair())

const METERS = {
  max_iterations: 1,
  max_tool_calls: 1,
  max_tokens: 50,
  max_task_tokens: 5,
  max_cost_usd: 0.001,
  max_seconds: 5,
}
const { max_iterations, ...others } = METERS
const ofRuns = (scope: string) =>
  Object.entries(scope === 'run' ? others : METERS).map(([setting, max]) => [
    `${scope}.${setting}`,
    { [scope]: { [setting]: max } },
  ])
/** The limits, each as its own budget; an operator pauses the agent where there is none. */
const LIMITS = Object.fromEntries([
  ['max_iterations', { max_iterations }],
  ...ofRuns('run'),
  ...ofRuns('session'),
  ['hour', { hour: { max_cost_usd: 0.001 } }],
  ['day', { day: { max_iterations: 1 } }],
  ['week', { week: { per: 'credential', max_tokens: 50 } }],
  ['month', { month: { per: 'model', max_cost_usd: 0.001 } }],
  ['header', { day: { per: 'header:x-team', max_iterations: 1 } }],
  ['key', { day: { per: 'key', max_tokens: 50 } }],
  ['rate', { velocity: { max_iterations: 1, over: '1m' } }],
  ['pause', undefined],
]) as Readonly<Record<string, object | undefined>>

const mayCall = ({ json }: Received) => json.tools !== undefined && json.tool_choice !== 'none'
let agents = 0

async function start(budget: object, isNamed: boolean) {
  const provider = await startProvider((request, at) =>
    mayCall(request)
      ? { calls: [{ id: `call_drawn_${at}`, name: 'search', arguments: { query: `q${at}` } }] }
      : { text: 'All I know.' },
  )
  onTestFinished(() => provider.close())
  const clock = { now: 1_760_000_000_000 }
  const models = [{ model: 'gpt-test', price: { input: 1_000, output: 10_000 } }]
  const running = await support.startGovernor(
    provider.url,
    { budget, models },
    {
      store: breakable({ ...support.createStore(10_000) }, faultOf, 'store'),
      dialects: breakable([...dialects], faultOf, 'dialect'),
      now: () => clock.now,
    },
  )
  const agentOf = () => {
    agents++
    const headers = { authorization: `Bearer k${agents}`, ...(isNamed && { 'x-governor-session': `s${agents}` }) }
    let messages: ChatMessage[] = [{ role: 'user', content: `Task ${agents}` }]
    /** Sends the next request, in which a function may throw; `passed`: the requests that let the model call tools. */
    return async (broken?: Broken) => {
      clock.now += 3_000
      const from = provider.requests.length
      Object.assign(faults, { broken, isOn: true })
      const step = await callModel(running.url, messages, { headers })
      faults.isOn = false
      if (step.message.tool_calls) messages = afterStep(messages, step)
      return { ...step, passed: provider.requests.slice(from).filter(mayCall).length }
    }
  }
  return { ...running, agentOf }
}

/** Returns an eighth of the functions that were called, others for each limit, in both ways to throw. */
const brokenAt = (limit: number): Broken[] =>
  [...faults.called]
    .filter((_, at) => at % 8 === limit % 8)
    .flatMap((name) => [true, false].map((isAlways) => ({ name, isAlways })))

describe.each([{ isNamed: true }, { isNamed: false }])('a fault of any function (session named: $isNamed)', (one) => {
  it.each(Object.entries(LIMITS))('lets no request through after this limit is reached: %s', async (name, budget) => {
    const { agentOf, url } = await start(budget ?? {}, one.isNamed)
    const next = agentOf()
    for (let steps = budget ? 9 : 1; steps > 0; steps--) if ((await next()).governor) break
    if (!budget) await ask(url, '/governor/pause', { method: 'POST', body: {} })
    faults.called.clear()
    await next()
    const all = brokenAt(Object.keys(LIMITS).indexOf(name) + (one.isNamed ? 0 : 4))
    expect(all.length).toBeGreaterThan(8)
    for (const broken of all) expect(await next(broken), JSON.stringify(broken)).toMatchObject({ passed: 0 })
  })

  it('costs no request before a limit is reached', async () => {
    const { agentOf } = await start({ max_iterations: 5 }, one.isNamed)
    faults.called.clear()
    await agentOf()()
    for (const broken of [...brokenAt(0), ...brokenAt(one.isNamed ? 2 : 5)]) {
      const next = agentOf()
      for (const step of [await next(), await next(broken)])
        expect(step, JSON.stringify(broken)).toMatchObject({ status: 200, passed: 1 })
    }
  })
})
