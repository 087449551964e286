/** Reads the parts of Chat Completions messages, responses and chunks. Nothing has validated them. */
import type { ToolCall } from '../../core/conversation.ts'
import { isObject, type Json, objectsOf, propertyOf, textOf } from '../../core/json-object.ts'
import type { ResponseMetadata, ResponseTail } from '../dialect.ts'
import { tokenUsage } from '../openai/api.ts'
import { lastObject, lastText } from '../shared/response-tail.ts'

/** Returns arguments as text. They are a string of JSON; some servers and clients send the JSON value itself. */
export function argumentsOf(args: unknown): string {
  return typeof args === 'object' && args !== null ? JSON.stringify(args) : textOf(args)
}

function callOf(id: unknown, name: unknown, args: unknown): ToolCall {
  return { id: textOf(id), name: textOf(name), arguments: argumentsOf(args) }
}

/** Returns the calls in a decoded list; an empty list if the value is not a list. */
export function listedCalls(list: unknown): readonly ToolCall[] {
  const calls: ToolCall[] = []
  for (const { id, custom, function: called } of objectsOf(list)) {
    // Custom tools carry free text where functions carry JSON.
    if (isObject(custom)) calls.push(callOf(id, custom['name'], custom['input']))
    else if (isObject(called)) calls.push(callOf(id, called['name'], called['arguments']))
  }
  return calls
}

/** Returns the calls of a message: those in its list, or the single one in the deprecated form. */
export function callsOf({ tool_calls: list, function_call: single }: Json): readonly ToolCall[] {
  const listed = listedCalls(list)
  if (listed.length > 0 || !isObject(single)) return listed
  // The deprecated form has no ids: a result names its function.
  return [callOf(single['name'], single['name'], single['arguments'])]
}

/** True if a message or a delta contains a call, or a piece of one: some providers send empty lists. */
export function hasCalls({ tool_calls: list, function_call: single }: Json): boolean {
  return objectsOf(list).length > 0 || isObject(single)
}

/** Returns a message or a delta without its calls. */
export function withoutCalls({ tool_calls: _list, function_call: _single, ...rest }: Json): Json {
  return rest
}

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

/** Returns the finish reason that is true once the calls are removed. */
export function finishWithoutCalls(reason: unknown): unknown {
  return reason === 'tool_calls' || reason === 'function_call' ? 'stop' : reason
}

/** True if a response or a chunk reports an error: OpenRouter sends `error`, Z.ai the reason `network_error`. */
export function isFailure(body: Json): boolean {
  const hasFailed = ({ error, finish_reason: reason }: Json) => error || textOf(reason).endsWith('error')
  return Boolean(body['error']) || choicesOf(body).some(hasFailed)
}

/** Returns true if a response or a chunk says that the provider cut the answer off. */
export function isCutOff(body: Json): boolean {
  return choicesOf(body).some(({ finish_reason: reason }) => /length|max_tokens|content_filter/.test(textOf(reason)))
}

/** Reads the usage: at the end of a whole response, and in the last chunk of a stream or, growing, in every one. */
export function chatMetadata({ tail }: ResponseTail): ResponseMetadata {
  const usage = lastObject(tail, 'usage')
  return {
    usage: usage && tokenUsage(usage, usage['prompt_tokens_details'], usage['completion_tokens_details']),
  }
}

/** A list of calls that is not empty. Text of the model can't match, as its quotes are escaped. */
const CALLS = /"(?:tool_calls"\s{0,4}:\s{0,4}\[\s{0,4}\{|function_call"\s{0,4}:\s{0,4}\{)/

/** Returns true if the response certainly contains no tool calls. Some providers send `stop` beside calls. */
export function chatCallsNothing({ tail }: ResponseTail): boolean {
  const reason = lastText(tail, 'finish_reason')
  if (reason === undefined || finishWithoutCalls(reason) !== reason) return false
  return !CALLS.test(tail.toString('latin1'))
}
