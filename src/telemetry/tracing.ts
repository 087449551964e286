/**
 * A client span for each guarded request, with OpenTelemetry's API only: without an SDK in the process nothing is
 * recorded and no byte changes. Contexts are passed on explicitly, as asynchronous context would be entered for
 * every chunk of a stream.
 */
import {
  type Attributes,
  metrics,
  ProxyTracerProvider,
  propagation,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  type TextMapGetter,
  trace,
} from '@opentelemetry/api'
import { type ProxyEvent, type RequestEnded, ROWS } from './event.ts'

/**
 * Names of OpenTelemetry's conventions for generative AI, as of 2026-11-22. They are in development and change: the
 * default names are those of version 1.36.0, which most tools read;
 * `OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental` selects those of
 * https://github.com/open-telemetry/semantic-conventions-genai.
 */
const V1_36 = {
  schemaUrl: 'https://opentelemetry.io/schemas/1.36.0',
  provider: 'gen_ai.system',
  operation: 'gen_ai.operation.name',
  model: 'gen_ai.request.model',
  /** Before the names of `DialectRequest.parameters`. */
  parameter: 'gen_ai.request.',
  responseModel: 'gen_ai.response.model',
  responseId: 'gen_ai.response.id',
  finishReasons: 'gen_ai.response.finish_reasons',
  conversation: 'gen_ai.conversation.id',
  inputTokens: 'gen_ai.usage.input_tokens',
  outputTokens: 'gen_ai.usage.output_tokens',
  tokenType: 'gen_ai.token.type',
  errorType: 'error.type',
  serverAddress: 'server.address',
  serverPort: 'server.port',
  tokenUsage: 'gen_ai.client.token.usage',
  duration: 'gen_ai.client.operation.duration',
}

/** The names of attributes and metrics; unset where a version has none. */
type GenAiNames = Readonly<typeof V1_36> & {
  readonly cachedTokens?: string
}

const LATEST: GenAiNames = {
  ...V1_36,
  // These names have no published schema yet.
  schemaUrl: '',
  provider: 'gen_ai.provider.name',
  cachedTokens: 'gen_ai.usage.cache_read.input_tokens',
}

const SCOPE = 'agent-governor'

/** Name, value, name, value, …, like Node's raw headers. */
type RawHeaders = readonly string[]

const GETTER: TextMapGetter<RawHeaders> = {
  get(headers, key) {
    const values: string[] = []
    for (let at = 1; at < headers.length; at += 2)
      if (headers[at - 1]?.toLowerCase() === key.toLowerCase()) values.push(headers[at] ?? '')
    return values.length === 0 ? undefined : values.join(',')
  },
  keys: (headers) => headers.filter((_, at) => at % 2 === 0),
}

/** What the spans of all requests are made with. */
export type Tracing = NonNullable<ReturnType<typeof createTracing>>

/** The span of one request. A fault in the user's SDK costs no request: no function here throws. */
export type RequestSpan = NonNullable<ReturnType<typeof beginSpan>>

/** Returns header fields of the request upstream, with this span as the parent of the provider's spans. */
export function withTrace({ context }: RequestSpan, headers: RawHeaders): RawHeaders {
  try {
    const fields = new Map<string, string>()
    propagation.inject(context, fields, { set: (to, name, value) => void to.set(name.toLowerCase(), value) })
    if (fields.size === 0) return headers
    const kept: string[] = []
    for (let at = 0; at < headers.length; at += 2) {
      const [name = '', value = ''] = headers.slice(at, at + 2)
      if (!fields.has(name.toLowerCase())) kept.push(name, value)
    }
    return [...kept, ...[...fields].flat()]
  } catch {
    return headers
  }
}

/** Adds an event to the span, if its kind has one. */
export function addToSpan(state: RequestSpan, event: ProxyEvent): void {
  const { span, tracing } = state
  const { names } = tracing
  try {
    if (event.kind === 'answered') {
      state.input += event.usage.input
      state.output += event.usage.output
      state.cached += event.usage.cachedInput ?? 0
      const { id, model, finishReasons = [] } = event.facts ?? {}
      span.setAttributes({
        [names.responseId]: id,
        [names.responseModel]: model,
        [names.finishReasons]: finishReasons.length > 0 ? [...finishReasons] : undefined,
      })
    }
    const [name, ...fields] = ROWS[event.kind].span ?? []
    if (name === undefined) return
    const attributes: Attributes = {}
    for (const field of fields) if (event[field] !== undefined) attributes[`governor.${field}`] = event[field]
    span.addEvent(`governor.${name}`, attributes)
  } catch {
    // The span lacks this event.
  }
}

