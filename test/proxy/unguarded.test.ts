import { request } from 'node:http'
import zlib from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createMemoryStore } from '../../src/store/memory.ts'
import { firstSession } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway, type Script } from '../support/provider.ts'
import { callResponses, runResponses } from '../support/responses-agent.ts'

const SAME = { calls: [{ name: 'search', arguments: { query: 'the same' } }] }
const NOTICE = /\[BUDGET|\[CONTEXT|You appear to be repeating/
const NO = { status: 400, body: { error: { message: 'no' } } }

/** A provider that refuses each request with a notice. */
const refusing: Script = (request) => (NOTICE.test(request.body.toString()) ? NO : SAME)

const gapsIn = (metrics: string) =>
  [...metrics.matchAll(/^governor_failed_open_total\{reason="(\w+)",guard="none"\} (\d+)$/gm)].map(
    ([, reason, count]) => `${reason} ${count}`,
  )

async function gapsOf(url: string) {
  return gapsIn(await (await fetch(`${url}/metrics`)).text())
}

describe('what is not guarded is counted, said once for each session, and shown in its row', () => {
  it('where no notice reaches the model, whose calls then end the run as if it had been warned', async () => {
    const running = await startBoth((asked, at) => (asked.json.tools ? refusing(asked, at) : { text: 'I stop.' }))
    const { steps } = await runAgent(running.url, START, { headers: { 'x-session-id': 'a' }, max: 30 })
    expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'loop_guard' })
    expect(steps.slice(0, -1).map(({ headers }) => headers.get('x-governor-verdict'))).toEqual(
      Array(steps.length - 1).fill('allow'),
    )
    expect(steps.length).toBeLessThanOrEqual(14)
    const [gap] = await gapsOf(running.url)
    expect(gap).toMatch(/^no_channel \d+$/)
    expect(running.logs.filter((line) => line.includes('no notice reaches the model'))).toHaveLength(1)
    expect(await firstSession(running.url)).toMatchObject({ unguarded: ['no_channel'] })
  })

  it('where a response has a content coding that cannot be read', async () => {
    const coded = { status: 200, headers: { 'content-encoding': 'snappy' }, body: Buffer.from('abc') }
    const running = await startBoth(() => coded)
    const body = JSON.stringify({ model: 'm', messages: START, tools: [{ type: 'function', function: { name: 'a' } }] })
    for (let at = 0; at < 2; at++)
      await fetch(`${running.url}/v1/chat/completions`, { method: 'POST', body, headers: { 'x-session-id': 'a' } })
    expect(await gapsOf(running.url)).toEqual(['unread_coding 2'])
    expect(running.logs.filter((line) => line.includes('not guarded'))).toHaveLength(1)
    expect(await firstSession(running.url)).toMatchObject({ unguarded: ['unread_coding'] })
  })

  it.each([
    ['has no id', {}, {}],
    ['is not stored', { id: 'resp_1' }, { store: false }],
  ])('where a response is made in the background that %s', async (_, more, asked) => {
    const body = { object: 'response', status: 'queued', output: [], usage: null, ...more }
    const { url } = await startBoth(() => ({ status: 200, body }))
    await callResponses(url, { input: 'Go.', background: true, ...asked }, { headers: { 'x-session-id': 'a' } })
    expect(await gapsOf(url)).toEqual(['background 1'])
    expect(await firstSession(url)).toMatchObject({ unguarded: ['background'] })
  })

  it('where one is that is no step of a run, and counted for a limit of a day', async () => {
    const body = { id: 'resp_1', object: 'response', status: 'queued', output: [], usage: null }
    const { url } = await startBoth(() => ({ status: 200, body }), { budget: { day: { max_tokens: 1_000 } } })
    await callResponses(url, { input: 'Go.', background: true, tools: [] }, {})
    expect(await gapsOf(url)).toEqual(['background 1'])
  })

  it.each([false, true])(
    'and not where the answer to a request for one in the background comes at once',
    async (stream) => {
      const { url, events } = await startBoth(runaway(), { budget: { max_iterations: 1 } })
      const { steps } = await runResponses(url, 'Go.', { stateful: true, stream, body: { background: true } })
      expect(steps.at(-1)?.response['governor']).toMatchObject({ has_final_answer: true })
      expect(await gapsOf(url)).toEqual([])
      expect(events.filter(({ kind }) => kind === 'answered')).toHaveLength(2)
    },
  )

  it('where results show no answer that began a session', async () => {
    const { url, logs } = await startBoth(runaway())
    for (const content of ['one', 'two'])
      await callModel(url, [...START, { role: 'tool', tool_call_id: 'gone', content }])
    expect(await gapsOf(url)).toEqual(['no_identity 2'])
    expect(logs.filter((line) => line.includes('not guarded'))).toHaveLength(1)
  })

  it.each([
    ['/v2/chat', { messages: [] }, 1],
    ['/v1beta/interactions', { input: 'Go.', tools: [{}] }, 1],
    ['/v1/embeddings', { model: 'm', input: 'a' }, 0],
    ['/v1/messages/count_tokens', { messages: [], tools: [] }, 0],
    ['/v1/messages/batches', { requests: [{ custom_id: 'a', params: { messages: [], tools: [] } }] }, 1],
    ['/v1/responses/compact', { input: [], tools: [] }, 0],
    ['/v1/responses/input_tokens', { input: [], tools: [] }, 0],
    ['/v1beta/models/m:countTokens', { generateContentRequest: { contents: [], tools: [] } }, 0],
    ['/v1/projects/p/locations/l/publishers/google/models/m:countTokens', { contents: [], tools: [] }, 0],
    ['/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict', { messages: [], tools: [] }, 0],
    ['/v1beta/cachedContents', { contents: [], tools: [] }, 0],
    ['/tokenize', { messages: [], tools: [] }, 0],
    ['/v1beta/models/m:embedContent', { content: {} }, 0],
    ['/v1beta/models/m:batchGenerateContent', { batch: { requests: [{ request: { contents: [], tools: [] } }] } }, 1],
    ['/v1/projects/p/locations/l/publishers/mistralai/models/m:rawPredict', { messages: [] }, 1],
    ['/v1/files', 'a file with "messages"', 1],
  ])('where an agent calls a path that is not guarded: %s %j', async (path, body, requests) => {
    const { url, logs } = await startBoth(() => ({ status: 200, body: {} }))
    for (let at = 0; at < 2; at++) {
      const text = typeof body === 'string' ? body : JSON.stringify(body)
      const reply = await fetch(url + path, { method: 'POST', body: text, headers: { authorization: 'Bearer sk-a' } })
      expect(await reply.json()).toEqual({})
    }
    expect(await gapsOf(url)).toEqual(requests === 0 ? [] : ['path 2'])
    expect(logs.filter((line) => line.includes('not guarded'))).toHaveLength(requests)
  })

  it('and not where the provider knows no such path', async () => {
    const { url } = await startBoth(() => ({ status: 404, body: {} }))
    await fetch(`${url}/v2/chat`, { method: 'POST', body: '{"messages":[]}' })
    expect(await gapsOf(url)).toEqual([])
  })
})

