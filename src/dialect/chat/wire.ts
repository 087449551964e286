/** The pieces that Chat Completions responses and chunks are made of. */
import { isObject, type Json, textOf } from '../shared/json-object.ts'

export function choicesOf(body: Json): Json[] {
  return Array.isArray(body['choices']) ? body['choices'].filter(isObject) : []
}

export function contentText(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return ''
  return content
    .filter(isObject)
    .map((part) => (typeof part['text'] === 'string' ? part['text'] : ''))
    .join('')
}

/** What a message, or a delta, says: in writing, as a refusal, or aloud. */
export function textOfMessage({ content, refusal, audio }: Json): string {
  return contentText(content) + textOf(refusal) + (isObject(audio) ? textOf(audio['transcript']) : '')
}

export function hasCalls(message: Json): boolean {
  const calls = message['tool_calls']
  return (Array.isArray(calls) && calls.length > 0) || isObject(message['function_call'])
}

/** The message, or the delta, without what it calls. */
export function withoutCalls(message: Json): Json {
  const { tool_calls: _calls, function_call: _call, ...rest } = message
  return rest
}

/** A finish reason from the provider's own list that is still true once the calls are gone. */
export function finishWithoutCalls(reason: unknown): unknown {
  return reason === 'tool_calls' || reason === 'function_call' ? 'stop' : reason
}

/** Does a response, or a chunk, say that it failed? Beside OpenRouter's `error` there is Z.ai's `network_error`. */
export function isFailure(body: Json): boolean {
  return (
    Boolean(body['error']) ||
    choicesOf(body).some(
      ({ error, finish_reason: reason }) => Boolean(error) || textOf(reason).endsWith('error'),
    )
  )
}

/** Reasons by which a provider says that it cut the answer off. */
const CUT_OFF = /length|max_tokens|content_filter/

/** Does a response, or a chunk, say that it was cut off? */
export function isCutOff(body: Json): boolean {
  return choicesOf(body).some(({ finish_reason: reason }) => CUT_OFF.test(textOf(reason)))
}

/** What ends a stream. */
export const DONE = '[DONE]'