/** Ends the span of a request, and records its metrics. */
export function endSpan(state: RequestSpan, ended: RequestEnded): void {
  const { span, tracing, attributes, input, output, cached } = state
  const { names, tokens, duration } = tracing
  const { model = '', failure, status, outcome } = ended
  // The kind of failure, from a small set of values.
  const ownError = outcome === 'completed' ? undefined : outcome
  const errorType = failure ?? (status >= 400 ? String(status) : ownError)
  if (model !== '') attributes[names.model] = model
  if (errorType !== undefined) attributes[names.errorType] = errorType
  try {
    span.updateName([attributes[names.operation], model].filter(Boolean).join(' '))
    span.setAttributes({
      ...attributes,
      'http.response.status_code': status,
      'governor.verdict': ended.verdict,
      'governor.iteration': ended.iteration,
      [names.conversation]: ended.session,
    })
    for (const [name, value] of Object.entries(ended.parameters ?? {}))
      span.setAttribute(`${names.parameter}${name}`, value)
    if (input + output > 0) {
      span.setAttributes({ [names.inputTokens]: input, [names.outputTokens]: output })
      if (names.cachedTokens && cached > 0) span.setAttribute(names.cachedTokens, cached)
      tokens.record(input, { ...attributes, [names.tokenType]: 'input' })
      tokens.record(output, { ...attributes, [names.tokenType]: 'output' })
    }
    duration.record((performance.now() - state.beganAt) / 1_000, attributes)
    if (errorType !== undefined) span.setStatus({ code: SpanStatusCode.ERROR })
    span.end()
  } catch {
    // The span is lost.
  }
}

/**
 * Begins the span of a guarded request; `undefined` if the SDK does not record it. `origin`: scheme, host and port
 * upstream.
 */
export function beginSpan(
  tracing: Tracing,
  headers: RawHeaders,
  { provider, operation }: Readonly<Record<'provider' | 'operation', string>>,
  origin: string,
) {
  const { names, tracer } = tracing
  try {
    const parent = propagation.extract(ROOT_CONTEXT, headers, GETTER)
    const span = tracer.startSpan(operation, { kind: SpanKind.CLIENT }, parent)
    // The trace is not sampled.
    if (!span.isRecording()) return undefined
    const context = trace.setSpan(parent, span)
    const { hostname, port, protocol } = new URL(origin)
    // Its metrics have these too.
    const attributes: Attributes = {
      [names.operation]: operation,
      [names.provider]: provider,
      [names.serverAddress]: hostname,
      [names.serverPort]: Number(port || (protocol === 'https:' ? 443 : 80)),
    }
    // The last three: tokens of all its answers.
    return { tracing, span, context, attributes, beganAt: performance.now(), input: 0, output: 0, cached: 0 }
  } catch {
    return undefined
  }
}

/**
 * Creates what spans are made with; `undefined` if the process has registered no SDK by then. `optIn`: the value of
 * `OTEL_SEMCONV_STABILITY_OPT_IN`, a list with commas.
 */
export function createTracing(version: string, optIn = '') {
  const provider = trace.getTracerProvider()
  if (provider instanceof ProxyTracerProvider && !provider.getDelegateTracer(SCOPE)) return undefined
  const names: GenAiNames = optIn.split(/[,\s]/).includes('gen_ai_latest_experimental') ? LATEST : V1_36
  const { schemaUrl } = names
  const schema = schemaUrl === '' ? {} : { schemaUrl }
  const meter = metrics.getMeter(SCOPE, version, schema)
  return {
    names,
    tracer: provider.getTracer(SCOPE, version, schema),
    tokens: meter.createHistogram(names.tokenUsage, { unit: '{token}' }),
    duration: meter.createHistogram(names.duration, { unit: 's' }),
  }
}
