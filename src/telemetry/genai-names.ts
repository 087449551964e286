/**
 * Names of OpenTelemetry's conventions for generative AI, as of 2026-11-22. They are in development and change: the
 * default names are those of version 1.36.0, which most tools read;
 * `OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental` selects those of
 * https://github.com/open-telemetry/semantic-conventions-genai.
 */

const V1_36 = {
  schemaUrl: 'https://opentelemetry.io/schemas/1.36.0' as string | undefined,
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
export type GenAiNames = Readonly<typeof V1_36> & {
  readonly cachedTokens?: string
}

const LATEST: GenAiNames = {
  ...V1_36,
  // These names have no published schema yet.
  schemaUrl: undefined,
  provider: 'gen_ai.provider.name',
  cachedTokens: 'gen_ai.usage.cache_read.input_tokens',
}

/** Returns the names for a value of `OTEL_SEMCONV_STABILITY_OPT_IN`, a list with commas. */
export function genAiNames(optIn = ''): GenAiNames {
  const isLatest = optIn.split(',').some((value) => value.trim() === 'gen_ai_latest_experimental')
  return isLatest ? LATEST : V1_36
}

/** The operation of every guarded request. */
export const CHAT = 'chat'

/** Providers by the dialect that is spoken, where the upstream's name is not one of theirs. */
const PROVIDERS: ReadonlyMap<string, string> = new Map([
  ['chat', 'openai'],
  ['responses', 'openai'],
  ['messages', 'anthropic'],
])

/** Returns the well-known name of the provider that speaks a dialect, else the dialect's own. */
export const providerOf = (dialect: string) => PROVIDERS.get(dialect) ?? dialect
