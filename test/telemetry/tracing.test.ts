/** What an OpenTelemetry collector gets, decoded from the protobuf that the real SDK and exporter send. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join, resolve } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { gzipSync } from 'node:zlib'
import { metrics, propagation, trace } from '@opentelemetry/api'
import { W3CTraceContextPropagator } from '@opentelemetry/core'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto'
import { BatchSpanProcessor, NodeTracerProvider } from '@opentelemetry/sdk-trace-node'
import protobuf from 'protobufjs'
import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { events, MESSAGES_TOOLS } from '../support/messages.ts'
import { startProcess } from '../support/process.ts'
import { serve, startProvider } from '../support/provider.ts'
import { rawRequest } from '../support/raw-reply.ts'

/** The part of opentelemetry/proto/trace/v1/trace.proto that is read here. */
const PROTO = `syntax = "proto3";
message Request { repeated ResourceSpans resource_spans = 1; }
message ResourceSpans { Resource resource = 1; repeated ScopeSpans scope_spans = 2; }
message Resource { repeated KeyValue attributes = 1; }
message ScopeSpans { repeated Span spans = 2; string schema_url = 3; }
message Span {
  bytes trace_id = 1; bytes span_id = 2; bytes parent_span_id = 4; string name = 5; int32 kind = 6;
  repeated KeyValue attributes = 9; repeated Event events = 11; Status status = 15;
}
message Event { string name = 2; repeated KeyValue attributes = 3; }
message Status { int32 code = 3; }
message KeyValue { string key = 1; AnyValue value = 2; }
message AnyValue {
  oneof value {
    string string_value = 1; bool bool_value = 2; int64 int_value = 3; double double_value = 4; ArrayValue array_value = 5;
  }
}
message ArrayValue { repeated AnyValue values = 1; }`

const { root } = protobuf.parse(PROTO, { keepCase: false })
const RequestType = root.lookupType('Request')

type Value = Readonly<Record<string, string | number | { readonly values: readonly Value[] }>>

interface Entry {
  readonly key: string
  readonly value: Value
}

interface WireSpan {
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId: string
  readonly name: string
  readonly kind: number
  readonly attributes: readonly Entry[]
  readonly events: readonly { readonly name: string; readonly attributes: readonly Entry[] }[]
  readonly status?: { readonly code: number }
}

const plain = (value: Value): unknown => {
  const [one] = Object.values(value)
  return typeof one === 'object' ? one.values.map(plain) : one
}
const valuesOf = (entries: readonly Entry[]) => Object.fromEntries(entries.map(({ key, value }) => [key, plain(value)]))
const hex = (base64: string) => Buffer.from(base64, 'base64').toString('hex')

/** A collector on a free port. */
async function startReceiver() {
  const spans: WireSpan[] = []
  const schemas: string[] = []
  const services: unknown[] = []
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    const decoded = RequestType.toObject(RequestType.decode(Buffer.concat(chunks)), {
      bytes: String,
      longs: Number,
      arrays: true,
    }) as {
      resourceSpans: {
        resource: { attributes: Entry[] }
        scopeSpans: { spans: WireSpan[]; schemaUrl?: string }[]
      }[]
    }
    for (const { resource, scopeSpans } of decoded.resourceSpans) {
      services.push(valuesOf(resource.attributes)['service.name'])
      schemas.push(...scopeSpans.map(({ schemaUrl = '' }) => schemaUrl))
    }
    spans.push(...decoded.resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap((scope) => scope.spans)))
    response.writeHead(200, { 'content-type': 'application/x-protobuf' }).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    spans,
    /** The names of the services and the schemas of the spans. */
    services,
    schemas,
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}

/** A collector and the SDK that sends to it, for each test of this file. */
async function startCollector() {
  const receiver = await startReceiver()
  const exporter = new OTLPTraceExporter({ url: `${receiver.url}/v1/traces` })
  const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(exporter)] })
  provider.register({ propagator: new W3CTraceContextPropagator() })
  return {
    schemas: receiver.schemas,
    /** The spans of responses that have ended by now. */
    async ended() {
      // What the last response used is read in the turn after its end.
      await setImmediate()
      await provider.forceFlush()
      return receiver.spans
    },
    async close() {
      await provider.shutdown()
      for (const api of [trace, propagation, metrics]) api.disable()
      receiver.close()
    },
  }
}

const PARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'

