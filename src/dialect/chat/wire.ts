/** Reads the parts of Chat Completions responses and chunks. */
import { isObject, type Json, objectsOf, propertyOf, textOf } from '../../core/json-object.ts'

/** Returns the choices of a response or a chunk. */
export function choicesOf(body: Json): Json[] {
  return objectsOf(body['choices'])
}

/** Returns the text of a content that is a string or a list of parts. */
export function contentText(content: unknown): string {
  if (typeof content === 'string') return content
  return objectsOf(content)
    .map(({ text }) => textOf(text))
    .join('')
}

/** Returns the text of a message or a delta: its content, refusal, and transcript of audio. */
export function textOfMessage({ content, refusal, audio }: Json): string {
  return contentText(content) + textOf(refusal) + textOf(propertyOf(audio, 'transcript'))
}

/** Returns a message or a delta with more text at the end of its content. */
export function withAddedText(message: Json, text: string): Json {
  const { content } = message
  if (Array.isArray(content)) return { ...message, content: [...content, { type: 'text', text }] }
  return { ...message, content: typeof content === 'string' ? content + text : text }
}

/** True if the message contains tool calls. */
export function hasCalls(message: Json): boolean {
  const calls = message['tool_calls']
  return (Array.isArray(calls) && calls.length > 0) || isObject(message['function_call'])
}

/** Returns a message or a delta without its calls. */
export function withoutCalls(message: Json): Json {
  const { tool_calls: _calls, function_call: _call, ...rest } = message
  return rest
}

/** Returns the finish reason that is true once the calls are removed. */
export function finishWithoutCalls(reason: unknown): unknown {
  return reason === 'tool_calls' || reason === 'function_call' ? 'stop' : reason
}

/** True if a response or a chunk reports an error: OpenRouter sends `error`, Z.ai the finish reason `network_error`. */
export function isFailure(body: Json): boolean {
  return (
    Boolean(body['error']) ||
    choicesOf(body).some(
      ({ error, finish_reason: reason }) => Boolean(error) || textOf(reason).endsWith('error'),
    )
  )
}

/** Finish reasons of an answer that the provider cut off. */
const CUT_OFF = /length|max_tokens|content_filter/

/** True if a response or a chunk says that the provider cut the answer off. */
export function isCutOff(body: Json): boolean {
  return choicesOf(body).some(({ finish_reason: reason }) => CUT_OFF.test(textOf(reason)))
}
