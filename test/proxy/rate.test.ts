/** Limits on the rate of a session: its agents read a caution and a notice, and then end or wait. */
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import type { GovernorOptions } from '../../src/app.ts'
import { ask } from '../support/admin.ts'
import { EVENTS, LIST, runawayGemini, runGemini, WHOLE } from '../support/gemini.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { type Script, startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { whole } from '../support/reducers.ts'
import type { Item } from '../support/responses.ts'
import {
  type AgentOptions,
  createAgent,
  human,
  keyOf,
  type Model,
  runShortened,
  SETTINGS,
  searcher,
  startModel,
} from '../support/shortened-agent.ts'
import { FORMS } from '../support/transcripts.ts'
import { openSocket } from '../support/websocket-client.ts'
import { startSocketProvider } from '../support/websocket-provider.ts'

const NOON = Date.parse('2026-11-27T12:00:00Z')
const MINUTE = 60_000
const velocity = (limits: object, more: object = {}) => ({ budget: { time_zone: 'UTC', velocity: limits, ...more } })

/** A model, a Governor with a clock that the test sets, and agents in front of it. */
async function start(config: { [key: string]: unknown }, model: Model = searcher, more: Partial<GovernorOptions> = {}) {
  const server = await startModel(model)
  onTestFinished(() => server.close())
  const clock = { now: NOON }
  const key = keyOf({})
  const running = await startGovernor(server.url, config, { now: () => clock.now, ...more })
  const agentOf = (options: Partial<AgentOptions> = {}) =>
    createAgent({
      ...{ url: running.url, dialect: 'chat', stream: false, reducer: whole, session: 'one', key },
      ...options,
    })
  return { ...running, model: server, clock, agentOf, key }
}

