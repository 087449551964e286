/** The tool calls of a Chat Completions message, in all the forms they come in, and what answers them. */
import type { ToolCall } from '../../core/conversation.ts'
import { isObject, textOf } from '../shared/json-object.ts'

/** What is read of a message; every field may be missing or of another type, as clients send what they like. */
export interface ChatMessage {
  readonly content?: unknown
  readonly name?: unknown
  readonly tool_calls?: unknown
  readonly tool_call_id?: unknown
  readonly function_call?: unknown
}

/** Arguments are JSON in a text; some servers and clients write the JSON itself. */
export function argumentsOf(args: unknown): string {
  return typeof args === 'object' && args !== null ? JSON.stringify(args) : textOf(args)
}

function callOf(id: unknown, name: unknown, args: unknown): ToolCall {
  return { id: textOf(id), name: textOf(name), arguments: argumentsOf(args) }
}

/** The calls that a decoded list holds. */
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

/** The calls of a message: those listed, or the one of the old kind. */
export function callsOf(message: ChatMessage): readonly ToolCall[] {
  const listed = listedCalls(message.tool_calls)
  if (listed.length > 0) return listed
  // The old kind has no ids: a result is known by the name of its function.
  const single = message.function_call
  return isObject(single) ? [callOf(single['name'], single['name'], single['arguments'])] : []
}
