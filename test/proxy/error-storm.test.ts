import { EventEmitter, once } from 'node:events'
import { setTimeout } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { GovernorOptions } from '../../src/app.ts'
import { createMemoryStore } from '../../src/store/memory.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { type Answer, runaway, type Script, startProvider } from '../support/provider.ts'

const OVERLOADED: Answer = {
  status: 529,
  body: { error: { message: 'Overloaded', type: 'overloaded_error' } },
}
const ID = { 'x-governor-session': 's' }

/** Requests in a storm are held for no time. */
const atOnce = async () => undefined

/** Requests in a storm are held until their client leaves, or Governor ends. */
const untilAborted = (_: number, signal: AbortSignal) => setTimeout(600_000, undefined, { signal })

/** A provider whose answer the test sets, and a clock that only the test moves. `delay` times how long requests are held. */
async function startStormy(config: Record<string, unknown> = {}, delay: GovernorOptions['delay'] = atOnce) {
  let time = 1_000_000
  const go = runaway()
  const arrivals = new EventEmitter()
  const state: { answer: Answer | undefined; wait: Promise<void> | undefined } = {
    answer: OVERLOADED,
    wait: undefined,
  }
  const script: Script = async (request, number) => {
    const { answer, wait } = state
    arrivals.emit('request')
    await wait
    return answer ?? go(request, number)
  }
  const both = await startBoth(script, config, { now: () => time, delay })
  const ask = (headers: Record<string, string> = ID) => callModel(both.url, START, { headers })
  return {
    ...both,
    state,
    ask,
    /** Settles when the next request reaches the provider. */
    arrival: () => once(arrivals, 'request'),
    later: (seconds: number) => {
      time += seconds * 1_000
    },
    /** So many errors, each so many seconds after the one before. */
    async errors(count: number, seconds: number) {
      for (let at = 0; at < count; at++) {
        time += seconds * 1_000
        await ask()
      }
    },
  }
}

describe('after 20 errors in a row over a minute', () => {
  it('requests get the newest error at once, with a time to wait that grows with each failed probe', async () => {
    const { ask, errors, later, provider, url } = await startStormy()
    await errors(20, 4)
    expect(provider.requests).toHaveLength(20)
    for (const wait of [5, 10, 30, 50, 50]) {
      const step = await ask()
      expect(step.status).toBe(529)
      expect(step.headers.get('retry-after')).toBe(String(wait))
      expect(step.headers.get('x-governor-storm')).toMatch(/^errors=\d+$/)
      const sent = provider.requests.length
      later(wait)
      expect((await ask()).headers.get('x-governor-storm')).toBeNull()
      expect(provider.requests).toHaveLength(sent + 1)
    }
    await ask()
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_storm_replies_total{upstream="openai",status="529"} 6')
  })

  it('the error is the provider’s own, byte for byte', async () => {
    const { later, url } = await startStormy()
    const ask = () =>
      fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { ...ID, 'content-type': 'application/json', authorization: 'Bearer sk-test' },
        body: JSON.stringify({ model: 'gpt-test', messages: START, tools: [{ type: 'function' }] }),
      })
    for (let at = 0; at < 20; at++) {
      later(4)
      await (await ask()).arrayBuffer()
    }
    const response = await ask()
    expect(response.headers.get('x-governor-storm')).toBe('errors=20')
    expect(await response.json()).toEqual(OVERLOADED.body)
  })

  it('one request at a time goes through, and its success ends the storm', async () => {
    const { ask, arrival, errors, later, provider, state } = await startStormy()
    await errors(20, 4)
    later(5)
    let release = () => {}
    state.answer = undefined
    state.wait = new Promise((resolve) => {
      release = resolve
    })
    const arrived = arrival()
    const probe = ask()
    await arrived
    expect((await ask()).status).toBe(529)
    expect(provider.requests).toHaveLength(21)
    release()
    expect((await probe).status).toBe(200)
    state.wait = undefined
    expect((await ask()).status).toBe(200)
  })

  it('the next request becomes the probe if the client of a probe leaves', async () => {
    const { ask, arrival, errors, later, state, url, until } = await startStormy()
    await errors(20, 4)
    later(5)
    state.wait = new Promise(() => {})
    const leaving = new AbortController()
    const arrived = arrival()
    const gone = fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      signal: leaving.signal,
      headers: { ...ID, 'content-type': 'application/json', authorization: 'Bearer sk-test' },
      body: JSON.stringify({ model: 'gpt-test', messages: START, tools: [{ type: 'function' }] }),
    }).catch(() => undefined)
    await arrived
    leaving.abort()
    await gone
    await until((event) => event.kind === 'request_ended' && event.outcome === 'client_gone')
    state.wait = undefined
    expect((await ask()).headers.get('x-governor-storm')).toBeNull()
  })

  it('a retry-after header of the provider takes precedence over Governor’s own', async () => {
    const { ask, errors, later, state, provider } = await startStormy()
    state.answer = { ...OVERLOADED, status: 429, headers: { 'retry-after': '120' } }
    await errors(20, 4)
    expect((await ask()).headers.get('retry-after')).toBe('120')
    later(49)
    expect((await ask()).headers.get('retry-after')).toBe('71')
    // It may be back earlier than it said.
    later(1)
    await ask()
    expect(provider.requests).toHaveLength(21)
  })

  it('a run does not pay for requests that got no answer', async () => {
    const { ask, errors, later, state } = await startStormy()
    await errors(20, 4)
    await Promise.all([1, 2, 3, 4, 5].map(() => ask()))
    later(5)
    state.answer = undefined
    expect((await ask()).headers.get('x-governor-iteration')).toBe('1/300')
  })

  it('requests of another model, session or conversation reach the provider', async () => {
    const { errors, provider, url, ask } = await startStormy()
    await errors(20, 4)
    await callModel(url, START, { headers: ID, body: { model: 'other' } })
    await ask({ 'x-governor-session': 't' })
    await callModel(url, [{ role: 'user', content: 'Something else.' }], { headers: ID })
    expect(provider.requests).toHaveLength(23)
  })
})