const NOTICE = /\[BUDGET: (\w+) ([^ ]+ per minute)\. (You (?:have|MUST))/
const saidIn = (requests: readonly { readonly text: string }[]) =>
  requests.map(({ text }) => NOTICE.exec(text)?.slice(1, 4).join(' '))

/** Returns a model whose answers, but for the first three, wait until they are let go: `open` has one for each. */
function holding() {
  const open: (() => void)[] = []
  const model: Model = async (request) => {
    if (request.number > 3) await new Promise<void>((resolve) => open.push(resolve))
    return searcher(request)
  }
  return { open, model }
}

describe('a limit on the rate', () => {
  it.each(SETTINGS)('cautions from half, gives one notice, and ends the run: %s', async (_, setting) => {
    const { model, agentOf } = await start(velocity({ max_iterations: 6, over: '1m' }))
    const seen = await runShortened(agentOf(setting), 12)
    expect(seen.map(({ status }) => status)).toEqual(seen.map(() => 200))
    expect(seen.at(-1)?.answer).toMatchObject({
      hasEnded: true,
      calls: [],
      governor: {
        terminal_state: 'tool_limit_reached',
        terminal_reason: 'max_iterations',
        has_final_answer: true,
        budget_used: 6,
        budget_max: 6,
        scope: 'minute',
        resets_at: '2026-11-27T12:01:00.000Z',
      },
    })
    // The first answer of a session without an id counts from its second request on.
    expect(saidIn(model.requests)).toEqual([
      undefined,
      undefined,
      'Iteration 3/6 per minute You have',
      'Iteration 4/6 per minute You have',
      'Iteration 5/6 per minute You have',
      'Iteration 6/6 per minute You MUST',
      undefined,
    ])
    expect(model.requests.at(-1)?.text).toContain("You've reached this session's iteration limit per minute.")
  })

  it('on cost or tokens also gives one notice to a run that one answer brought above it', async () => {
    // Each answer uses 110 tokens.
    const { model, agentOf } = await start(velocity({ max_tokens: 50, over: '2m' }))
    const seen = await runShortened(agentOf(), 9)
    expect(saidIn(model.requests)).toEqual([undefined, 'Tokens 55/50 per minute You MUST', undefined])
    expect(seen.at(-1)).toMatchObject({ reason: 'max_tokens', hasFinalAnswer: true })
    expect(seen.at(-1)?.answer.governor).toMatchObject({ terminal_state: 'budget_exceeded', budget_used: 50 })
  })

  it('leaves a session alone that is below it', async () => {
    const { model, agentOf, clock } = await start(velocity({ max_iterations: 3, over: '5m' }))
    const agent = agentOf()
    for (let at = 0; at < 30; at++) {
      clock.now += MINUTE
      expect((await agent.step()).verdict).toBe('allow')
    }
    expect(model.requests).toHaveLength(30)
  })

  it('keeps an ended run ended when the rate has fallen, until its user speaks', async () => {
    const { model, agentOf, clock } = await start(velocity({ max_iterations: 3, over: '1m' }))
    const agent = agentOf()
    await runShortened(agent, 9)
    const asked = model.requests.length
    clock.now += 10 * MINUTE
    const ended = await agent.send(agent.history.slice(0, -1))
    expect(ended).toMatchObject({ reason: 'max_iterations', verdict: 'stop' })
    expect(model.requests).toHaveLength(asked)
    agent.say(human('Go on, please.'))
    expect(await agent.step()).toMatchObject({ reason: undefined, verdict: 'allow' })
  })

  it('gives a new run a text of Governor, which says when to come again', async () => {
    const { model, agentOf } = await start(velocity({ max_iterations: 2, over: '1m' }))
    const agent = agentOf()
    await runShortened(agent, 9)
    const asked = model.requests.length
    agent.say(human('Go on, please.'))
    const { answer } = await agent.step()
    expect(answer.text).toContain("this session's iteration limit per minute, 2, is used up")
    expect(answer.text).toContain('2026-11-27 12:01 UTC')
    expect(answer.governor).toMatchObject({ scope: 'minute', has_final_answer: false })
    expect(model.requests).toHaveLength(asked)
  })

  it('lets a new run begin when it comes again at the time that its text says, and else says another time', async () => {
    const { model, agentOf, clock } = await start(velocity({ max_iterations: 2, over: '1m' }))
    const [agent, other] = [agentOf(), agentOf()]
    await runShortened(agent, 9)
    agent.say(human('Go on, please.'))
    const messages = agent.history
    const again = async () => (await agent.send(messages)).answer.text
    expect(await again()).toContain('2026-11-27 12:01 UTC')
    clock.now += MINUTE
    other.say(human('Something else.'))
    for (let at = 0; at < 2; at++) await other.step()
    expect(await again()).toContain('2026-11-27 12:02 UTC')
    const asked = model.requests.length
    clock.now += MINUTE
    expect((await agent.send(messages)).reason).toBeUndefined()
    expect(model.requests).toHaveLength(asked + 1)
  })

  it('counts requests without tools, and ends a session of nothing else', async () => {
    const { url, model } = await start(velocity({ max_iterations: 3, over: '1m' }))
    const texts: string[] = []
    for (let at = 0; at < 5; at++) {
      const response = await fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'x-governor-session': 'chat' },
        body: JSON.stringify({ model: 'gpt', messages: [{ role: 'user', content: `Question ${at}` }] }),
      })
      expect(response.status).toBe(200)
      texts.push(await response.text())
    }
    expect(model.requests).toHaveLength(3)
    expect(texts.at(-1)).toContain('"scope":"minute"')
  })

  it('ends nothing where it is only observed, and says what it would have done', async () => {
    for (const [action, expected] of [
      ['stop', 'stop'],
      ['slow', 'slow'],
    ])
      for (const config of [
        velocity({ max_iterations: 2, over: '1m', action, mode: 'observe' }),
        { ...velocity({ max_iterations: 2, over: '1m', action }), mode: 'observe' },
      ]) {
        const { url, provider } = await startBoth(CALLS, config, { now: () => NOON })
        const observed: (string | null)[] = []
        for (const { headers } of await chat(url, 4)) observed.push(headers.get('x-governor-observed'))
        expect(observed.at(-1)).toBe(expected)
        expect(provider.requests).toHaveLength(4)
      }
  })

  it('is over with a reset by an operator', async () => {
    const { url, model, agentOf, clock } = await start(velocity({ max_iterations: 2, over: '1m' }))
    const agent = agentOf()
    await runShortened(agent, 9)
    const { json } = await ask(url, '/governor/sessions')
    const [{ id } = { id: '' }] = (json as { sessions: { id: string }[] }).sessions
    clock.now += 1_000
    await ask(url, `/governor/sessions/${id}/reset`, { method: 'POST', body: {} })
    const asked = model.requests.length
    expect(await agent.send(agent.history.slice(0, -1))).toMatchObject({ reason: undefined })
    expect(model.requests).toHaveLength(asked + 1)
  })
})