describe('tracing with an OpenTelemetry SDK in the process', () => {
  let collector: Awaited<ReturnType<typeof startCollector>>
  beforeEach(async () => {
    collector = await startCollector()
  })
  afterEach(() => collector.close())

  it('records a guarded request as a client span under the client’s span, and as the parent of the provider’s span', async () => {
    const seen: (string | undefined)[] = []
    const { url, until, provider } = await startBoth(({ header }) => {
      seen.push(header('traceparent'))
      return { text: 'Done.' }
    })
    await runAgent(url, START, { headers: { traceparent: PARENT, 'x-governor-session': 'one' } })
    await until(({ kind }) => kind === 'request_ended')
    const [span, ...more] = await collector.ended()
    expect(more).toEqual([])
    expect(span && [hex(span.traceId), hex(span.parentSpanId)]).toEqual(PARENT.split('-').slice(1, 3))
    expect(seen).toEqual([`00-${PARENT.split('-')[1]}-${hex(span?.spanId ?? '')}-01`])
    expect(span).toMatchObject({ name: 'chat gpt-test', kind: 3 })
    expect(valuesOf(span?.attributes ?? [])).toMatchObject({
      'gen_ai.system': 'openai',
      'gen_ai.operation.name': 'chat',
      'gen_ai.request.model': 'gpt-test',
      'server.address': '127.0.0.1',
      'server.port': Number(new URL(provider.url).port),
      'http.response.status_code': 200,
      'governor.verdict': 'allow',
    })
  })

  it('names the span of a request to Gemini by the operation of that API', async () => {
    const { url, until } = await startBoth(() => ({ text: 'Done.' }))
    const contents = [{ role: 'user', parts: [{ text: 'Go.' }] }]
    const tools = [{ functionDeclarations: [{ name: 'search' }] }]
    await rawRequest(`${url}/v1beta/models/gemini-test:generateContent`, JSON.stringify({ contents, tools }))
    await until(({ kind }) => kind === 'request_ended')
    const [span] = await collector.ended()
    expect(span?.name).toBe('generate_content gemini-test')
    expect(valuesOf(span?.attributes ?? [])).toMatchObject({
      'gen_ai.system': 'gcp.gemini',
      'gen_ai.operation.name': 'generate_content',
    })
  })

  const TOOL = { name: 'search', parameters: {}, input_schema: {} }
  it.each([
    ['Chat Completions', 'chat/completions', 'max_completion_tokens', { messages: START }, 'stop'],
    ['Responses', 'responses', 'max_output_tokens', { input: 'Go.' }, 'completed'],
    ['Messages', 'messages', 'max_tokens', { messages: START.slice(-1) }, 'end_turn'],
  ])(
    'records the parameters of a request to %s and what its response says of itself',
    async (_, path, cap, input, reason) => {
      const tools = [{ type: 'function', function: TOOL, ...TOOL }]
      const asked = { model: 'gpt-asked', temperature: 0.5, [cap]: 99, stop: 'a secret', tools, ...input }
      for (const stream of [false, true]) {
        const { url, until } = await startBoth(() => ({ text: 'Done.' }))
        const { body } = await rawRequest(`${url}/v1/${path}`, JSON.stringify({ ...asked, stream }))
        await until(({ kind }) => kind === 'request_ended')
        const attributes = valuesOf((await collector.ended()).at(-1)?.attributes ?? [])
        expect(attributes).toMatchObject({
          'gen_ai.request.max_tokens': 99,
          'gen_ai.request.temperature': 0.5,
          'gen_ai.response.model': 'gpt-asked',
          'gen_ai.response.finish_reasons': [reason],
        })
        expect(attributes['gen_ai.response.id']).toMatch(/^[\w-]{4,}$/)
        expect(body.toString()).toContain(JSON.stringify(attributes['gen_ai.response.id']))
        expect(JSON.stringify(attributes)).not.toContain('secret')
      }
      expect(new Set(collector.schemas)).toEqual(new Set(['https://opentelemetry.io/schemas/1.36.0']))
    },
  )

  it.each([
    ['its first request on if its client names it', { 'x-governor-session': 'one' }, ['one', 'one']],
    ['its second request on if its client does not', {}, [undefined, expect.stringMatching(/^\w{8,}$/)]],
  ])('names the conversation from %s', async (_, headers, expected) => {
    const { url, until } = await startBoth(({ json }) =>
      json.messages.length > 2 ? { text: 'Done.' } : { calls: [{ name: 'search', arguments: '{}' }] },
    )
    await runAgent(url, START, { headers })
    await until((event) => event.kind === 'request_ended' && event.iteration === 2)
    const spans = await collector.ended()
    expect(spans.map(({ attributes }) => valuesOf(attributes)['gen_ai.conversation.id'])).toEqual(expected)
  })

  it('uses the newest names if OTEL_SEMCONV_STABILITY_OPT_IN asks for them', async () => {
    const { url, until } = await startBoth(
      () => ({ text: 'Done.' }),
      {},
      {
        semanticConventions: 'http,gen_ai_latest_experimental',
      },
    )
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' } })
    await until(({ kind }) => kind === 'request_ended')
    const [span] = await collector.ended()
    const attributes = valuesOf(span?.attributes ?? [])
    expect(attributes).toMatchObject({ 'gen_ai.provider.name': 'openai', 'gen_ai.conversation.id': 'one' })
    expect(attributes).not.toHaveProperty('gen_ai.system')
  })

  it('records notices, blocked calls, the stop and the usage of the answers', async () => {
    const { url, until } = await startBoth(
      ({ json }) =>
        json.tool_choice === 'none'
          ? { text: 'All I know.' }
          : { calls: [{ name: 'search', arguments: '{"query":"the same secret words"}' }] },
      { budget: { max_iterations: 4 } },
    )
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' } })
    await until((event) => event.kind === 'request_ended' && event.verdict === 'stop')
    const spans = await collector.ended()
    const events = spans.flatMap((span) => span.events.map(({ name, attributes }) => [name, valuesOf(attributes)]))
    expect(events).toContainEqual(['governor.notice', expect.objectContaining({ 'governor.tier': 'warning' })])
    expect(events).toContainEqual(['governor.stop', { 'governor.reason': 'max_iterations', 'governor.by': 'model' }])
    expect(valuesOf(spans.at(-1)?.attributes ?? [])['gen_ai.usage.output_tokens']).toBeGreaterThan(0)
    expect(JSON.stringify(spans)).not.toContain('secret words')
  })

  it('records a failed request as a span with an error and its type', async () => {
    const { url, until } = await startBoth(() => ({ status: 503 }))
    await runAgent(url, START, { max: 1 }).catch(() => undefined)
    await until(({ kind }) => kind === 'request_ended')
    const [span] = await collector.ended()
    expect(span?.status?.code).toBe(2)
    expect(valuesOf(span?.attributes ?? [])).toMatchObject({ 'error.type': '503' })
  })
})

