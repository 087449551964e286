/** The tool calls of a Chat Completions message, in all of their forms. */
import type { ToolCall } from '../../core/conversation.ts'
import { isObject, textOf } from '../../core/json-object.ts'

/** The fields that Governor reads of a message. Each may be missing or of any type, as nothing has validated it. */
export interface ChatMessage {
  readonly content?: unknown
  readonly name?: unknown
  readonly tool_calls?: unknown
  readonly tool_call_id?: unknown
  readonly function_call?: unknown
}

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
  if (!Array.isArray(list)) return calls
  for (const call of list) {
    if (!isObject(call)) continue
    const { id, custom, function: called } = call
    // Custom tools carry free text where functions carry JSON.
    if (isObject(custom)) calls.push(callOf(id, custom['name'], custom['input']))
    else if (isObject(called)) calls.push(callOf(id, called['name'], called['arguments']))
  }
  return calls
}

/** Returns the calls of a message: those in its list, or the single one in the deprecated form. */
export function callsOf(message: ChatMessage): readonly ToolCall[] {
  const listed = listedCalls(message.tool_calls)
  if (listed.length > 0) return listed
  // The deprecated form has no ids: a result names its function.
  const single = message.function_call
  return isObject(single) ? [callOf(single['name'], single['name'], single['arguments'])] : []
}
