import type { Api, ErrorKind } from '../dialect.ts'

const ERROR_TYPES: Readonly<Record<ErrorKind, string>> = {
  invalid_request: 'invalid_request_error',
  unauthorized: 'authentication_error',
  forbidden: 'permission_error',
  not_found: 'not_found_error',
  timeout: 'timeout_error',
  overloaded: 'overloaded_error',
  provider_down: 'api_error',
  no_response: 'api_error',
}

/** Anthropic's API. */
export const anthropic: Api = {
  upstream: 'anthropic',
  // Paths like `threads/ID/messages` belong to the Assistants API.
  ownPaths: /^\/v1\/messages(?:\/|$)/,
  ownHeader: 'anthropic-version',
  credentialHeaders: ['authorization', 'x-api-key'],
  credentialParameters: [],
  credentialHeader(key, sent) {
    // Anthropic accepts each of its own kinds of keys in one header only.
    if (key.startsWith('sk-ant-oat')) return 'authorization'
    return key.startsWith('sk-ant-') ? 'x-api-key' : (sent ?? 'x-api-key')
  },
  errorBody: (kind, message) => JSON.stringify({ type: 'error', error: { type: ERROR_TYPES[kind], message } }),
  errorReply: (error) => ({ type: 'error', error }),
  overflowError(limit, promptTokens) {
    // Clients parse the numbers in the message.
    const isKnown = limit !== undefined && promptTokens !== undefined
    const numbers = isKnown ? `: ${promptTokens} tokens > ${limit} maximum` : ''
    return { type: 'invalid_request_error', message: `prompt is too long${numbers}` }
  },
}