it('an answer of another model does not end an error storm', async () => {
  const { ask, errors, later, state, url } = await startStormy()
  await errors(20, 4)
  state.answer = undefined
  later(1)
  expect((await callModel(url, START, { headers: ID, body: { model: 'other' } })).status).toBe(200)
  expect((await ask()).headers.get('x-governor-storm')).toBe('errors=20')
})

/** An error in the place of an answer, in the forms of all APIs. */
const SSE = { 'content-type': 'text/event-stream' }
const CHAT_ERROR = { error: { message: 'Overloaded', code: 503 } }
const MESSAGES_ERROR = { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }
const FAILED = {
  id: 'r',
  object: 'response',
  status: 'failed',
  output: [],
  error: { code: 'server_error', message: 'x' },
}
const events = (...data: readonly object[]) => data.map((one) => `data: ${JSON.stringify(one)}\n\n`).join('')
const ONLY_ERRORS: readonly (readonly [string, string, Answer])[] = [
  ['a whole chat', 'chat/completions', { status: 200, body: CHAT_ERROR }],
  ['a streamed chat', 'chat/completions', { body: events(CHAT_ERROR), headers: SSE }],
  ['a streamed chat after a comment', 'chat/completions', { body: `: wait\n\n${events(CHAT_ERROR)}`, headers: SSE }],
  [
    'a chat streamed as text',
    'chat/completions',
    { body: events(CHAT_ERROR), headers: { 'content-type': 'text/plain' } },
  ],
  [
    'a compressed chat',
    'chat/completions',
    { body: gzipSync(events(CHAT_ERROR)), headers: { ...SSE, 'content-encoding': 'gzip' } },
  ],
  ['a whole message', 'messages', { status: 200, body: MESSAGES_ERROR }],
  ['a streamed message', 'messages', { body: `event: error\n${events(MESSAGES_ERROR)}`, headers: SSE }],
  ['a whole response', 'responses', { status: 200, body: FAILED }],
  ['a streamed response', 'responses', { body: events({ type: 'response.failed', response: FAILED }), headers: SSE }],
]

