/** Requests on a WebSocket are counted, warned, blocked and stopped as those over HTTP. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import type { Item } from '../support/responses.ts'
import { openSocket } from '../support/websocket-client.ts'
import { type SocketScript, startSocketProvider } from '../support/websocket-provider.ts'

const TOOLS = [{ type: 'function', name: 'search', parameters: { type: 'object' } }]
const user = (text: string) => [{ type: 'message', role: 'user', content: [{ type: 'input_text', text }] }]
const base = { model: 'gpt-5', tools: TOOLS, store: false }

async function start(script: SocketScript, config: { [key: string]: unknown } = {}) {
  const provider = await startSocketProvider(script)
  onTestFinished(() => provider.close())
  const running = await startGovernor(provider.url, { ...config, server: { websocket: 'guard' } })
  return { ...running, provider }
}

const endOf = (events: readonly Item[]) => events.at(-1)?.['response'] as Item
const textOf = (response: Item) =>
  (response['output'] as Item[])
    .flatMap(({ content }) => (content as { text?: string }[] | undefined) ?? [])
    .map(({ text }) => text ?? '')
    .join('')
const callsOf = (response: Item) => (response['output'] as Item[]).filter(({ type }) => type === 'function_call')
const resultsFor = (response: Item, output = 'Nothing was found for this query.') =>
  callsOf(response).map(({ call_id }) => ({ type: 'function_call_output', call_id, output }))

/** A model that calls a tool for ever, and answers when it may choose none. */
const runaway: SocketScript = ({ json }, number) =>
  !json.tools || json.tool_choice === 'none'
    ? { text: 'This is what I found so far.' }
    : { calls: [{ name: 'search', arguments: { query: `q${number}` } }] }

