/** Reads the parts of Messages responses, and writes events of their streams. */
import { isObject, type Json, objectsOf, parseObject } from '../../core/json-object.ts'
import { dataEvent, dataOf, type Frame } from '../../sse/frames.ts'

/** True if a block is a call that the client has to make. */
export function isCall(block: unknown): boolean {
  return isObject(block) && block['type'] === 'tool_use'
}

/** Returns the content blocks of a response. */
export function contentOf(message: Json): Json[] {
  return objectsOf(message['content'])
}

/** Returns the stop reason that is true once the calls are removed: the client has nothing to run or to continue. */
export function stopWithoutCalls(reason: unknown): unknown {
  return reason === 'tool_use' || reason === 'pause_turn' ? 'end_turn' : reason
}

/** True if a stop reason says that the provider cut the answer off. */
export function isCutOff(reason: unknown): boolean {
  return reason === 'max_tokens' || reason === 'model_context_window_exceeded'
}

/** Returns the usage of a streamed response: values of later events replace those of its start, except null. */
export function laterUsage(start: unknown, later: unknown): unknown {
  if (!isObject(start) || !isObject(later)) return isObject(later) ? later : start
  const stated = Object.entries(later).filter(([, value]) => value !== null)
  return { ...start, ...Object.fromEntries(stated) }
}

/** Returns the data of an event; `undefined` if the frame contains no JSON object, such as a comment. */
export function eventIn(frame: Frame): Json | undefined {
  const text = dataOf(frame)
  return text === undefined ? undefined : parseObject(text)
}

/** Writes an event; its type stands in the frame and in the data. */
export function event(data: Json & { readonly type: string }): Buffer {
  return dataEvent(data.type, JSON.stringify(data))
}

/** Writes the events of a whole text block. */
export function textEvents(index: number, text: string): Buffer[] {
  return [
    event({ type: 'content_block_start', index, content_block: { type: 'text', text: '' } }),
    event({ type: 'content_block_delta', index, delta: { type: 'text_delta', text } }),
    event({ type: 'content_block_stop', index }),
  ]
}
