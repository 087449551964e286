/** What Anthropic's API has beside requests and responses: errors, keys, and reasoning that is bound to its prompt. */
import { isObject, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { setMember } from '../../json/edit.ts'
import { decode, kindAt, member, members, root } from '../../json/scan.ts'
import type { Api, BoundThinking, ErrorKind, ThinkingRemoval } from '../dialect.ts'
import { BETA_HEADER } from '../shared/dialect-members.ts'

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

/** The setting below needs this beta. */
const HEADER = { name: BETA_HEADER, value: 'thinking-binding-controls-2026-08-01' }
const DROP = JSON.stringify({ prefix_mismatch_behavior: 'drop_block' })

/** Changes nothing for a client that sets `block_binding` itself, or turns thinking off. */
function dropBoundThinking(json: Buffer): ThinkingRemoval | undefined {
  const object = root(json)
  const fields = members(json, object)
  const thinking = member(fields, 'thinking')?.value
  if (!thinking || (kindAt(json, thinking) === 'scalar' && decode(json, thinking) === null)) {
    const setting = `{"type":"adaptive","block_binding":${DROP}}`
    return { edits: [setMember(object, fields, 'thinking', setting)], header: HEADER }
  }
  const value = decode(json, thinking)
  if (!isObject(value) || value['type'] === 'disabled' || isObject(value['block_binding'])) return undefined
  return { edits: [setMember(thinking, members(json, thinking), 'block_binding', DROP)], header: HEADER }
}

/**
 * How the Messages API reports bound reasoning, and how a request asks it to drop such reasoning. Source:
 * platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
 */
export const messagesBoundThinking: BoundThinking = {
  isBoundThinkingError(body) {
    const error = parseObject(body.toString('utf8'))?.['error']
    return textOf(propertyOf(error, 'message')).includes('bound to a different conversation')
  },
  dropBoundThinking,
}
