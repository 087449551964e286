/** Requests that wait at a limit until an operator extends or stops their run. */
import { once } from 'node:events'
import http from 'node:http'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { checkConfig } from '../../src/config/load.ts'
import { act, ask, firstSession, listed, type Shown } from '../support/admin.ts'
import { afterStep, callModel, runAgent, START, type Step, TOOLS } from '../support/agent.ts'
import { type Running, startBoth, startGovernor } from '../support/governor.ts'
import { runawayMessages } from '../support/messages.ts'
import { describeWith } from '../support/programs.ts'
import { type ChatMessage, runaway, type Script, startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { runResponses } from '../support/responses-agent.ts'

const budget = { max_iterations: 3, adaptive: false, caution_threshold: 1, warning_threshold: 1 }
const LONG = { mode: 'ask', ask_timeout: '10m' }
const SHORT = { mode: 'ask', ask_timeout: '50ms' }
const named = { headers: { 'x-governor-session': 'one' } }

/** A run that has used its three iterations, up to its next request. */
async function atLimit(url: string): Promise<readonly ChatMessage[]> {
  const { messages } = await runAgent(url, START, { ...named, max: 3 })
  return messages
}

async function started(stop: object, script: Script = runaway(), config = {}) {
  const both = await startBoth(script, { budget, stop, ...config })
  return { ...both, messages: await atLimit(both.url) }
}

const isAsking = ({ kind }: { readonly kind: string }) => kind === 'operator_asked'
const hasEnded = ({ kind }: { readonly kind: string }) => kind === 'hold_ended'

/** Sends a request that a limit stops, and waits until an operator is asked about it. */
async function held(
  { url, until }: Pick<Running, 'url' | 'until'>,
  messages: readonly ChatMessage[],
  options: Parameters<typeof callModel>[2] = {},
) {
  const answer = callModel(url, messages, { ...named, ...options })
  await until(isAsking)
  return { answer, shown: await firstSession(url) }
}

const requestsOf = (events: Running['events']) => events.filter(({ kind }) => kind === 'request_ended')

describe.each([false, true])('a request at a limit, where an operator is asked (stream: %s)', (stream) => {
  it('goes to the model with its tools once the run is extended, as if nothing had happened', async () => {
    const both = await started(LONG)
    const { answer, shown } = await held(both, both.messages, { stream })
    expect(both.provider.requests).toHaveLength(3)
    await act(both.url, shown.id, 'extend', { by: 2 })
    const step = await answer
    expect(step.headers.get('x-governor-iteration')).toBe('4/5')
    expect(step.message.tool_calls).toHaveLength(1)
    expect(step.governor).toBeUndefined()
    expect(both.provider.requests[3]?.json.tool_choice).toBeUndefined()
    expect((await firstSession(both.url)).total_iterations).toBe(4)
  })

  it('gets the final answer of a run that is stopped', async () => {
    const both = await started(LONG)
    const { answer, shown } = await held(both, both.messages, { stream })
    await act(both.url, shown.id, 'stop')
    expect((await answer).governor).toMatchObject({ terminal_reason: 'operator', has_final_answer: true })
  })

  it('gets the final answer of the limit where nobody answers in time', async () => {
    const both = await started(SHORT)
    const { governor } = await callModel(both.url, both.messages, { ...named, stream })
    expect(governor).toMatchObject({ terminal_reason: 'max_iterations', budget_used: 3, budget_max: 3 })
    expect(both.events.filter(hasEnded)).toMatchObject([{ outcome: 'no_answer' }])
  })
})

describe('a request that waits for an operator', () => {
  it('has all its time, also where the question was longer on its way than that', async () => {
    let time = 1_000_000
    let step = 0
    const now = () => {
      time += step
      return time
    }
    const both = await startBoth(runaway(), { budget, stop: SHORT }, { now })
    const messages = await atLimit(both.url)
    step = 60
    const { governor } = await callModel(both.url, messages, named)
    expect(governor).toMatchObject({ terminal_reason: 'max_iterations' })
    expect(both.events.filter((event) => isAsking(event) || hasEnded(event))).toMatchObject([
      { kind: 'operator_asked' },
      { kind: 'hold_ended', outcome: 'no_answer' },
    ])
  })

  it('gets no byte before the decision, not even the head of a response', async () => {
    const both = await started(LONG)
    const body = JSON.stringify({ model: 'gpt-test', messages: both.messages, tools: TOOLS, stream: true })
    const request = http.request(`${both.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { ...named.headers, authorization: 'Bearer sk-test', 'content-type': 'application/json' },
    })
    request.end(body)
    await both.until(isAsking)
    const { id } = await firstSession(both.url)
    expect(request.socket?.bytesRead).toBe(0)
    await act(both.url, id, 'stop')
    const [response] = (await once(request, 'response')) as [http.IncomingMessage]
    expect(response.statusCode).toBe(200)
    response.resume()
  })

  it('is shown in the API, with the time that is left, and can be filtered', async () => {
    const both = await started(LONG)
    const { answer, shown } = await held(both, both.messages)
    const asking = { limit: 'iterations', max: 3 }
    expect(shown).toMatchObject({ state: 'asking', iteration: 3, risk: 1, terminal_state: null, asking })
    expect(shown.threads).toMatchObject([{ state: 'asking', iteration: 3, asking }])
    expect(shown.asking?.seconds_left).toBeGreaterThan(500)
    expect(await listed(both.url, '?state=asking')).toHaveLength(1)
    await act(both.url, shown.id, 'extend', { by: 1 })
    await answer
    expect(await listed(both.url, '?state=asking')).toEqual([])
    expect((await firstSession(both.url)).asking).toBeNull()
  })

  it('waits on where the extension does not reach, and is told of once', async () => {
    const both = await started(LONG, runaway(), {
      budget: { ...budget, run: { max_tool_calls: 3 }, max_iterations: 9 },
    })
    const { answer, shown } = await held(both, both.messages)
    expect(shown.asking).toMatchObject({ limit: 'tool_calls', max: 3 })
    await act(both.url, shown.id, 'extend', { by: 5 })
    expect((await firstSession(both.url)).state).toBe('asking')
    await act(both.url, shown.id, 'extend', { by: '300%' })
    expect((await answer).message.tool_calls).toHaveLength(1)
    expect(both.events.filter(isAsking)).toHaveLength(1)
  })

  it('is asked about the next limit that it has reached, once the first is raised', async () => {
    const both = await started(LONG, runaway(), { budget: { ...budget, session: { max_tool_calls: 3 } } })
    const { answer, shown } = await held(both, both.messages)
    expect(shown.asking).toMatchObject({ limit: 'iterations', max: 3 })
    await act(both.url, shown.id, 'extend', { by: 5 })
    await both.until((event) => event.kind === 'operator_asked' && event.meter === 'tool_calls')
    expect((await firstSession(both.url)).asking).toMatchObject({ limit: 'tool_calls', max: 3 })
    await act(both.url, shown.id, 'extend', { by: '100%' })
    expect((await answer).message.tool_calls).toHaveLength(1)
    expect(both.events.filter(isAsking)).toHaveLength(2)
  })

  it('is let go by a limit that is set, and by a reset', async () => {
    for (const [action, body] of [
      ['budget', { max_iterations: 8 }],
      ['reset', {}],
    ] as const) {
      const both = await started(LONG)
      const { answer, shown } = await held(both, both.messages)
      await act(both.url, shown.id, action, body)
      expect((await answer).message.tool_calls).toHaveLength(1)
    }
  })

  it('is the first iteration of its run where that is reset', async () => {
    const both = await started(LONG)
    const { answer, shown } = await held(both, both.messages)
    await act(both.url, shown.id, 'reset')
    const step = await answer
    const next = await callModel(both.url, afterStep(both.messages, step), named)
    expect([step, next].map(({ headers }) => headers.get('x-governor-iteration'))).toEqual(['1/3', '2/3'])
    expect((await firstSession(both.url)).total_iterations).toBe(2)
  })

  it('is let go by a reload that raises the limit, and waits on after one that does not', async () => {
    const both = await started(LONG)
    const { answer } = await held(both, both.messages)
    const reload = (max_iterations: number) =>
      both.governor.reload(checkConfig({ budget: { ...budget, max_iterations }, stop: LONG }, 'test'))
    reload(2)
    reload(3)
    expect((await firstSession(both.url)).state).toBe('asking')
    await expect.poll(() => both.events.filter(isAsking).length).toBe(1)
    reload(5)
    const step = await answer
    expect(step.headers.get('x-governor-iteration')).toBe('4/5')
    expect(step.message.tool_calls).toHaveLength(1)
    expect(both.events.filter(hasEnded)).toMatchObject([{ outcome: 'reloaded' }])
    expect(both.events.filter(isAsking)).toHaveLength(1)
  })

  it('is asked about once for each limit: again once an extension is used up', async () => {
    const both = await started(LONG)
    const first = await held(both, both.messages)
    await act(both.url, first.shown.id, 'extend', { by: 1 })
    await first.answer
    const { messages } = await runAgent(both.url, both.messages, { ...named, max: 1 })
    const second = callModel(both.url, messages, named)
    await vi.waitFor(() => expect(both.events.filter(isAsking)).toHaveLength(2), 20_000)
    await act(both.url, first.shown.id, 'stop')
    expect((await second).governor).toMatchObject({ terminal_reason: 'operator' })
  })

  it('shares its question with the same request sent again', async () => {
    const both = await started(LONG)
    const { answer, shown } = await held(both, both.messages)
    const again = callModel(both.url, both.messages, named)
    await vi.waitFor(() => expect(both.events.filter(({ kind }) => kind === 'request_began')).toHaveLength(5), 20_000)
    await act(both.url, shown.id, 'extend', { by: 1 })
    for (const step of await Promise.all([answer, again])) {
      expect(step.headers.get('x-governor-iteration')).toBe('4/4')
      expect(step.message.tool_calls).toHaveLength(1)
    }
    expect(both.events.filter(isAsking)).toHaveLength(1)
  })

  it('ends when its client leaves: nothing is recorded, and a retry waits for the rest of the time', async () => {
    const both = await started(LONG)
    const leaving = new AbortController()
    const { answer, shown } = await held(both, both.messages, { signal: leaving.signal })
    leaving.abort()
    await expect(answer).rejects.toThrow()
    expect(await both.until(hasEnded)).toMatchObject({ outcome: 'client_gone' })
    expect(both.provider.requests).toHaveLength(3)
    expect(await firstSession(both.url)).toMatchObject({ state: 'asking', terminal: null })
    const retry = callModel(both.url, both.messages, named)
    await vi.waitFor(() => expect(both.events.filter(({ kind }) => kind === 'request_began')).toHaveLength(5), 20_000)
    await act(both.url, shown.id, 'extend', { by: 1 })
    expect((await retry).headers.get('x-governor-iteration')).toBe('4/4')
    expect(both.events.filter(isAsking)).toHaveLength(1)
  })

  it('gets the final answer at once where the time was over before it came back', async () => {
    const time = { now: 1_800_000_000_000 }
    const both = await startBoth(
      runaway(),
      { budget, stop: { mode: 'ask', ask_timeout: '2m' } },
      { now: () => time.now },
    )
    const messages = await atLimit(both.url)
    const leaving = new AbortController()
    const { answer } = await held(both, messages, { signal: leaving.signal })
    leaving.abort()
    await expect(answer).rejects.toThrow()
    time.now += 120_000
    expect((await firstSession(both.url)).state).toBe('near_limit')
    expect((await callModel(both.url, messages, named)).governor).toMatchObject({
      terminal_reason: 'max_iterations',
    })
  })

  it('gets the final answer when Governor shuts down', async () => {
    const both = await started(LONG)
    const { answer } = await held(both, both.messages)
    const drained = both.governor.drain()
    expect((await answer).governor).toMatchObject({
      terminal_reason: 'max_iterations',
      has_final_answer: true,
    })
    expect(await drained).toBe(true)
    expect(both.events.filter(hasEnded)).toMatchObject([{ outcome: 'drained' }])
  })

  it('is one of many: all of them get their final answers when Governor shuts down', async () => {
    const warnings: Error[] = []
    const warn = (warning: Error) => void warnings.push(warning)
    process.on('warning', warn)
    onTestFinished(() => void process.off('warning', warn))
    const both = await startBoth(runaway(), { budget: { max_iterations: 1 }, stop: LONG })
    const names = Array.from({ length: 20 }, (_, at) => ({
      headers: { 'x-governor-session': `session ${at}` },
    }))
    const answers = names.map(async (name) => (await runAgent(both.url, START, name)).steps.at(-1)?.governor)
    await vi.waitFor(() => expect(both.events.filter(isAsking)).toHaveLength(20), 20_000)
    expect(await both.governor.drain()).toBe(true)
    for (const governor of await Promise.all(answers))
      expect(governor).toMatchObject({ terminal_reason: 'max_iterations' })
    expect(warnings).toEqual([])
  })

  it('does not count its wait as time of Governor', async () => {
    const both = await started({ mode: 'ask', ask_timeout: '1s' })
    await callModel(both.url, both.messages, named)
    await vi.waitFor(() => expect(requestsOf(both.events)).toHaveLength(4), 20_000)
    const last = requestsOf(both.events).at(-1) as { totalMs: number; overheadMs: number }
    expect(last.totalMs).toBeGreaterThan(900)
    expect(last.overheadMs).toBeLessThan(last.totalMs - 900)
  })

  it('is stopped after a fault of the store, and never let through', async () => {
    const { createMemoryStore } = await import('../../src/store/memory.ts')
    const inner = createMemoryStore({ max: 10, ttl: 60_000, maxBytes: 1e6 }, () => performance.now())
    const store = {
      ...inner,
      subscribe() {
        throw new Error('no subscriptions')
      },
    }
    const both = await startBoth(runaway(), { budget, stop: LONG }, { store })
    const { governor } = await callModel(both.url, await atLimit(both.url), named)
    expect(governor).toMatchObject({ terminal_reason: 'max_iterations' })
    expect(both.events).toContainEqual(expect.objectContaining({ kind: 'failed_open', reason: 'fault' }))
  })
})

describe('nobody is asked', () => {
  it.each<[string, object, (url: string, messages: readonly ChatMessage[]) => Promise<Step>]>([
    ['by default', {}, (url, messages) => callModel(url, messages, named)],
    [
      'where Governor only observes',
      { stop: LONG, mode: 'observe' },
      (url, messages) => callModel(url, messages, named),
    ],
    [
      'about a run that an operator stops',
      { stop: LONG },
      async (url, messages) => {
        await act(url, (await firstSession(url)).id, 'stop')
        return callModel(url, messages, named)
      },
    ],
    [
      'where the agent itself asks for its final answer',
      { stop: LONG },
      (url, messages) => {
        const content =
          "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools."
        return callModel(url, [...messages, { role: 'user', content }], named)
      },
    ],
  ])('%s', async (_, config, finish) => {
    const both = await startBoth(runaway(), { budget, ...config })
    expect((await finish(both.url, await atLimit(both.url))).status).toBe(200)
    expect(both.events.filter(isAsking)).toEqual([])
  })

  it('about the recorded answer of a run that is over', async () => {
    const both = await started(SHORT)
    const first = await callModel(both.url, both.messages, named)
    expect((await callModel(both.url, both.messages, named)).governor).toEqual(first.governor)
    expect(both.events.filter(isAsking)).toHaveLength(1)
  })
})

describe('a client that waits for an operator', () => {
  const extendOnce = async ({ url, until }: Running) => {
    await until(isAsking)
    const [row] = await listed(url, '?state=asking')
    await act(url, row?.id ?? '', 'extend', { by: 2 })
  }

  it.each([false, true])('goes on in the openai package (stream: %s)', async (stream) => {
    const both = await startBoth(runaway(), { budget, stop: { ...LONG, footer: true } })
    const client = new OpenAI({ apiKey: 'k', baseURL: `${both.url}/v1`, maxRetries: 0 })
    const tool = {
      type: 'function' as const,
      function: {
        name: 'search',
        description: 'Search',
        parse: JSON.parse as (text: string) => { query: string },
        function: ({ query }: { query: string }) => `found ${query}`,
        parameters: { type: 'object', properties: { query: { type: 'string' } } },
      },
    }
    const params = { model: 'm', messages: [{ role: 'user' as const, content: 'Go.' }], tools: [tool] }
    const runner = stream
      ? client.chat.completions.runTools({ ...params, stream: true })
      : client.chat.completions.runTools(params)
    await extendOnce(both)
    await vi.waitFor(() => expect(both.events.filter(isAsking)).toHaveLength(2), 20_000)
    const [row] = await listed(both.url, '?state=asking')
    await act(both.url, row?.id ?? '', 'stop')
    expect(await runner.finalContent()).toBe(
      'This is what I found so far.\n\n— stopped by governor: an operator stopped the run',
    )
    expect(runner.allChatCompletions()).toHaveLength(6)
  })

  it.each([false, true])('goes on in the Anthropic package (stream: %s)', async (stream) => {
    const both = await startBoth(runawayMessages(), { budget, stop: LONG })
    const sdk = new Anthropic({ apiKey: 'k', baseURL: both.url, maxRetries: 0 })
    const runner = sdk.beta.messages.toolRunner({
      model: 'claude-test',
      max_tokens: 1_000,
      messages: [{ role: 'user', content: 'Go.' }],
      tools: [
        {
          name: 'search',
          description: 'Search',
          input_schema: { type: 'object' },
          run: () => 'found',
          parse: (input: unknown) => input,
        },
      ],
      max_iterations: 5,
      stream,
      thread: false as const,
    })
    const finished = runner.runUntilDone()
    await extendOnce(both)
    await finished
    expect(both.provider.requests).toHaveLength(5)
  })

  it.each([false, true])('goes on in Responses that the provider keeps (stream: %s)', async (stream) => {
    const both = await startBoth(runaway(), { budget, stop: LONG })
    const running = runResponses(both.url, 'Go.', { stateful: true, stream, max: 5, ...named })
    await extendOnce(both)
    const { steps } = await running
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration'))).toEqual(['1/3', '2/3', '3/3', '4/5', '5/5'])
  })
})

it('a request that waits for an operator holds nothing of a limit of a day, and its last answer counts', async () => {
  const both = await started(LONG, runaway(), { budget: { ...budget, day: { max_tokens: 10_000 } } })
  const { answer, shown } = await held(both, both.messages)
  const sums = async () => (await ask(both.url, '/governor/budget')).json
  await expect.poll(sums).toMatchObject({ budget: [{ used: { tokens: 330 }, reserved: { tokens: 0 } }] })
  await act(both.url, shown.id, 'stop')
  expect((await answer).governor).toMatchObject({ terminal_reason: 'operator' })
  await expect.poll(sums).toMatchObject({ budget: [{ used: { tokens: 440 }, reserved: { tokens: 0 } }] })
})

describeWith('redis-server', 'two replicas on one Redis', () => {
  async function startPair() {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const config = { store: 'redis', redis: { url: redis.url, timeout: '5s' }, budget, stop: LONG }
    const first = await startGovernor(provider.url, config)
    const second = await startGovernor(provider.url, config)
    return { provider, redis, first, second }
  }

  it.each([
    ['extend', { by: 1 }, '4/4'],
    ['stop', {}, '3/3'],
  ] as const)('let a request go that waits at the one, by %s at the other', async (action, body, iteration) => {
    const { first, second } = await startPair()
    const { answer, shown } = await held(first, await atLimit(first.url))
    const elsewhere = (await ask(second.url, `/governor/sessions/${shown.id}`)).json as Shown
    expect(elsewhere).toMatchObject({ state: 'asking', asking: { limit: 'iterations', max: 3 } })
    await act(second.url, shown.id, action, body)
    expect((await answer).headers.get('x-governor-iteration')).toBe(iteration)
  })

  it('have a request that waits, and its question, also after Redis has lost all of it', async () => {
    const { redis, first, second } = await startPair()
    const { answer, shown } = await held(first, await atLimit(first.url))
    await redis.command('FLUSHALL')
    const shownAgain = async () => (await ask(second.url, `/governor/sessions/${shown.id}`)).json
    await expect.poll(shownAgain, { timeout: 20_000 }).toMatchObject({ state: 'asking', asking: { max: 3 } })
    await act(second.url, shown.id, 'extend', { by: 1 })
    expect((await answer).headers.get('x-governor-iteration')).toBe('4/4')
  })

  it('have one question for a request that is sent again to the other', async () => {
    const { first, second } = await startPair()
    const messages = await atLimit(first.url)
    const { answer, shown } = await held(first, messages)
    const again = callModel(second.url, messages, named)
    await second.until(({ kind }) => kind === 'request_began')
    await act(second.url, shown.id, 'extend', { by: 1 })
    for (const step of await Promise.all([answer, again])) expect(step.message.tool_calls).toHaveLength(1)
    expect([...first.events, ...second.events].filter(isAsking)).toHaveLength(1)
  })
})