describe('a run on a WebSocket', () => {
  it('is counted, gets notices and ends in an answer without calls, which its repeat gets again', async () => {
    const { url, provider, events } = await start(runaway, { budget: { max_iterations: 4, adaptive: false } })
    const client = await openSocket(url, { 'session-id': 's-1' })
    let events1 = await client.ask({ ...base, input: user('find it') })
    let response = endOf(events1)
    for (let step = 2; callsOf(response).length > 0; step++) {
      expect(step).toBeLessThan(7)
      const input = resultsFor(response)
      events1 = await client.ask({ ...base, previous_response_id: response['id'], input })
      response = endOf(events1)
    }
    expect(events1.at(-1)?.['type']).toBe('response.completed')
    expect(textOf(response)).toContain('This is what I found so far.')
    expect(response['governor']).toMatchObject({
      terminal_state: 'tool_limit_reached',
      terminal_reason: 'max_iterations',
      has_final_answer: true,
      budget_used: 4,
      session: 's-1',
    })
    const asked = provider.received.filter(({ json }) => json['type'] === 'response.create')
    expect(asked.length).toBe(5)
    expect(asked.map(({ json }) => /Iteration (\d)\/4/.exec(String(json['instructions']))?.[1])).toContain('4')
    const again = endOf(await client.ask({ ...base, previous_response_id: response['id'], input: [] }))
    expect(textOf(again)).toContain('This is what I found so far.')
    expect(again['governor']).toMatchObject({ terminal_reason: 'max_iterations' })
    expect(provider.received.length).toBe(5)
    const ended = events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
    expect(ended.slice(0, 4).map(({ iteration }) => iteration)).toEqual([1, 2, 3, 4])
    expect(ended.every(({ method, session }) => method === 'WEBSOCKET' && session === 's-1')).toBe(true)
    expect(ended.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'warn', 'warn', 'stop', 'stop'])
  })

  it('goes on from the answer to a blocked call, which the client sees as one response', async () => {
    const script: SocketScript = ({ items = [] }) =>
      JSON.stringify(items).includes('[LOOP GUARD] Blocked')
        ? { text: 'All done: 42.' }
        : { calls: [{ name: 'search', arguments: { query: 'the same' } }] }
    const { url, provider, events } = await start(script)
    const client = await openSocket(url, { 'session-id': 's-1' })
    let last = await client.ask({ ...base, input: user('find it') })
    for (let step = 0; callsOf(endOf(last)).length > 0 && step < 12; step++) {
      const input = resultsFor(endOf(last))
      last = await client.ask({ ...base, previous_response_id: endOf(last)['id'], input })
    }
    expect(textOf(endOf(last))).toBe('All done: 42.')
    expect(last.filter(({ type }) => type === 'response.created').length).toBe(1)
    expect(last.at(-1)?.['type']).toBe('response.completed')
    expect(callsOf(endOf(last))).toEqual([])
    expect(events.filter(({ kind }) => kind === 'call_blocked').length).toBe(1)
    const [before, after] = provider.received.slice(-2)
    // The provider's own id of the response whose call was blocked, and only its result.
    const blocked = provider.received.length - 1
    expect(after?.json['previous_response_id']).toBe(`resp_${blocked}`)
    expect(before?.json['previous_response_id']).toBe(`resp_${blocked - 1}`)
    expect(after?.json['input']).toMatchObject([{ type: 'function_call_output' }])
    // The client continues from the id that it saw.
    const next = await client.ask({ ...base, previous_response_id: endOf(last)['id'], input: user('thanks') })
    expect(next.at(-1)?.['type']).toBe('response.completed')
    expect(provider.received.at(-1)?.json['previous_response_id']).toBe(`resp_${blocked + 1}`)
  })

  it('keeps a call that passes beside one that is blocked, and answers the blocked one itself', async () => {
    const same = { name: 'search', arguments: { query: 'the same' } }
    const { url, provider } = await start((_, number) =>
      number < 9 ? { calls: number === 7 ? [same, { name: 'read', arguments: {} }] : [same] } : { text: 'Done.' },
    )
    const client = await openSocket(url, { 'session-id': 's-1' })
    let last = await client.ask({ ...base, input: user('find it') })
    while (callsOf(endOf(last))[0]?.['name'] === 'search') {
      expect(provider.received.length).toBeLessThan(8)
      const input = resultsFor(endOf(last))
      last = await client.ask({ ...base, previous_response_id: endOf(last)['id'], input })
    }
    expect(callsOf(endOf(last)).map(({ name }) => name)).toEqual(['read'])
    const input = resultsFor(endOf(last), 'found it')
    last = await client.ask({ ...base, previous_response_id: endOf(last)['id'], input })
    // The provider accepts only a result for each call.
    expect(last.at(-1)?.['type'], JSON.stringify(last.at(-1))).toBe('response.completed')
    const eighth = provider.received.find(({ json }) => json['previous_response_id'] === 'resp_7')
    expect(eighth?.json['input']).toHaveLength(2)
  })

  it('begins with a request that only warms up, which is no iteration, gets no notice and is billed', async () => {
    const { url, provider, events } = await start(() => ({ text: 'Done.' }), { budget: { max_iterations: 1 } })
    const client = await openSocket(url, { 'session-id': 's-1' })
    const warm = endOf(await client.ask({ ...base, input: [], instructions: 'You search.', generate: false }))
    expect(provider.received[0]?.text).toBe(
      JSON.stringify({ type: 'response.create', ...base, input: [], instructions: 'You search.', generate: false }),
    )
    await client.ask({ ...base, previous_response_id: warm['id'], input: user('find it') })
    const ended = events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
    expect(ended.map(({ iteration }) => iteration)).toEqual([undefined, 1])
    const billed = () => events.flatMap((event) => (event.kind === 'answered' && event.usage.input > 0 ? [event] : []))
    await expect.poll(() => billed().map(({ iteration }) => iteration)).toEqual([0, 1])
  })

  it('belongs to the session and the thread that its own metadata names, before those of the handshake', async () => {
    const { url, events } = await start(() => ({ text: 'Done.' }))
    const client = await openSocket(url, { 'session-id': 's-1', 'thread-id': 't-1' })
    await client.ask({ ...base, input: user('one') })
    const client_metadata = { session_id: 's-2', thread_id: 't-2', authorization: 'Bearer other', 'a b': 'c' }
    await client.ask({ ...base, input: user('two'), client_metadata })
    await client.ask({ ...base, input: user('three'), client_metadata: { thread_id: 't-3' } })
    const ended = events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
    expect(ended.map(({ session }) => session)).toEqual(['s-1', 's-2', 's-1'])
    expect(ended.map(({ iteration }) => iteration)).toEqual([1, 1, 1])
  })
})

