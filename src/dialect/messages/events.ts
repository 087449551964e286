/** Events of streamed Messages responses. */
import { dataEvent, dataOf, type Frame } from '../../sse/frames.ts'
import { type Json, parseObject } from '../shared/json-object.ts'

/** What an event says; `undefined` where the frame holds none of this API, such as a comment. */
export function eventIn(frame: Frame): Json | undefined {
  const text = dataOf(frame)
  return text === undefined ? undefined : parseObject(text)
}

/** An event as this API names it: by its `type`, in both places. */
export function event(data: Json & { readonly type: string }): Buffer {
  return dataEvent(data.type, JSON.stringify(data))
}

/** A text as a whole block, in events. */
export function textEvents(index: number, text: string): Buffer[] {
  return [
    event({ type: 'content_block_start', index, content_block: { type: 'text', text: '' } }),
    event({ type: 'content_block_delta', index, delta: { type: 'text_delta', text } }),
    event({ type: 'content_block_stop', index }),
  ]
}
