/** Events of streamed Messages responses. */
import { type Json, parseObject } from '../../core/json-object.ts'
import { dataEvent, dataOf, type Frame } from '../../sse/frames.ts'

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