describe('a rate that slows', () => {
  const slow = velocity({ max_iterations: 3, over: '1m', action: 'slow' })
  const isWaiting = ({ kind }: { readonly kind: string }) => kind === 'slowed'

  it.each(SETTINGS)('has a request wait until it is lower, and lets it through: %s', async (_, setting) => {
    const { model, agentOf, clock, until, url, logs } = await start(slow)
    const agent = agentOf(setting)
    for (let at = 0; at < 3; at++) expect((await agent.step()).verdict).toBe('allow')
    const waiting = agent.step()
    await until(isWaiting)
    expect(model.requests).toHaveLength(3)
    const { json } = await ask(url, '/governor/sessions')
    expect(json).toMatchObject({ sessions: [{ state: 'slowed' }] })
    clock.now += MINUTE
    const seen = await waiting
    expect(seen).toMatchObject({ status: 200, verdict: 'allow', iteration: '4/300' })
    expect(seen.answer).toMatchObject({ hasEnded: true, governor: undefined })
    expect(saidIn(model.requests)).toEqual([undefined, undefined, undefined, undefined])
    expect((await ask(url, '/governor/sessions')).json).toMatchObject({ sessions: [{ state: 'working' }] })
    expect((await ask(url, '/metrics')).text).toContain('governor_slowed_requests_total{outcome="below"} 1')
    expect(logs.join('')).toContain('session slowed: its rate is above the limit')
  })

  it('says in the response how long it waited', async () => {
    const { url, until, clock } = await start(slow)
    await chat(url, 3)
    const waiting = chat(url, 1)
    await until(isWaiting)
    clock.now += MINUTE
    const [response] = await waiting
    expect(Number(response?.headers.get('x-governor-slowed'))).toBeGreaterThanOrEqual(0)
  })

  it('lets one request of a session through at a time, in the order in which they came', async () => {
    const { open, model } = holding()
    const { model: server, agentOf, clock, events, until } = await start(slow, model)
    const main = agentOf()
    for (let at = 0; at < 3; at++) await main.step()
    const agents = [1, 2, 3].map((at) =>
      agentOf({ task: `task ${at}`, headers: { 'x-claude-code-agent-id': `a${at}` } }),
    )
    const answered: Promise<unknown>[] = []
    for (const [at, agent] of agents.entries()) {
      answered.push(agent.step())
      await until(() => events.filter(isWaiting).length === at + 1)
    }
    clock.now += MINUTE
    const order: string[] = []
    for (let at = 0; at < 3; at++) {
      await vi.waitFor(() => expect(open).toHaveLength(1), 20_000)
      order.push(/task \d/.exec(server.requests.at(-1)?.text ?? '')?.[0] ?? '')
      open.pop()?.()
    }
    await Promise.all(answered)
    expect(order).toEqual(['task 1', 'task 2', 'task 3'])
  })

  it('lets no request that comes later go before those that wait, also if the rate is below the limit then', async () => {
    const { open, model } = holding()
    const { model: server, agentOf, clock, events, until } = await start(slow, model)
    // The next minute begins while they wait.
    clock.now += MINUTE - 10_000
    const main = agentOf()
    for (let at = 0; at < 3; at++) await main.step()
    const agents = [1, 2, 3].map((at) =>
      agentOf({ task: `task ${at}`, headers: { 'x-claude-code-agent-id': `a${at}` } }),
    )
    const answered: Promise<unknown>[] = []
    for (const [at, agent] of agents.slice(0, 2).entries()) {
      answered.push(agent.step())
      await until(() => events.filter(isWaiting).length === at + 1)
    }
    clock.now += 15_000
    await vi.waitFor(() => expect(open).toHaveLength(1), 20_000)
    answered.push(Promise.resolve(agents[2]?.step()))
    for (let at = 0; at < 3; at++) {
      await vi.waitFor(() => expect(open.length).toBeGreaterThan(at), 20_000)
      open[at]?.()
    }
    await Promise.all(answered)
    const order = server.requests.slice(3).map(({ text }) => /task \d/.exec(text)?.[0])
    expect(order).toEqual(['task 1', 'task 2', 'task 3'])
    // The third did not reach the limit.
    expect(events.filter(isWaiting)).toHaveLength(2)
    expect(events.filter(({ kind }) => kind === 'slowing_ended')).toHaveLength(3)
  })

  it('lets agents of one session work side by side again once those that reached the limit had their turn', async () => {
    const most = 20
    const open: (() => void)[] = []
    const model: Model = async (request) => {
      if (request.number > most) await new Promise<void>((resolve) => open.push(resolve))
      return searcher(request)
    }
    const limited = velocity({ max_iterations: most, over: '1m', action: 'slow' })
    const { agentOf, clock, events, until } = await start(limited, model)
    clock.now += MINUTE - 10_000
    const main = agentOf()
    for (let at = 0; at < most; at++) await main.step()
    const agents = [1, 2, 3].map((at) =>
      agentOf({ task: `task ${at}`, headers: { 'x-claude-code-agent-id': `a${at}` } }),
    )
    const work: Promise<unknown>[] = []
    for (const [at, agent] of agents.entries()) {
      const steps = async () => {
        for (let step = 0; step < 4; step++) await agent.step()
      }
      work.push(steps())
      await until(() => events.filter(isWaiting).length === at + 1)
    }
    // From here on the rate is below the limit, and each of them sends its next request at once.
    clock.now += 15_000
    const answerOne = async () => {
      await vi.waitFor(() => expect(open.length).toBeGreaterThan(0), 20_000)
      open.shift()?.()
    }
    for (let at = 0; at < 3; at++) await answerOne()
    await vi.waitFor(() => expect(open).toHaveLength(3), 10_000)
    for (let at = 3; at < 12; at++) await answerOne()
    await Promise.all(work)
  })

  it('ends the wait of a client that leaves, and keeps nothing of its request', async () => {
    const limits = { ...slow.budget, day: { max_iterations: 100 } }
    const { url, model, agentOf, clock, until, events, key } = await start({ budget: limits })
    const agent = agentOf()
    for (let at = 0; at < 3; at++) await agent.step()
    const leaving = new AbortController()
    const left = fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      signal: leaving.signal,
      headers: { authorization: `Bearer ${key}`, 'x-governor-session': 'one' },
      body: JSON.stringify(FORMS.chat.body(agent.history)),
    }).catch(() => 'left')
    await until(isWaiting)
    leaving.abort()
    expect(await left).toBe('left')
    await until(({ kind }) => kind === 'slowing_ended')
    expect(events.find(({ kind }) => kind === 'slowing_ended')).toMatchObject({ outcome: 'client_gone' })
    const { json } = await ask(url, '/governor/budget')
    expect(json).toMatchObject({ budget: [{ used: { iterations: 3 }, reserved: { iterations: 0 } }] })
    // No request stands before the next one.
    clock.now += MINUTE
    expect(await agent.step()).toMatchObject({ status: 200, iteration: '4/300' })
    expect(model.requests).toHaveLength(4)
    expect(events.filter(isWaiting)).toHaveLength(1)
  })

  it.each([true, false])(
    'holds nothing of a limit of a day while it waits, so that no other agent waits for it: tools %s',
    async (hasTools) => {
      const limits = { ...slow.budget, day: { max_tokens: 10_000 } }
      const { url, model, agentOf, clock, until } = await start({ budget: limits })
      const agent = agentOf()
      for (let at = 0; at < 3; at++) await agent.step()
      const body = hasTools
        ? FORMS.chat.body(agent.history)
        : { model: 'gpt', messages: [{ role: 'user', content: 'A title.' }] }
      const waiting = fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { authorization: `Bearer ${model.requests[0]?.key}`, 'x-governor-session': 'one' },
        body: JSON.stringify(body),
      })
      await until(isWaiting)
      const sums = async () => (await ask(url, '/governor/budget')).json
      await expect.poll(sums).toMatchObject({ budget: [{ used: { tokens: 330 }, reserved: { tokens: 0 } }] })
      clock.now += MINUTE
      expect((await waiting).status).toBe(200)
      await expect.poll(sums).toMatchObject({ budget: [{ used: { tokens: 440 }, reserved: { tokens: 0 } }] })
    },
  )

  it('has requests without tools wait as well', async () => {
    const { url, model, clock, until } = await start(slow)
    const title = () =>
      fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'x-governor-session': 'chat' },
        body: JSON.stringify({ model: 'gpt', messages: [{ role: 'user', content: 'A title.' }] }),
      })
    for (let at = 0; at < 3; at++) await (await title()).text()
    const waiting = title()
    await until(isWaiting)
    expect(model.requests).toHaveLength(3)
    clock.now += MINUTE
    expect(await (await waiting).json()).not.toHaveProperty('governor')
  })
})

