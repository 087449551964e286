import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createMemoryStore } from '../../src/store/memory.ts'
import type { SessionKey, Store, ValueKind } from '../../src/store/store.ts'
import { ask, firstSession, listed } from '../support/admin.ts'
import { startBackground } from '../support/background.ts'
import { type Running, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import type { Script } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { type Item, TOOL } from '../support/responses-agent.ts'

/** How clients ask for one answer. */
interface Polls {
  /** What the provider states before the answer is over. */
  readonly states: readonly string[]
  /** How many ask at the same time each time. */
  readonly clients: number
  /** How often they ask again for an answer that they have. */
  readonly again: number
  /** They ask for its stream. */
  readonly streams: boolean
}

/** How an agent holds its conversation. */
interface Way {
  readonly stateful: boolean
  readonly isNamed: boolean
}

const HEADERS = { 'content-type': 'application/json', authorization: 'Bearer sk-test' }
const AT_ONCE: Polls = { states: [], clients: 1, again: 0, streams: false }

const isOver = ({ status }: Item) => status !== 'queued' && status !== 'in_progress'

function post(url: string, body: object, isNamed = true): Promise<Response> {
  return fetch(`${url}/v1/responses`, {
    method: 'POST',
    headers: { ...HEADERS, ...(isNamed ? { 'x-session-id': 'a' } : {}) },
    body: JSON.stringify({ model: 'gpt-4o', tools: [TOOL], background: true, ...body }),
  })
}

/** Asks for a response; `query`: with its question mark. */
async function fetched(url: string, id: unknown, query = ''): Promise<Item> {
  const text = await (await fetch(`${url}/v1/responses/${id}${query}`, { headers: HEADERS })).text()
  if (query === '') return JSON.parse(text) as Item
  const [, last = ''] = /^data: (.*"type":"response.completed".*)$/m.exec(text) ?? []
  return (JSON.parse(last) as { response: Item }).response
}

/** Runs an agent over replicas; `asked`: how it fetches each answer, unset for answers that come at once. */
async function run(urls: readonly string[], { stateful, isNamed }: Way, asked?: readonly Polls[]) {
  const items: Item[] = []
  const seen: unknown[] = []
  let turns = 0
  const next = () => urls[turns++ % urls.length] ?? ''
  let input: Item[] = [{ role: 'user', content: 'Go.' }]
  let previous = {}
  for (let step = 0; step < 14 && input.length > 0; step++) {
    const history = stateful ? { input, ...previous } : { input: [...items, ...input] }
    const { status, headers, ...reply } = await readReply(post(next(), { ...history, background: !!asked }, isNamed))
    const { clients, again, streams } = asked?.[step % asked.length] ?? AT_ONCE
    const query = streams ? '?stream=true' : ''
    let { response } = reply
    for (let left = again; !isOver(response) || left-- > 0; ) {
      const all = Array.from({ length: clients }, () => fetched(next(), response['id'], query))
      response = (await Promise.all(all)).at(-1) ?? response
    }
    const output = response['output'] as Item[]
    const [verdict, iteration] = ['verdict', 'iteration'].map((name) => headers.get(`x-governor-${name}`))
    seen.push([status, verdict, iteration, output.map(({ type }) => type)])
    items.push(...input, ...output)
    previous = { previous_response_id: response['id'] }
    input = output
      .filter(({ type }) => type === 'function_call')
      .map((call) => ({ type: 'function_call_output', call_id: call['call_id'], output: 'Error: no such file' }))
  }
  return seen
}

async function readReply(reply: Promise<Response>) {
  const { status, headers, ...rest } = await reply.then(async (one) => ({
    status: one.status,
    headers: one.headers,
    response: (await one.json()) as Item,
  }))
  return { status, headers, ...rest }
}

/** Calls the same again and again, until it reads that Governor has blocked that. */
const stubborn: Script = ({ json, items }, number) => {
  if (json.tool_choice === 'none' || !json.tools) return { text: 'I stop.' }
  if (JSON.stringify(items).includes('Blocked')) return { text: 'Blocked, so this is all.' }
  return { calls: [{ name: 'search', arguments: { query: number < 3 ? `${number}` : 'the same' } }] }
}

/** What Governor says of all sessions, without times and ids. */
async function shownBy(url: string) {
  const ids = (await listed(url)).map(({ id }) => id)
  const paths = [...ids.map((id) => `sessions/${id}`), 'budget']
  const shown = await Promise.all(paths.map(async (path) => (await ask(url, `/governor/${path}`)).text))
  const isOfItself = (key: string) => !/(?:^|_)(?:id|at|ms|seconds|until)$|^(?:name|meters)$|minute/.test(key)
  const shownAs = (key: string, value: unknown) => (key === 'cost_usd' ? Number(Number(value).toFixed(4)) : value)
  return shown.map((text) => JSON.parse(text, (key, value) => (isOfItself(key) ? shownAs(key, value) : undefined)))
}

const polls = fc.record({
  states: fc.array(fc.constantFrom('queued', 'in_progress'), { maxLength: 3 }),
  clients: fc.integer({ min: 1, max: 3 }),
  again: fc.integer({ min: 0, max: 2 }),
  streams: fc.boolean(),
})

const way = fc.record({ stateful: fc.boolean(), isNamed: fc.boolean() })

/** Prices are loaded before the first answer. */
const CONFIG = { budget: { run: { max_cost_usd: 100 }, day: { max_tokens: 1_000_000 } } }

/** Runs an agent over replicas that share a store; `asked`: how it fetches its answers. */
async function outcomeOf(start: (provider: string) => Promise<Running[]>, of: Way, asked?: readonly Polls[]) {
  const statesOf = (number: number) => asked?.[(number - 1) % asked.length]?.states ?? []
  const provider = await startBackground(stubborn, { states: statesOf })
  const replicas = await start(provider.url)
  const seen = await run(
    replicas.map(({ url }) => url),
    of,
    asked,
  )
  const sent = provider.posts.map(({ body }) => body.replace(/"background":\w+/, ''))
  const events = replicas.flatMap((replica) => replica.events)
  const gaps = events.filter(({ kind }) => kind === 'failed_open')
  const answers = events.filter(({ kind }) => kind === 'answered').length
  return { seen, sent, gaps, answers, shown: await shownBy(replicas[0]?.url ?? '') }
}

const gapsOf = ({ events }: Running) => events.flatMap((event) => (event.kind === 'failed_open' ? [event.reason] : []))

const usageOf = ({ events }: Running) => events.flatMap((event) => (event.kind === 'answered' ? [event.usage] : []))

const USAGE = expect.objectContaining({ estimated: false, input: 100, output: 10 })

describe('an agent that fetches its answers later', () => {
  const start = async (provider: string) => {
    const store = createMemoryStore({ max: 100, ttl: 600_000, maxBytes: 10_000_000 })
    return [await startGovernor(provider, CONFIG, { store }), await startGovernor(provider, CONFIG, { store })]
  }

  it('is followed, warned, blocked and counted as one whose answers come at once, whoever asks how often', async () => {
    await fc.assert(
      fc.asyncProperty(way, fc.array(polls, { minLength: 1, maxLength: 4 }), async (of, asked) => {
        expect(await outcomeOf(start, of, asked)).toEqual(await outcomeOf(start, of))
      }),
      { numRuns: 12 },
    )
  })

  it('gets the bytes of its provider, and the answer of one that nobody has asked for here', async () => {
    const provider = await startBackground(() => ({ text: 'It is 42.' }))
    const { url } = await startGovernor(provider.url)
    const { id } = (await (await post(url, { input: 'Go.' })).json()) as Item
    const textOf = async (from: string, path: string) => {
      const reply = await fetch(from + path, { headers: HEADERS })
      return [reply.status, reply.headers.get('content-type'), await reply.text()]
    }
    await textOf(url, `/v1/responses/${id}`)
    for (const path of [`/v1/responses/${id}`, `/v1/responses/${id}?stream=true`, '/v1/responses/resp_unknown'])
      expect(await textOf(url, path)).toEqual(await textOf(provider.url, path))
  })

  it('gets no answer in the background where the guard may block calls in it', async () => {
    const provider = await startBackground(stubborn)
    const { url } = await startGovernor(provider.url)
    await run([url], { stateful: true, isNamed: true }, [AT_ONCE])
    expect(provider.posts.map(({ json }) => json['background'])).toEqual([...Array(8).fill(true), false, false])
  })

  it('stays in the background where only calls of agents may be blocked, which is said once', async () => {
    const provider = await startBackground(() => ({ text: 'It is 42.' }))
    const governor = await startGovernor(provider.url, { budget: { session: { max_agents: 5 } } })
    for (const input of ['Go.', 'Go on.']) await post(governor.url, { input })
    expect(provider.posts.map(({ json }) => json['background'])).toEqual([true, true])
    expect(gapsOf(governor)).toEqual(['background', 'background'])
    expect(await firstSession(governor.url)).toMatchObject({ unguarded: ['background'] })
  })
})

describe('an answer in the background', () => {
  const answered = async (config = {}, options = {}) => {
    const provider = await startBackground(() => ({ text: 'It is 42.' }), options)
    const governor = await startGovernor(provider.url, { ...CONFIG, ...config })
    return { provider, governor, url: governor.url }
  }
  const tokens = async (url: string) => (await firstSession(url)).tokens

  it('counts the tokens of the prompt, by its bytes, if it is cancelled', async () => {
    const { url, governor } = await answered()
    const { id } = (await (await post(url, { input: 'Go.' })).json()) as Item
    for (let at = 0; at < 2; at++)
      await (await fetch(`${url}/v1/responses/${id}/cancel`, { method: 'POST', headers: HEADERS })).text()
    await governor.until(({ kind }) => kind === 'answered')
    expect(usageOf(governor)).toEqual([expect.objectContaining({ estimated: true, output: 0 })])
    expect(gapsOf(governor)).toEqual([])
  })

  it('goes on where its stream breaks off, from the event at which its client asks for the rest', async () => {
    const script: Script = (_, number) =>
      number === 1 ? { calls: [{ name: 'search', arguments: {} }] } : { text: 'Ok' }
    for (const after of [0, 3, 5]) {
      const provider = await startBackground(script, { cut: after + 1 })
      const governor = await startGovernor(provider.url, CONFIG)
      const { url } = governor
      const begun = await post(url, { input: 'Go.', stream: true })
      const text = await begun.text().catch(() => '')
      expect(text).not.toContain('response.completed')
      expect(usageOf(governor)).toEqual([])
      const { id } = await fetched(url, 'resp_1', `?stream=true&starting_after=${after}`)
      const output = { type: 'function_call_output', call_id: 'call_1_0', output: 'found' }
      await post(url, { input: [output], previous_response_id: id, background: false })
      const { total_iterations, tool_calls } = await firstSession(url)
      expect([total_iterations, tool_calls]).toEqual([2, 1])
      expect(usageOf(governor)).toEqual([USAGE, USAGE])
    }
  })

  it('counts once where its stream is read to the end while others ask for it', async () => {
    const { url, governor } = await answered({}, { states: () => [] })
    await Promise.all([
      post(url, { input: 'Go.', stream: true }).then((reply) => reply.text()),
      ...[1, 2, 3].map(() => fetched(url, 'resp_1')),
    ])
    await fetched(url, 'resp_1')
    expect(usageOf(governor)).toEqual([USAGE])
    expect(await tokens(url)).toBe(110)
  })

  it('is estimated, and said, where a request goes on from it that nobody has asked for here', async () => {
    const { url, governor } = await answered()
    const { id } = (await (await post(url, { input: 'Go.' }, false)).json()) as Item
    for (let at = 0; at < 2; at++)
      await (await post(url, { input: 'More.', previous_response_id: id, background: false }, false)).text()
    await fetched(url, id)
    expect(usageOf(governor)).toEqual([expect.objectContaining({ estimated: true }), USAGE, USAGE])
    expect(gapsOf(governor)).toEqual(['background'])
  })

  it('is counted where the last event of its stream is longer than what is kept of that', async () => {
    const provider = await startBackground(() => ({ text: 'x'.repeat(1_100_000) }))
    for (const isAtOnce of [true, false]) {
      const governor = await startGovernor(provider.url, CONFIG)
      const { url } = governor
      const text = await (await post(url, { input: 'Go.', stream: isAtOnce })).text()
      if (!isAtOnce) await fetched(url, JSON.parse(text).id, '?stream=true')
      await governor.until(({ kind }) => kind === 'answered')
      expect(usageOf(governor)).toEqual([USAGE])
    }
  })

  it('and the request that goes on from it reach the client whatever Governor keeps of them', async () => {
    const provider = await startBackground(() => ({ text: 'It is 42.' }), { states: () => [] })
    const kept = createMemoryStore({ max: 100, ttl: 600_000, maxBytes: 10_000_000 })
    const spoiled = (value: unknown) =>
      value && typeof value === 'object' && 'later' in value
        ? { ...value, later: Object.assign({}, value.later, { prompt: undefined }) }
        : value
    const store: Store = {
      ...kept,
      value: async <Value>(kind: ValueKind<Value>, key: SessionKey) => spoiled(await kept.value(kind, key)) as Value,
    }
    const governor = await startGovernor(provider.url, {}, { store })
    const { id } = (await (await post(governor.url, { input: 'Go.' })).json()) as Item
    expect(await fetched(governor.url, id)).toMatchObject({ status: 'completed' })
    expect((await post(governor.url, { input: 'More.', previous_response_id: id })).status).toBe(200)
    await governor.until(({ kind }) => kind === 'failed_open')
    expect(gapsOf(governor)).toEqual(['fault', 'fault', 'background'])
  })

  it('is estimated, and said, where the next request shows it and was fetched past Governor', async () => {
    const provider = await startBackground((_, number) => ({ calls: [{ name: 'search', arguments: { number } }] }))
    const governor = await startGovernor(provider.url, { budget: { run: { max_tokens: 300 } } })
    const items: Item[] = [{ role: 'user', content: 'Go on and on. '.repeat(40) }]
    for (let step = 0; step < 4; step++) {
      const { id } = (await (await post(governor.url, { input: items })).json()) as Item
      await fetched(provider.url, id)
      const { output } = await fetched(provider.url, id)
      for (const call of output as Item[])
        items.push(call, { type: 'function_call_output', call_id: call['call_id'], output: `${step}` })
    }
    await governor.until(({ kind }) => kind === 'answered')
    const { tokens: used, unguarded } = await firstSession(governor.url)
    expect(used).toBeGreaterThan(300)
    expect(unguarded).toEqual(['background'])
    expect((await post(governor.url, { input: items })).headers.get('x-governor-verdict')).toBe('stop')
  })

  it('is in the transcript of its session', async () => {
    const { url } = await answered({ sessions: { transcript: true } })
    const { id } = (await (await post(url, { input: 'What is it?' })).json()) as Item
    for (let at = 0; at < 3; at++) await fetched(url, id)
    const { id: session } = await firstSession(url)
    const { json } = await ask(url, `/governor/sessions/${session}/transcript`)
    const { entries } = json as { entries: readonly { role: string; text: string }[] }
    expect(entries.map(({ role, text }) => `${role}: ${text}`)).toEqual(['user: What is it?', 'assistant: It is 42.'])
  })

  it('of another client is not counted', async () => {
    const { url, governor } = await answered({}, { states: () => [] })
    const { id } = (await (await post(url, { input: 'Go.' })).json()) as Item
    const headers = { authorization: 'Bearer sk-other' }
    await (await fetch(`${url}/v1/responses/${id}`, { headers })).text()
    expect(usageOf(governor)).toEqual([])
    await fetched(url, id)
    expect(usageOf(governor)).toEqual([USAGE])
  })
})

describeWith('redis-server', 'replicas on one Redis', () => {
  it('count an answer once that is asked for at all of them at the same time', async () => {
    const redis = await startRedis()
    const start = (provider: string) => {
      const config = { ...CONFIG, store: 'redis', redis: { url: redis.url, timeout: '5s' } }
      return Promise.all([1, 2, 3].map(() => startGovernor(provider, config)))
    }
    const provider = await startBackground(stubborn, { states: () => [] })
    const replicas = await start(provider.url)
    const polls = { states: [], clients: 6, again: 2, streams: false }
    const urls = replicas.map(({ url }) => url)
    const seen = await run(urls, { stateful: true, isNamed: false }, [polls])
    expect(seen.map((step) => (step as unknown[])[1])).toEqual([
      ...Array(5).fill('allow'),
      'warn',
      'allow',
      'warn',
      'block',
    ])
    await expect.poll(async () => (await firstSession(urls[0] ?? '')).tokens).toBe(1100)
    expect(replicas.flatMap(usageOf)).toHaveLength(10)
    expect(replicas.flatMap(gapsOf)).toEqual([])
  })
})