describe('an error', () => {
  it('of the provider reaches the client as it is, and gives the iteration back', async () => {
    const error = { type: 'rate_limit', code: 'slow_down', message: 'Slow down.' }
    const { url, provider, events } = await start((_, number) =>
      number === 1 ? { status: 429, body: { error } } : { text: 'Done.' },
    )
    const client = await openSocket(url, { 'session-id': 's-1' })
    const [failed] = await client.ask({ ...base, input: user('find it') })
    expect(failed).toEqual({ type: 'error', status: 429, error })
    expect(client.messages[0]).toBe(provider.sent[0]?.[0])
    await client.ask({ ...base, input: user('find it') })
    const ended = events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
    expect(ended.map(({ status, iteration }) => [status, iteration])).toEqual([
      [429, 1],
      [200, 1],
    ])
  })

  it('about a state that is lost has its code and the status 400, also where Governor continues elsewhere', async () => {
    const { url } = await start(runaway, { budget: { max_iterations: 2 } })
    const first = await openSocket(url, { 'session-id': 's-1' })
    let response = endOf(await first.ask({ ...base, input: user('find it') }))
    for (let step = 0; step < 2; step++) {
      const input = resultsFor(response)
      response = endOf(await first.ask({ ...base, previous_response_id: response['id'], input }))
    }
    expect(response['governor']).toBeDefined()
    const second = await openSocket(url, { 'session-id': 's-1' })
    const [lost] = await second.ask({ ...base, previous_response_id: response['id'], input: user('and now?') })
    expect(lost).toMatchObject({ type: 'error', status: 400, error: { code: 'previous_response_not_found' } })
    const all = await second.ask({ ...base, input: [...user('find it'), ...user('and now?')] })
    expect(all.at(-1)?.['type']).toBe('response.completed')
  })

  it.each([true, false])(
    'about an answer of Governor’s own comes only where nothing is stored (store: %s)',
    async (store) => {
      const { url, provider } = await start(() => ({ text: 'Done.' }), { budget: { day: { max_iterations: 1 } } })
      const client = await openSocket(url)
      await client.ask({ ...base, store, input: user('Use it up.') })
      const closed = endOf(await client.ask({ ...base, store, input: user('find it') }))
      expect(closed['governor']).toMatchObject({ scope: 'day' })
      const body = JSON.stringify({ scope: 'day', subject: null, max_iterations: 9 })
      await fetch(`${url}/governor/budget`, { method: 'PATCH', headers: { 'content-type': 'application/json' }, body })
      const input = user('and now?')
      const last = (await client.ask({ ...base, store, input, previous_response_id: closed['id'] })).at(-1)
      // Such a client has its history, and sends it again.
      if (!store) return expect(last).toMatchObject({ status: 400, error: { code: 'previous_response_not_found' } })
      expect(last?.['type']).toBe('response.completed')
      expect(provider.received.at(-1)?.items).toEqual(input)
    },
  )

  it('that says the input is too long gets its meaning, with its status', async () => {
    const error = {
      type: 'invalid_request_error',
      code: 'context_length_exceeded',
      message: 'Your input exceeds the context window of this model.',
    }
    const { url } = await start(() => ({ status: 400, body: { error } }))
    const client = await openSocket(url)
    const [failed] = await client.ask({ ...base, input: user('find it') })
    expect(failed).toMatchObject({
      type: 'error',
      status: 400,
      error: { code: 'context_length_exceeded', governor: { recovery: expect.any(String) } },
    })
  })

  it('of an edited request has the client’s own request sent instead', async () => {
    const { url, provider } = await start(
      ({ json }) =>
        json['instructions'] === undefined
          ? { calls: [{ name: 'search', arguments: {} }] }
          : { status: 400, body: { error: { message: 'Unsupported parameter: instructions', param: 'instructions' } } },
      { budget: { max_iterations: 2, adaptive: false } },
    )
    const client = await openSocket(url, { 'session-id': 's-1' })
    // What a provider stores it keeps after a refusal too.
    const stored = { ...base, store: true }
    const first = endOf(await client.ask({ ...stored, input: user('find it') }))
    const second = await client.ask({ ...stored, previous_response_id: first['id'], input: resultsFor(first) })
    expect(second.at(-1)?.['type']).toBe('response.completed')
    expect(provider.received.length).toBe(3)
  })
})

describe('lanes', () => {
  it('run side by side, each with requests one after the other, and have sessions of their own', async () => {
    const release: (() => void)[] = []
    const { url, provider, events } = await start(async ({ json }) => {
      if (json['stream_id'] === 'slow') await new Promise<void>((resolve) => release.push(resolve))
      return { text: `In ${String(json['stream_id'])}.` }
    })
    const client = await openSocket(url, { 'session-id': 's-1' })
    const ask = (lane: string, text: string) =>
      client.send({
        type: 'response.create',
        ...base,
        stream_id: lane,
        input: user(text),
        client_metadata: { thread_id: lane },
      })
    ask('slow', 'one')
    ask('slow', 'two')
    ask('fast', 'three')
    const ends = (messages: readonly string[]) =>
      messages.map((text) => JSON.parse(text) as Item).filter(({ type }) => type === 'response.completed')
    await client.until((messages) => ends(messages).length === 1)
    expect(ends(client.messages)[0]?.['stream_id']).toBe('fast')
    // The second request of a lane waits for the first.
    expect(provider.received.map(({ json }) => json['stream_id']).sort()).toEqual(['fast', 'slow'])
    release.shift()?.()
    await expect.poll(() => release.length).toBe(1)
    release.shift()?.()
    await client.until((messages) => ends(messages).length === 3)
    expect(ends(client.messages).map(({ stream_id }) => stream_id)).toEqual(['fast', 'slow', 'slow'])
    expect(provider.sent[0]?.length).toBe(client.messages.length)
    const ended = events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
    expect(ended.map(({ iteration }) => iteration)).toEqual([1, 1, 1])
  })

  it('are named in what Governor says itself', async () => {
    const { url } = await start(runaway, { budget: { max_iterations: 1 } })
    const client = await openSocket(url, { 'session-id': 's-1' })
    let response = endOf(await client.ask({ ...base, stream_id: 'a', input: user('find it') }))
    for (let step = 0; step < 2; step++) {
      const from = client.messages.length
      const input = resultsFor(response)
      response = endOf(await client.ask({ ...base, stream_id: 'a', previous_response_id: response['id'], input }))
      const lanes = client.messages.slice(from).map((text) => (JSON.parse(text) as Item)['stream_id'])
      expect(new Set(lanes)).toEqual(new Set(['a']))
    }
    expect(response['governor']).toBeDefined()
  })
})
