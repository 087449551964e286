/** The tool calls of a Chat Completions message, in all the forms they come in. */
import type { ToolCall } from '../core/conversation.ts'
import { isObject, textOf } from './shape.ts'

/** What is read of a message; every field may be missing or of another type, as clients send what they like. */
export interface ChatMessage {
  readonly content?: unknown
  readonly name?: unknown
  readonly tool_calls?: unknown
  readonly tool_call_id?: unknown
  readonly function_call?: unknown
}

function callOf(id: unknown, call: unknown): ToolCall[] {
  if (!isObject(call)) return []
  return [{ id: textOf(id), name: textOf(call['name']), arguments: textOf(call['arguments']) }]
}

/** The calls of a message: those listed, or the one of the old kind. */
export function callsOf(message: ChatMessage): ToolCall[] {
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : []
  const modern = calls.flatMap((call: unknown) => {
    if (!isObject(call)) return []
    // Custom tools carry free text where functions carry JSON.
    const custom = call['custom']
    if (isObject(custom)) return callOf(call['id'], { name: custom['name'], arguments: custom['input'] })
    return callOf(call['id'], call['function'])
  })
  if (modern.length > 0) return modern
  // The old kind has no ids: a result is known by the name of its function.
  const single = message.function_call
  return isObject(single) ? callOf(single['name'], single) : []
}
