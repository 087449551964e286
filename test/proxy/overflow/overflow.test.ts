import { gzipSync } from 'node:zlib'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI, { APIError, BadRequestError } from 'openai'
import { describe, expect, it } from 'vitest'
import { checkConfig } from '../../../src/config/load.ts'
import { createMemoryStore } from '../../../src/store/memory.ts'
import { TOOLS } from '../../support/agent.ts'
import { startBoth, startGovernor } from '../../support/governor.ts'
import { type Answer, serve } from '../../support/provider.ts'
import { rawRequest } from '../../support/raw-reply.ts'

const TOO_LONG = {
  error: {
    message: "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
    type: 'invalid_request_error',
    param: 'messages',
    code: 'context_length_exceeded',
  },
}

const HUMAN = { role: 'user', content: 'hello' }

const ask = (url: string, more: object = {}, headers: Record<string, string> = {}, path = '/v1/chat/completions') =>
  fetch(`${url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer k', ...headers },
    body: JSON.stringify({ model: 'house-model', messages: [HUMAN], tools: TOOLS, ...more }),
  })

const governorOf = async (response: Response) => {
  const body = (await response.json()) as { error?: { governor?: unknown }; governor?: unknown }
  return body.error?.governor ?? body.governor
}

describe('an overflow error', () => {
  it('keeps its status and body, and says what the client can do', async () => {
    const { url, events } = await startBoth(() => ({ status: 400, body: TOO_LONG }))
    const response = await ask(url)
    expect(response.status).toBe(400)
    expect(response.headers.get('x-governor-overflow')).toBe('shrink_context')
    const { error } = (await response.json()) as { error: Record<string, unknown> }
    const { governor, ...original } = error
    expect(original).toEqual(TOO_LONG.error)
    expect(governor).toEqual({
      recovery: 'shrink_context',
      quirk: 'context-length-code',
      limit: 8192,
      prompt_tokens: 9001,
      max_output: null,
      overflow_by: null,
      context: { base: 8192, effective: 8192, source: 'provider' },
    })
    expect(events).toContainEqual(
      expect.objectContaining({ kind: 'overflow', recovery: 'shrink_context', quirk: 'context-length-code' }),
    )
  })

  it('keeps every other byte of its body', async () => {
    const body =
      '{ "error" : {"code": "context_length_exceeded", "big": 9007199254740993, "x": 1.0 }, "é":"\\u00e9" }\n'
    const { url } = await startBoth(() => ({ status: 400, body }))
    const text = await (await ask(url)).text()
    expect(text.replace(/,"governor":\{.*?"source":"[a-z]+"\}\}/, '')).toBe(body)
    expect(text).not.toBe(body)
  })

  it('is annotated for requests that are not counted, too', async () => {
    const { url } = await startBoth(() => ({ status: 400, body: TOO_LONG }))
    const response = await ask(url, { tools: undefined })
    expect(response.headers.get('x-governor-overflow')).toBe('shrink_context')
    expect(await governorOf(response)).toMatchObject({ limit: 8192, context: { base: 8192 } })
  })

  it('is sent without content coding and without etag when its body was annotated', async () => {
    const coded = gzipSync(JSON.stringify(TOO_LONG))
    const provider = await serve((request, response) => {
      request.resume()
      response.writeHead(400, { 'content-type': 'application/json', 'content-encoding': 'gzip', etag: '"x"' })
      response.end(coded)
    })
    const governor = await startGovernor(provider.url)
    const response = await ask(governor.url)
    expect(response.headers.get('content-encoding')).toBeNull()
    expect(response.headers.get('etag')).toBeNull()
    expect(await governorOf(response)).toMatchObject({ recovery: 'shrink_context' })
    await provider.close()
  })

  it.each<[string, Answer, unknown]>([
    ['a bare string', { status: 400, body: '"prompt is too long"' }, undefined],
    [
      'plain text',
      { status: 500, body: 'the context window is full', headers: { 'content-type': 'text/plain' } },
      undefined,
    ],
  ])('is described only in headers when the body is %s', async (_, answer) => {
    const { url } = await startBoth(() => answer)
    const response = await ask(url)
    expect(response.headers.get('x-governor-overflow')).toMatch(/^(?:compress_only|unknown_overflow)$/)
    expect(JSON.parse(response.headers.get('x-governor-overflow-detail') ?? '')).toMatchObject({
      limit: null,
    })
    expect(await response.text()).toBe(answer.body)
  })

  it.each<[string, unknown]>([
    ['the error is a string', { error: 'the input length exceeds the context length' }],
    ['the body is the error', { object: 'error', message: 'the input length exceeds the context length' }],
  ])('is described in a field of the body beside the error when %s', async (_, body) => {
    const { url } = await startBoth(() => ({ status: 400, body }))
    const given = (await (await ask(url)).json()) as Record<string, unknown>
    expect(given).toMatchObject({ ...(body as object), governor: { recovery: 'compress_only' } })
  })

  it('is annotated in the first error of a list', async () => {
    const { url } = await startBoth(() => ({ status: 400, body: [TOO_LONG] }))
    const given = (await (await ask(url)).json()) as [{ error: { governor: unknown } }]
    expect(given[0].error.governor).toMatchObject({ recovery: 'shrink_context' })
  })

  it('is recognized in a response with status 200', async () => {
    const { url } = await startBoth(() => ({ status: 200, body: TOO_LONG }))
    const response = await ask(url)
    expect(response.status).toBe(200)
    expect(response.headers.get('x-governor-overflow')).toBe('shrink_context')
  })

  it('is recognized in a plain text with status 200, but not if the client asked for a stream', async () => {
    const headers = { 'content-type': 'text/plain' }
    const text = 'Input is too long for requested model.'
    const { url } = await startBoth(({ json }) => ({
      status: 200,
      body: json.stream ? `data: ${text}\n\n` : text,
      headers,
    }))
    const whole = await ask(url)
    expect(whole.headers.get('x-governor-overflow')).toBe('compress_only')
    expect(await whole.text()).toBe(text)
    const events = await ask(url, { stream: true })
    expect(events.headers.get('x-governor-overflow')).toBeNull()
    expect(await events.text()).toBe(`data: ${text}\n\n`)
  })

  it('reaches users of the OpenAI SDK as the exception they know, with the recovery', async () => {
    const { url } = await startBoth(() => ({ status: 400, body: TOO_LONG }))
    const client = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
    const failed = await client.chat.completions
      .create({ model: 'm', messages: [{ role: 'user', content: 'x' }] })
      .catch((error: unknown) => error)
    expect(failed).toBeInstanceOf(BadRequestError)
    const { code, error, headers } = failed as APIError & { error: { governor: unknown } }
    expect(code).toBe('context_length_exceeded')
    expect(error).toMatchObject({ governor: { recovery: 'shrink_context', limit: 8192 } })
    expect(headers?.get('x-governor-overflow')).toBe('shrink_context')
  })

  it('reaches users of the OpenAI SDK as an exception within a stream', async () => {
    const { url } = await startBoth(() => ({
      status: 200,
      body: `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"so"}}]}\n\ndata: ${JSON.stringify(TOO_LONG)}\n\n`,
      headers: { 'content-type': 'text/event-stream' },
    }))
    const client = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
    const read = async () => {
      const stream = await client.chat.completions.create({
        model: 'm',
        stream: true,
        messages: [{ role: 'user', content: 'x' }],
      })
      for await (const chunk of stream) expect(chunk.choices[0]?.delta.content).toBe('so')
    }
    const failed = (await read().catch((error: unknown) => error)) as APIError & { error: unknown }
    expect(failed).toBeInstanceOf(APIError)
    expect(failed.error).toMatchObject({ governor: { recovery: 'shrink_context', limit: 8192 } })
  })

  it('reaches users of the Anthropic SDK as the exception they know', async () => {
    const message = 'prompt is too long: 205000 tokens > 200000 maximum'
    const body = { type: 'error', error: { type: 'invalid_request_error', message }, request_id: 'req_1' }
    const { url } = await startBoth(() => ({ status: 400, body }))
    const client = new Anthropic({ apiKey: 'k', baseURL: url, maxRetries: 0 })
    const failed = (await client.messages
      .create({ model: 'claude', max_tokens: 10, messages: [{ role: 'user', content: 'x' }] })
      .catch((error: unknown) => error)) as InstanceType<typeof Anthropic.BadRequestError>
    expect(failed).toBeInstanceOf(Anthropic.BadRequestError)
    expect(failed.error).toMatchObject({
      error: { message, governor: { recovery: 'shrink_context', limit: 200_000, prompt_tokens: 205_000 } },
      request_id: 'req_1',
    })
  })

  it('does not make Governor send the request again without its notice', async () => {
    const { url, provider, events } = await startBoth(
      ({ json }) =>
        json.messages.length > 1 ? { status: 400, body: TOO_LONG } : { calls: [{ name: 'search', arguments: {} }] },
      { budget: { max_iterations: 2 } },
    )
    const response = await ask(url, {
      messages: [
        HUMAN,
        {
          role: 'assistant',
          content: null,
          tool_calls: [{ id: 'c', type: 'function', function: { name: 'search', arguments: '{}' } }],
        },
        { role: 'tool', tool_call_id: 'c', content: 'found' },
      ],
    })
    expect(response.headers.get('x-governor-verdict')).toBe('allow')
    expect(response.headers.get('x-governor-tier')).toBe('warning')
    expect(response.headers.get('x-governor-overflow')).toBe('shrink_context')
    expect(provider.requests.length).toBe(1)
    expect(provider.requests[0]?.body.includes('[BUDGET')).toBe(true)
    expect(events.some(({ kind }) => kind === 'alteration_refused')).toBe(false)
  })

  it('is not changed when overflow handling is disabled', async () => {
    const { url } = await startBoth(() => ({ status: 400, body: TOO_LONG }), { overflow: { enabled: false } })
    const response = await ask(url)
    expect(response.headers.get('x-governor-overflow')).toBeNull()
    expect(await response.json()).toEqual(TOO_LONG)
  })
})

describe('an error that is no overflow', () => {
  const gzipped = gzipSync(JSON.stringify({ error: { message: 'Rate limit reached: 40,000 tokens per minute' } }))

  it.each<[string, number, string | Buffer, Record<string, string>]>([
    ['a rate limit in tokens per minute', 429, '{"error":{"message":"Too many tokens per minute: limit 40,000"}}', {}],
    ['a parameter', 400, '{"error": {"message":"max_tokens: must be positive"} }', {}],
    ['too many bytes', 413, 'Payload Too Large', { 'content-type': 'text/plain' }],
    ['memory', 500, '{"error":"model requires more system memory (8.4 GiB) than is available"}', {}],
    ['nothing', 503, '', {}],
    ['a page', 502, '<html>Bad gateway</html>', { 'content-type': 'text/html' }],
    ['a coded body', 429, gzipped, { 'content-encoding': 'gzip' }],
    ['a body that is not in the coding it claims', 400, 'prompt is too long', { 'content-encoding': 'br' }],
    ['more than is looked at', 400, `{"error":{"message":"prompt is too long","pad":"${'x'.repeat(70_000)}"}}`, {}],
  ])('about %s is relayed byte for byte', async (_, status, body, headers) => {
    const provider = await serve((request, response) => {
      request.resume()
      response.writeHead(status, { 'content-type': 'application/json', ...headers })
      response.end(body)
    })
    const { url } = await startGovernor(provider.url)
    const reply = await rawRequest(
      `${url}/v1/chat/completions`,
      JSON.stringify({ model: 'm', messages: [HUMAN], tools: TOOLS }),
    )
    expect(reply.status).toBe(status)
    expect(reply.body.equals(Buffer.from(body))).toBe(true)
    expect(reply.headers['content-encoding']).toBe(headers['content-encoding'])
    expect(reply.headers['x-governor-overflow']).toBeUndefined()
    await provider.close()
  })
})

describe('a canonical overflow error', () => {
  const config = { overflow: { canonical: true } }
  const odd = { error: 'Prompt is 9001 tokens but the model context window is 8192 tokens.' }

  it('has the form of OpenAI, and contains the original error', async () => {
    const { url } = await startBoth(() => ({ status: 500, body: odd }), config)
    const response = await ask(url)
    expect(response.status).toBe(400)
    expect(await response.json()).toEqual({
      error: {
        message:
          "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. Please reduce the length of the messages.",
        type: 'invalid_request_error',
        param: null,
        code: 'context_length_exceeded',
        governor: expect.objectContaining({ recovery: 'shrink_context', original: odd }),
      },
    })
  })

  it('has the form of Anthropic for a client of the Messages API', async () => {
    const { url } = await startBoth(() => ({ status: 413, body: odd }), config)
    const body = { model: 'claude', max_tokens: 100, messages: [HUMAN] }
    const response = await ask(
      url,
      { ...body, tools: undefined },
      { 'anthropic-version': '2023-06-01' },
      '/v1/messages',
    )
    expect(response.status).toBe(400)
    expect(await response.json()).toEqual({
      type: 'error',
      error: {
        type: 'invalid_request_error',
        message: 'prompt is too long: 9001 tokens > 8192 maximum',
        governor: expect.objectContaining({ original: odd }),
      },
    })
  })

  it('does not replace an error about the output cap', async () => {
    const body = {
      error: { message: 'max_tokens is too large: 9000. This model supports at most 4096 completion tokens' },
    }
    const { url } = await startBoth(() => ({ status: 400, body }), config)
    expect(await (await ask(url)).json()).toMatchObject(body)
  })
})

describe('a quirk of the user', () => {
  it('is tried before all built-in rows, also after a reload', async () => {
    const quirks = [
      {
        id: 'house',
        status: 418,
        text: 'cup of (?<limit>\\d+)',
        means: 'shrink_context',
      },
    ]
    const { url, governor } = await startBoth(
      () => ({ status: 418, body: { error: { message: 'more than a cup of 4096' } } }),
      {
        overflow: { quirks },
      },
    )
    expect(await governorOf(await ask(url))).toMatchObject({ quirk: 'house', limit: 4096 })
    const renamed = quirks.map((quirk) => ({ ...quirk, id: 'house-two' }))
    governor.reload(checkConfig({ overflow: { quirks: renamed } }, 'test'))
    expect(await governorOf(await ask(url))).toMatchObject({ quirk: 'house-two', limit: 4096 })
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_overflow_total{recovery="shrink_context",quirk="house"} 1')
    expect(metrics).toContain('governor_overflow_total{recovery="shrink_context",quirk="house-two"} 1')
  })
})

describe('the context window of a model', () => {
  const COMPRESS = { status: 400, body: { error: { message: 'prompt is too long' } } }
  const usage = (tokens: number) => ({
    prompt_tokens: tokens,
    completion_tokens: 1,
    total_tokens: tokens + 1,
  })
  const fine = (tokens: number): Answer => ({
    body: {
      id: 'x',
      object: 'chat.completion',
      choices: [{ index: 0, message: { role: 'assistant', content: 'ok' }, finish_reason: 'stop' }],
      usage: usage(tokens),
    },
  })
  const contextOf = async (response: Response) => ((await governorOf(response)) as { context: unknown }).context

  it('comes from the configuration first, then from the provider, then from the catalogue', async () => {
    const answers: Answer[] = [{ status: 400, body: TOO_LONG }, COMPRESS]
    const { url } = await startBoth((_, number) => answers[(number - 1) % 2] ?? {}, {
      models: [{ model: 'house-*', context_window: 100_000 }],
    })
    const session = { 'x-governor-session': 'a' }
    expect(await contextOf(await ask(url, {}, session))).toEqual({
      base: 100_000,
      effective: 8192,
      source: 'config',
    })
    expect(await contextOf(await ask(url, {}, session))).toEqual({
      base: 100_000,
      effective: 8192,
      source: 'config',
    })
    await ask(url, { model: 'gpt-4o' }, { 'x-governor-session': 'b' })
    const other = await contextOf(await ask(url, { model: 'gpt-4' }, { 'x-governor-session': 'b' }))
    expect(other).toMatchObject({ source: 'catalogue' })
  })

  it('that one session learned is not used for another session', async () => {
    const tier = {
      status: 429,
      body: { error: { message: 'Extra usage is required for long context requests.' } },
    }
    const { url } = await startBoth((_, number) => (number === 1 ? tier : COMPRESS), {
      models: [{ model: 'house-*', context_window: 1_000_000 }],
    })
    expect(await contextOf(await ask(url, {}, { 'x-governor-session': 'a' }))).toMatchObject({
      base: 1_000_000,
      effective: 200_000,
    })
    expect(await contextOf(await ask(url, { n: 2 }, { 'x-governor-session': 'a' }))).toMatchObject({
      effective: 200_000,
    })
    expect(await contextOf(await ask(url, {}, { 'x-governor-session': 'b' }))).toMatchObject({
      effective: 1_000_000,
    })
  })

  it('is learned from lists of models that Governor relays unchanged', async () => {
    const list = '{"object":"list","data":[ {"id":"house-model","max_model_len":16384} ]}'
    const provider = await serve((request, response) => {
      request.resume()
      const isList = request.method === 'GET'
      response.writeHead(isList ? 200 : 400, { 'content-type': 'application/json' })
      response.end(isList ? list : JSON.stringify(COMPRESS.body))
    })
    const { url } = await startGovernor(provider.url)
    expect(await (await fetch(`${url}/v1/models`)).text()).toBe(list)
    expect(await contextOf(await ask(url))).toEqual({ base: 16_384, effective: 16_384, source: 'provider' })
    await provider.close()
  })

  it('is shared with another process through the same store as soon as one process has learned it', async () => {
    const store = createMemoryStore({ max: 10, ttl: 60_000, maxBytes: 1_000_000 })
    const learns = await startBoth(() => ({ status: 400, body: TOO_LONG }), {}, { store })
    expect(await contextOf(await ask(learns.url))).toMatchObject({ base: 8192, source: 'provider' })
    const knows = await startBoth(() => COMPRESS, {}, { store })
    expect(await contextOf(await ask(knows.url))).toMatchObject({ base: 8192, source: 'provider' })
  })

  it('is forgotten when the provider accepts a larger prompt', async () => {
    const answers: Answer[] = [{ status: 400, body: TOO_LONG }, fine(20_000), COMPRESS]
    const { url, until } = await startBoth((_, number) => answers[number - 1] ?? {})
    expect(await contextOf(await ask(url))).toMatchObject({ base: 8192, source: 'provider' })
    await (await ask(url, { n: 1 })).text()
    await until(({ kind }) => kind === 'answered')
    expect(await contextOf(await ask(url, { n: 2 }))).toEqual({
      base: null,
      effective: null,
      source: 'unknown',
    })
  })
})