describe('a status of success with nothing but an error', () => {
  it.each(ONLY_ERRORS)('counts as an error, and is what clients get in a storm: %s', async (_, path, answer) => {
    const { url, provider } = await startBoth(() => answer, {}, { now: () => 1_000_000, delay: atOnce })
    const input = path === 'responses' ? { input: 'Hi' } : { messages: [{ role: 'user', content: 'Hi' }] }
    const ask = () =>
      fetch(`${url}/v1/${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({
          model: 'm',
          max_tokens: 9,
          tools: [{ type: 'function', name: 'a', function: {} }],
          ...input,
        }),
      })
    let text = ''
    for (let at = 0; at < 20; at++) text = await (await ask()).text()
    const held = await ask()
    expect(held.status).toBe(200)
    expect(held.headers.get('x-governor-storm')).toBe('errors=20')
    expect(await held.text()).toBe(text)
    expect(provider.requests).toHaveLength(20)
  })

  it.each([
    ['after text', events({ choices: [{ index: 0, delta: { content: 'Well' } }] }, CHAT_ERROR)],
    [
      'in a tool call',
      events({ choices: [{ index: 0, delta: { tool_calls: [{ index: 0, function: { arguments: '"error":1' } }] } }] }),
    ],
  ])('is something else %s, and ends a row of errors', async (_, body) => {
    const { ask, errors, state, provider } = await startStormy()
    await errors(19, 0)
    state.answer = { body, headers: SSE }
    await ask().catch(() => undefined)
    state.answer = OVERLOADED
    await errors(19, 0)
    await ask()
    expect(provider.requests).toHaveLength(40)
  })
})

describe('after 20 errors to one body within two seconds', () => {
  it.each([
    ['with an id', ID],
    ['without an id', {}],
  ])('a client that repeats without a pause reaches the provider no more: %s', async (_, headers) => {
    const { ask, later, provider, state } = await startStormy()
    for (let at = 0; at < 20; at++) {
      await ask(headers)
      later(0.1)
    }
    for (let at = 0; at < 3; at++) expect((await ask(headers)).headers.get('retry-after')).toMatch(/^[345]$/)
    expect(provider.requests).toHaveLength(20)
    // The storm goes on after a probe that failed, and ends with one that succeeds.
    later(5)
    await ask(headers)
    expect((await ask(headers)).headers.get('x-governor-storm')).toBe('errors=21')
    later(10)
    state.answer = undefined
    expect((await ask(headers)).status).toBe(200)
    expect((await ask(headers)).headers.get('x-governor-storm')).toBeNull()
  })

  it('a reply is held for a second', async () => {
    const held: number[] = []
    let release = () => {}
    const { ask, errors } = await startStormy({}, (ms) => {
      held.push(ms)
      return new Promise<void>((resolve) => {
        release = resolve
      })
    })
    await errors(20, 0)
    let isAnswered = false
    const answer = ask().then((step) => {
      isAnswered = true
      return step
    })
    await expect.poll(() => held).toEqual([1_000])
    expect(isAnswered).toBe(false)
    release()
    expect((await answer).headers.get('x-governor-storm')).toBe('errors=20')
  })

  it('a reply is held until its client leaves', async () => {
    const { errors, url, until, events: seen } = await startStormy({}, untilAborted)
    await errors(20, 0)
    const leaving = new AbortController()
    const held = callModel(url, START, { headers: ID, signal: leaving.signal })
    await expect.poll(() => seen.filter(({ kind }) => kind === 'request_began').length).toBe(21)
    leaving.abort()
    await expect(held).rejects.toThrow()
    await until((event) => event.kind === 'request_ended' && event.outcome === 'client_gone')
    expect(seen.filter(({ kind }) => kind === 'storm_answered')).toHaveLength(0)
  })

  it('a held reply is sent at once where Governor ends', async () => {
    const { ask, errors, governor, events: seen } = await startStormy({}, untilAborted)
    await errors(20, 0)
    const held = ask()
    await expect.poll(() => seen.filter(({ kind }) => kind === 'request_began').length).toBe(21)
    expect(await governor.drain()).toBe(true)
    expect((await held).headers.get('x-governor-storm')).toBe('errors=20')
  })
})

describe('no error storm begins with', () => {
  it('20 errors to different bodies within two seconds', async () => {
    const { url, provider } = await startStormy()
    for (let at = 0; at < 25; at++) await callModel(url, START, { headers: ID, body: { seed: at } })
    expect(provider.requests).toHaveLength(25)
  })

  it.each([
    ['20 errors in less than a minute', 20, 3, OVERLOADED],
    ['19 errors', 19, 4, OVERLOADED],
    ['errors about the request', 30, 4, { status: 400, body: { error: { message: 'no' } } }],
    ['errors about the credential', 30, 4, { status: 401, body: { error: { message: 'no' } } }],
    [
      'overflows, whatever their status',
      30,
      4,
      {
        status: 500,
        body: { error: { message: 'maximum context length is 8192 tokens, you requested 9001 tokens' } },
      },
    ],
  ] as const)('%s', async (_, count, seconds, answer) => {
    const { ask, errors, provider, state } = await startStormy()
    state.answer = answer
    await errors(count, seconds)
    const before = provider.requests.length
    expect((await ask()).headers.get('x-governor-storm')).toBeNull()
    expect(provider.requests.length).toBeGreaterThan(before)
  })

  it('errors with a success between them', async () => {
    const { ask, errors, later, provider, state } = await startStormy()
    await errors(19, 4)
    state.answer = undefined
    later(4)
    await ask()
    state.answer = OVERLOADED
    await errors(10, 4)
    await ask()
    expect(provider.requests).toHaveLength(31)
  })

  it.each([
    ['storms are disabled', { storm: { enabled: false } }],
    ['Governor only observes', { mode: 'observe' }],
  ])('errors when %s', async (_, config) => {
    const { errors, provider } = await startStormy(config)
    await errors(30, 4)
    expect(provider.requests).toHaveLength(30)
  })
})

it('an unreachable upstream causes an error storm, which ends when the upstream is back', async () => {
  let time = 0
  const { url, provider, events } = await startBoth(runaway(), {}, { now: () => time, delay: atOnce })
  const { messages } = await runAgent(url, START, { headers: ID, max: 2 })
  await provider.close()
  for (let at = 0; at < 20; at++) {
    time += 4_000
    expect((await callModel(url, messages, { headers: ID })).status).toBe(502)
  }
  const step = await callModel(url, messages, { headers: ID })
  expect([step.status, step.headers.get('x-governor-storm')]).toEqual([502, 'errors=20'])
  expect(events.filter(({ kind }) => kind === 'storm_answered')).toHaveLength(1)
})

it('overflow.enabled: false does not disable error storms', async () => {
  const { ask, errors } = await startStormy({ overflow: { enabled: false } })
  await errors(20, 4)
  expect((await ask()).headers.get('x-governor-storm')).toBe('errors=20')
})

it('replicas count errors together, hold requests together, and let one probe at a time through', async () => {
  let time = 1_000_000
  const state: { answer: Answer; wait: Promise<void> | undefined } = { answer: OVERLOADED, wait: undefined }
  const arrivals = new EventEmitter()
  const provider = await startProvider(async () => {
    arrivals.emit('request')
    await state.wait
    return state.answer
  })
  onTestFinished(() => provider.close())
  const store = createMemoryStore({ max: 10, ttl: 600_000, maxBytes: 1_000_000 })
  const start = () => startGovernor(provider.url, {}, { store, now: () => time, delay: atOnce })
  const [one, other] = [await start(), await start()]
  const ask = ({ url }: { readonly url: string }) => callModel(url, START, { headers: ID })
  for (let at = 0; at < 20; at++) {
    time += 4_000
    await ask(at % 2 === 0 ? one : other)
  }
  for (const replica of [one, other]) expect((await ask(replica)).headers.get('x-governor-storm')).toBe('errors=20')
  time += 5_000
  let release = () => {}
  state.wait = new Promise((resolve) => {
    release = resolve
  })
  const arrived = once(arrivals, 'request')
  const probe = ask(one)
  await arrived
  expect((await ask(other)).headers.get('x-governor-storm')).toBe('errors=20')
  state.answer = { text: 'Here I am again.' }
  release()
  expect((await probe).status).toBe(200)
  expect((await ask(other)).status).toBe(200)
})