describe('a request of the Messages API without a version in its path', () => {
  const body = JSON.stringify({
    model: 'm',
    max_tokens: 9,
    messages: [{ role: 'user', content: 'Go.' }],
    tools: [{ name: 'a' }],
  })

  it('is guarded where a header says so, and goes to the same path', async () => {
    const { url, provider } = await startBoth(() => ({ status: 200, body: {} }))
    const headers = { 'anthropic-version': '2023-06-01', 'x-api-key': 'sk-a', 'x-session-id': 'a' }
    const reply = await fetch(`${url}/messages`, { method: 'POST', body, headers })
    expect(reply.headers.get('x-governor-iteration')).toBe('1/300')
    expect(provider.requests[0]?.target).toBe('/messages')
    const other = await fetch(`${url}/messages`, { method: 'POST', body, headers: { 'x-session-id': 'a' } })
    expect(other.headers.has('x-governor-iteration')).toBe(false)
    expect(await gapsOf(url)).toEqual(['path 1'])
  })
})

describe('the content codings that a guarded request asks for', () => {
  const asked = async (encoding: string, path = '/v1/chat/completions') => {
    const { url, provider } = await startBoth(() => ({ status: 200, body: {} }))
    await new Promise((resolve) => {
      const { port } = new URL(url)
      const sent = request({ port, path, method: 'POST', headers: { 'accept-encoding': encoding } }, (reply) =>
        reply.resume().on('end', resolve),
      )
      sent.end('{}')
    })
    return provider.requests[0]?.header('accept-encoding')
  }
  const known = 'zstdDecompress' in zlib

  it.each([
    ['gzip, deflate, br', 'gzip, deflate, br'],
    ['zstd,gzip', known ? 'zstd,gzip' : 'gzip'],
    ['zstd', known ? 'zstd' : 'identity'],
    ['dcb, dcz', 'identity'],
    ['*', 'identity'],
    ['br;q=0.5, snappy', 'br;q=0.5'],
    ['snappy, identity;q=0', 'identity'],
    ['gzip, *;q=0', 'gzip, *;q=0'],
    ['', ''],
  ])('are those that this process can read: %j becomes %j', async (encoding, sent) => {
    expect(await asked(encoding)).toBe(sent)
  })

  it('stay as they are on other paths', async () => {
    expect(await asked('snappy', '/v1/embeddings')).toBe('snappy')
  })
})

