/** What an OpenTelemetry collector gets, decoded from the protobuf that the real SDK and exporter send. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { metrics, propagation, trace } from '@opentelemetry/api'
import { W3CTraceContextPropagator } from '@opentelemetry/core'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto'
import { BatchSpanProcessor, NodeTracerProvider } from '@opentelemetry/sdk-trace-node'
import protobuf from 'protobufjs'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'

/** The part of opentelemetry/proto/trace/v1/trace.proto that is read here. */
const PROTO = `syntax = "proto3";
message Request { repeated ResourceSpans resource_spans = 1; }
message ResourceSpans { repeated ScopeSpans scope_spans = 2; }
message ScopeSpans { repeated Span spans = 2; }
message Span {
  bytes trace_id = 1; bytes span_id = 2; bytes parent_span_id = 4; string name = 5; int32 kind = 6;
  repeated KeyValue attributes = 9; repeated Event events = 11; Status status = 15;
}
message Event { string name = 2; repeated KeyValue attributes = 3; }
message Status { int32 code = 3; }
message KeyValue { string key = 1; AnyValue value = 2; }
message AnyValue { oneof value { string string_value = 1; bool bool_value = 2; int64 int_value = 3; double double_value = 4; } }`

const { root } = protobuf.parse(PROTO, { keepCase: false })
const RequestType = root.lookupType('Request')

interface Entry {
  readonly key: string
  readonly value: Readonly<Record<string, string | number>>
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

const valuesOf = (entries: readonly Entry[]) =>
  Object.fromEntries(entries.map(({ key, value }) => [key, Object.values(value)[0]]))
const hex = (base64: string) => Buffer.from(base64, 'base64').toString('hex')

/** A collector on a free port and the SDK that sends to it, for each test of this file. */
async function startCollector() {
  const spans: WireSpan[] = []
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    const decoded = RequestType.toObject(RequestType.decode(Buffer.concat(chunks)), {
      bytes: String,
      longs: Number,
      arrays: true,
    }) as { resourceSpans: { scopeSpans: { spans: WireSpan[] }[] }[] }
    spans.push(
      ...decoded.resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap((scope) => scope.spans)),
    )
    response.writeHead(200, { 'content-type': 'application/x-protobuf' }).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const exporter = new OTLPTraceExporter({ url: `http://127.0.0.1:${port}/v1/traces` })
  const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(exporter)] })
  provider.register({ propagator: new W3CTraceContextPropagator() })
  return {
    /** The spans that have ended by now. */
    async ended() {
      await provider.forceFlush()
      return spans
    },
    async close() {
      await provider.shutdown()
      for (const api of [trace, propagation, metrics]) api.disable()
      server.closeAllConnections()
      server.close()
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
    const events = spans.flatMap((span) =>
      span.events.map(({ name, attributes }) => [name, valuesOf(attributes)]),
    )
    expect(events).toContainEqual([
      'governor.notice',
      expect.objectContaining({ 'governor.tier': 'warning' }),
    ])
    expect(events).toContainEqual([
      'governor.stop',
      { 'governor.reason': 'max_iterations', 'governor.by': 'model' },
    ])
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