describe('tracing without an OpenTelemetry SDK', () => {
  it('passes the client’s trace context on unchanged', async () => {
    const seen: unknown[] = []
    const { url } = await startBoth(({ header }) => {
      seen.push([header('traceparent'), header('tracestate'), header('baggage')])
      return { text: 'Done.' }
    })
    await runAgent(url, START, { headers: { traceparent: PARENT, tracestate: 'a=b', baggage: 'c=d' } })
    expect(seen).toEqual([[PARENT, 'a=b', 'c=d']])
  })
})

describe('the set-up of docs/tracing.md', () => {
  const doneAtOnce = async () => {
    const provider = await startProvider(() => ({ text: 'Done.' }))
    onTestFinished(() => provider.close())
    return provider.url
  }
  const askOnce = (url: string): Promise<unknown> => runAgent(url, START)

  /** Sends requests through a Governor that is set up so; returns its exit code. */
  async function runTraced(env: Readonly<Record<string, string>>, upstream = doneAtOnce(), ask = askOnce) {
    const [, snippet = ''] = /```js\n([\s\S]*?)```/.exec(readFileSync('docs/tracing.md', 'utf8')) ?? []
    // The packages that it imports are found from the folder that it stands in.
    const folder = mkdtempSync(resolve('node_modules/.tracing-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const file = join(folder, 'tracing.mjs')
    writeFileSync(file, snippet)
    const governor = await startProcess(await upstream, {}, { nodeArgs: ['--import', pathToFileURL(file).href], env })
    await ask(governor.url)
    governor.child.kill('SIGTERM')
    return governor.exitCode
  }

  it('sends spans whose service is called as OTEL_SERVICE_NAME says', async () => {
    const receiver = await startReceiver()
    onTestFinished(() => receiver.close())
    expect(await runTraced({ OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url, OTEL_SERVICE_NAME: 'my-governor' })).toBe(0)
    expect(receiver.services).toEqual(['my-governor'])
    expect(receiver.spans.map(({ name }) => name)).toEqual(['chat gpt-test'])
  })

  it.each(['identity', 'gzip'])('has what each answer used whose last bytes come with its end: %s', async (coding) => {
    const receiver = await startReceiver()
    onTestFinished(() => receiver.close())
    const step = { model: 'claude-sonnet-4-5', messages: [], tools: MESSAGES_TOOLS, max_tokens: 100, stream: true }
    const [first = '', ...others] = events(step, { calls: [{ name: 'search', arguments: '{}' }] }, 1)
    const provider = await serve((request, response) => {
      const isPlain = coding === 'identity'
      response.writeHead(200, {
        'content-type': 'text/event-stream',
        ...(isPlain ? {} : { 'content-encoding': coding }),
      })
      request.resume().once('end', async () => {
        if (!isPlain) return response.end(gzipSync(first + others.join('')))
        response.write(first)
        await setImmediate()
        for (const event of others) response.write(event)
        response.end()
      })
    })
    onTestFinished(() => provider.close())
    const env = { OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url }
    const ask = async (url: string) => {
      for (let at = 0; at < 12; at++) {
        const body = JSON.stringify({ ...step, messages: [{ role: 'user', content: `Find number ${at}.` }] })
        await (await fetch(`${url}/v1/messages`, { method: 'POST', headers: { 'x-api-key': 'k' }, body })).text()
      }
    }
    expect(await runTraced(env, Promise.resolve(provider.url), ask)).toBe(0)
    const reasons = receiver.spans.map(({ attributes }) => valuesOf(attributes)['gen_ai.response.finish_reasons'])
    expect(reasons).toEqual(Array.from({ length: 12 }, () => ['tool_use']))
  })

  it('ends with the exit code of Governor where no collector takes the last spans', async () => {
    const env = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1', OTEL_EXPORTER_OTLP_TIMEOUT: '100' }
    expect(await runTraced(env)).toBe(0)
  })
})