describe('a tenant whose requests are refused with every edit', () => {
  it('changes no verdict of any other tenant, in any order, over two replicas', async () => {
    const script: Script = (request) =>
      request.header('authorization') === 'Bearer sk-bad' && NOTICE.test(request.body.toString()) ? NO : SAME
    const config = { budget: { max_iterations: 8 }, loop_guard: { enabled: false } }
    const order = fc.array(fc.constantFrom('bad', 'bad', 'one', 'two'), { minLength: 10, maxLength: 30 })
    await fc.assert(
      fc.asyncProperty(order, fc.integer({ min: 1, max: 2 }), async (turns, sessions) => {
        const verdictsIn = async (isMixed: boolean) => {
          const store = createMemoryStore({ max: 100, ttl: 60_000, maxBytes: 10_000_000 })
          const replicas = [await startBoth(script, config, { store }), await startBoth(script, config, { store })]
          const transcripts = new Map<string, typeof START>()
          const verdicts: (string | null)[] = []
          for (const [at, tenant] of turns.entries()) {
            if (tenant === 'bad' && !isMixed) continue
            const id = `${tenant}${at % sessions}`
            const messages = transcripts.get(id) ?? START
            const headers = { authorization: `Bearer sk-${tenant}`, 'x-session-id': id }
            const url = replicas[at % 2]?.url ?? ''
            const step = await callModel(url, messages, { headers })
            const calls = step.message.tool_calls ?? []
            const results = calls.map((call) => ({ role: 'tool', tool_call_id: call.id, content: `${at}` }))
            transcripts.set(id, [...messages, step.message, ...results])
            const verdict = step.headers.get('x-governor-verdict')
            if (tenant !== 'bad') verdicts.push(verdict)
            else expect(verdict).not.toBe('warn')
          }
          return verdicts
        }
        expect(await verdictsIn(true)).toEqual(await verdictsIn(false))
      }),
      { numRuns: 8 },
    )
  })
})

describe('a notice that makes a request too large', () => {
  it('is taken back, and is no refusal of its channel', async () => {
    const large = {
      status: 400,
      body: {
        error: {
          code: 'context_length_exceeded',
          message: "This model's maximum context length is 100 tokens. However, your messages resulted in 101 tokens.",
        },
      },
    }
    const { url, events } = await startBoth((request) => (NOTICE.test(request.body.toString()) ? large : SAME), {
      budget: { max_iterations: 4, adaptive: false, caution_threshold: 0.1 },
      loop_guard: { enabled: false },
    })
    const { steps } = await runAgent(url, START, { headers: { 'x-session-id': 'a' }, max: 2 })
    expect(steps.map(({ status, headers }) => [status, headers.get('x-governor-verdict')])).toEqual([
      [200, 'allow'],
      [200, 'allow'],
    ])
    expect(events.filter(({ kind }) => kind === 'alteration_refused')).toEqual([])
    expect(await firstSession(url)).toMatchObject({ overflows: 0, unguarded: [] })
  })
})
