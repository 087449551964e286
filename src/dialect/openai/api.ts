import { isObject, type Json, propertyOf, textOf } from '../../core/json-object.ts'
import { type TokenUsage, withTotal } from '../../core/usage.ts'
import type { Api, ErrorKind } from '../dialect.ts'
import { namesIn, type RequestFields, toolName } from '../shared/request.ts'
import { tokens } from '../shared/stated-usage.ts'

const ERROR_TYPES: Readonly<Record<ErrorKind, string>> = {
  invalid_request: 'invalid_request_error',
  unauthorized: 'invalid_request_error',
  forbidden: 'invalid_request_error',
  not_found: 'invalid_request_error',
  timeout: 'invalid_request_error',
  overloaded: 'server_error',
  provider_down: 'server_error',
  no_response: 'api_error',
}

/** The data of the event that ends a stream; some providers end Responses with it too. */
export const DONE = '[DONE]'

/** OpenAI's API, which Chat Completions and Responses share. */
export const openai: Api = {
  upstream: {
    name: 'openai',
    url: 'https://api.openai.com',
    variable: 'OPENAI_UPSTREAM_URL',
    clientVariable: 'OPENAI_BASE_URL',
    models: '/v1/models',
    provider: 'openai',
    operation: 'chat',
  },
  // OpenAI itself reads the first one; Azure, Google and gateways with the same API read the others.
  credentialHeaders: ['authorization', 'x-api-key', 'api-key', 'x-goog-api-key'],
  // Google's and Azure's; the last is of OAuth (RFC 6750, section 2.3).
  credentialParameters: ['key', 'api-key', 'api_key', 'access_token'],
  credentialHeader: (_key, sent) => sent ?? 'authorization',
  errorBody: (kind, message, code) =>
    JSON.stringify({ error: { message, type: ERROR_TYPES[kind], param: null, code } }),
  errorReply: (error) => ({ error }),
  overflowError(limit, promptTokens) {
    const sent = promptTokens === undefined ? '' : ` However, your messages resulted in ${promptTokens} tokens.`
    const message =
      limit === undefined
        ? 'Your input exceeds the context window of this model. Please adjust your input and try again.'
        : `This model's maximum context length is ${limit} tokens.${sent} Please reduce the length of the messages.`
    return { message, type: 'invalid_request_error', param: null, code: 'context_length_exceeded' }
  },
}

/** Where requests offer and force tools: `functions` and `function_call` are Chat Completions' older form. */
export const OPENAI_TOOLS: Omit<RequestFields, 'formatIn' | 'system'> = {
  tools: ['tools', 'functions'],
  choices: ['tool_choice', 'function_call'],
  nested: ['tools'],
  nameOf: (tool) => toolName(tool, 'function', 'custom'),
  forcedBy(choice) {
    const type = isObject(choice) ? textOf(choice['type']) : choice
    if (type === 'required' || type === 'any') return { isNamed: false }
    if (!isObject(choice) || type === 'auto' || type === 'none') return undefined
    if (type !== 'allowed_tools') return { isNamed: true, names: namesIn(choice) }
    const allowed = isObject(choice['allowed_tools']) ? choice['allowed_tools'] : choice
    return allowed['mode'] === 'required' ? { isNamed: false, names: namesIn(allowed) } : undefined
  },
}

/** Returns true if a `usage` object states the tokens of the prompt and nothing of the answer. */
export function lacksOutput(usage: Json | undefined): true | undefined {
  const stated = tokens(usage?.['completion_tokens'], usage?.['output_tokens'], usage?.['total_tokens'])
  return (usage && stated === undefined) || undefined
}

/** Reads a `usage` object with the names of OpenAI or of other providers; `undefined` if it states no tokens. */
export function tokenUsage(usage: Json | undefined): TokenUsage | undefined {
  if (!usage) return undefined
  const input = tokens(usage['prompt_tokens'], usage['input_tokens'])
  const output = tokens(usage['completion_tokens'], usage['output_tokens'])
  const total = tokens(usage['total_tokens'])
  if (input === undefined && output === undefined && total === undefined) return undefined
  const inputDetail = (name: string) =>
    [usage['prompt_tokens_details'], usage['input_tokens_details']].map((details) => propertyOf(details, name))
  const outputDetail = (name: string) =>
    [usage['completion_tokens_details'], usage['output_tokens_details']].map((details) => propertyOf(details, name))
  const parts = {
    input: input ?? 0,
    output: output ?? 0,
    cachedInput: tokens(...inputDetail('cached_tokens'), usage['prompt_cache_hit_tokens'], usage['cached_tokens']),
    cacheWrite: tokens(...inputDetail('cache_write_tokens')),
    reasoning: tokens(...outputDetail('reasoning_tokens')),
    audioInput: tokens(...inputDetail('audio_tokens')),
    audioOutput: tokens(...outputDetail('audio_tokens')),
  }
  return withTotal(parts, total)
}
