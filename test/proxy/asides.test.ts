/** Requests that are no step of a run, as titles, summaries and compactions: they count nothing, and their session pays. */
import { describe, expect, it } from 'vitest'
import { listed } from '../support/admin.ts'
import { callModel, START, TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'

const ASK = [{ role: 'user', content: 'Name this conversation.' }]
const CALLED = { type: 'function_call', call_id: 'c1', name: 'search', arguments: '{}' }
const HISTORY = [{ role: 'user', content: 'Go.' }, CALLED, { type: 'function_call_output', call_id: 'c1', output: 'x' }]
const COMPACTED = {
  id: 'resp_1',
  object: 'response.compaction',
  output: [],
  usage: { input_tokens: 100, output_tokens: 10 },
}
const PRICE = { input: 1_000, output: 1_000 }

const REQUESTS = [
  { name: 'Chat Completions', path: '/v1/chat/completions', body: { messages: ASK } },
  {
    name: 'Chat Completions, streamed',
    path: '/v1/chat/completions',
    body: { messages: ASK, stream: true, stream_options: { include_usage: true } },
  },
  { name: 'Messages', path: '/v1/messages', body: { messages: ASK, max_tokens: 9 } },
  { name: 'Messages, streamed', path: '/v1/messages', body: { messages: ASK, max_tokens: 9, stream: true } },
  { name: 'Responses', path: '/v1/responses', body: { input: 'Name this conversation.' } },
  { name: 'Responses, streamed', path: '/v1/responses', body: { input: 'Name this conversation.', stream: true } },
  {
    name: 'a compaction of Responses',
    path: '/v1/responses/compact',
    body: { input: HISTORY, tools: [TOOLS[0].function] },
  },
]

const start = () =>
  startBoth(({ target }) => (target.endsWith('/compact') ? { body: COMPACTED } : { text: 'A title' }), {
    models: [{ model: 'm', price: PRICE }],
    budget: { session: { max_cost_usd: 0.5 } },
  })

function post(url: string, path: string, body: object, headers: Record<string, string>): Promise<Response> {
  return fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer sk-test', ...headers },
    body: JSON.stringify({ model: 'm', ...body }),
  })
}

describe.each(REQUESTS)('a request without tools ($name)', ({ path, body }) => {
  it('is billed to the session that its client names, and counts no iteration', async () => {
    const { url, events, until } = await start()
    const headers = { 'x-governor-session': 's' }
    const before = await callModel(url, START, { headers, body: { model: 'm' } })
    await until((event) => event.kind === 'answered')
    const reply = await post(url, path, body, headers)
    await reply.arrayBuffer()
    expect([...reply.headers.keys()].filter((name) => name.startsWith('x-governor'))).toEqual([])
    await until((event) => event.kind === 'answered' && event !== events.find(({ kind }) => kind === 'answered'))
    const session = await (await fetch(`${url}/governor/sessions/s`)).json()
    expect(session).toMatchObject({ tokens: 220, cost_usd: 0.22, iteration: 1 })
    const next = [...START, before.message, { role: 'user', content: 'Go on.' }]
    const after = await callModel(url, next, { headers, body: { model: 'm' } })
    expect(after.headers.get('x-governor-iteration')).toBe('1/300')
  })

  it('reaches the limit of its session, also if it is the first of it, and not that of another credential', async () => {
    const { url, events, until } = await start()
    const headers = { 'x-governor-session': 's' }
    for (let sent = 1; sent <= 5; sent++) {
      await (await post(url, path, body, headers)).arrayBuffer()
      await until(() => events.filter(({ kind }) => kind === 'answered').length === sent)
    }
    // People find it by that name.
    await expect.poll(() => listed(url, '?name=s'), { timeout: 20_000 }).toMatchObject([{ name: 's', cost_usd: 0.55 }])
    const other = await callModel(url, START, {
      headers: { ...headers, authorization: 'Bearer sk-b' },
      body: { model: 'm' },
    })
    expect(other.headers.get('x-governor-verdict')).not.toBe('stop')
    const step = await callModel(url, START, { headers, body: { model: 'm' } })
    expect(step.governor).toMatchObject({ terminal_reason: 'max_cost' })
  })

  it('belongs to no session without a name', async () => {
    const { url, events, until } = await start()
    await (await post(url, path, body, {})).arrayBuffer()
    await until((event) => event.kind === 'request_ended')
    expect(events.map(({ kind }) => kind)).not.toContain('answered')
    expect(await (await fetch(`${url}/governor/sessions`)).json()).toMatchObject({ total: 0 })
  })
})