const CALLS: Script = ({ json }, number) =>
  json.tools && json.tool_choice !== 'none'
    ? { calls: [{ name: 'search', arguments: { query: number } }] }
    : { text: 'It is 42.' }

/** Sends so many requests of one agent. */
async function chat(urls: string | readonly string[], requests: number): Promise<Response[]> {
  const messages: object[] = [{ role: 'user', content: 'Go.' }]
  const all: Response[] = []
  for (let at = 0; at < requests; at++) {
    const url = [urls].flat()[at % [urls].flat().length]
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-governor-session': 'one' },
      body: JSON.stringify({ model: 'm', tools: [{ type: 'function', function: { name: 'search' } }], messages }),
    })
    all.push(response)
    const { choices } = (await response.clone().json()) as { choices: { message: { tool_calls?: { id: string }[] } }[] }
    const [{ message } = { message: {} }] = choices as { message: { tool_calls?: { id: string }[] } }[]
    messages.push(message)
    for (const { id } of message.tool_calls ?? []) messages.push({ role: 'tool', tool_call_id: id, content: `${at}` })
  }
  return all
}

describe('a limit on the rate in other connections', () => {
  it.each([WHOLE, EVENTS])('ends a run over Gemini: %s', async (path) => {
    const { url, provider } = await startBoth(runawayGemini(), velocity({ max_iterations: 3, over: '1m' }), {
      now: () => NOON,
    })
    const { last } = await runGemini(url, path)
    expect(last).toMatchObject({ status: 200, text: 'This is what I found so far.', calls: [] })
    expect(last?.governor).toMatchObject({ terminal_reason: 'max_iterations', scope: 'minute', budget_max: 3 })
    expect(provider.requests).toHaveLength(4)
  })

  it.each([WHOLE, EVENTS, LIST])('has a request over Gemini wait until it is lower: %s', async (path) => {
    const clock = { now: NOON }
    const limits = velocity({ max_iterations: 3, over: '1m', action: 'slow' })
    const { url, provider, until } = await startBoth(runawayGemini(), limits, { now: () => clock.now })
    const run = runGemini(url, path, 4)
    await until(({ kind }) => kind === 'slowed')
    expect(provider.requests).toHaveLength(3)
    clock.now += MINUTE
    const { seen, last } = await run
    expect(seen.map(({ status, governor, calls }) => [status, governor, calls.length])).toEqual(
      Array(4).fill([200, undefined, 1]),
    )
    expect(last?.headers.get('x-governor-iteration')).toBe('4/300')
    expect(Number(last?.headers.get('x-governor-slowed'))).toBeGreaterThanOrEqual(0)
    expect(provider.requests[3]?.body.toString()).not.toContain('[BUDGET')
    expect(provider.requests).toHaveLength(4)
  })

  it('ends and slows a session on a WebSocket', async () => {
    for (const action of ['stop', 'slow']) {
      const provider = await startSocketProvider(({ json }, number) =>
        json.tool_choice === 'none'
          ? { text: 'Found.' }
          : { calls: [{ name: 'search', arguments: { query: number } }] },
      )
      onTestFinished(() => provider.close())
      const clock = { now: NOON }
      const config = { ...velocity({ max_iterations: 2, over: '1m', action }), server: { websocket: 'guard' } }
      const { url, until } = await startGovernor(provider.url, config, { now: () => clock.now })
      const client = await openSocket(url, { 'session-id': 's-1' })
      const tools = [{ type: 'function', name: 'search', parameters: { type: 'object' } }]
      const asked = { model: 'gpt-5', tools, store: false }
      const endOf = (events: readonly Item[]) => events.at(-1)?.['response'] as Item
      const next = ({ id, output }: Item) => {
        const input = (output as Item[])
          .filter(({ type }) => type === 'function_call')
          .map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'Nothing.' }))
        return client.ask({ ...asked, previous_response_id: id, input })
      }
      let response = endOf(await client.ask({ ...asked, input: [{ role: 'user', content: 'Find it.' }] }))
      response = endOf(await next(response))
      const third = next(response)
      if (action === 'slow') {
        await until(({ kind }) => kind === 'slowed')
        clock.now += MINUTE
      }
      const { governor } = endOf(await third)
      if (action === 'slow') expect(governor).toBeUndefined()
      else expect(governor).toMatchObject({ terminal_reason: 'max_iterations', scope: 'minute' })
    }
  })
})

describeWith('redis-server', 'a limit on the rate with two replicas', () => {
  it('counts what both have answered', async () => {
    const provider = await startProvider(CALLS)
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const shared = { store: 'redis', redis: { url: redis.url, timeout: '5s' } }
    const config = { ...velocity({ max_iterations: 1, over: '5m' }), ...shared }
    const urls = (await Promise.all([0, 1].map(() => startGovernor(provider.url, config)))).map(({ url }) => url)
    // An answer may not be in Redis yet when the next two requests come.
    const responses = await chat(urls, 14)
    const last = (await responses.at(-1)?.json()) as { governor?: object }
    expect(last.governor).toMatchObject({ terminal_reason: 'max_iterations', scope: 'minute', budget_used: 1 })
    expect(provider.requests.length).toBeLessThanOrEqual(12)
  })
})
