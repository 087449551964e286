/** Writes events of a streamed response. */
import type { Json } from '../../core/json-object.ts'
import { dataEvent } from '../../sse/frames.ts'

/** Writes an event; its type stands in the frame and in the data. */
export function eventFrame(event: Json): Buffer {
  return dataEvent(String(event['type']), JSON.stringify(event))
}

/** Returns the events of a whole message at an index of the output, without sequence numbers. */
export function messageEvents(item: Json, text: string, index: number): Json[] {
  const place = { item_id: item['id'], output_index: index, content_index: 0 }
  const part = (partText: string) => ({ type: 'output_text', text: partText, annotations: [], logprobs: [] })
  return [
    {
      type: 'response.output_item.added',
      output_index: index,
      item: { ...item, status: 'in_progress', content: [] },
    },
    { type: 'response.content_part.added', ...place, part: part('') },
    { type: 'response.output_text.delta', ...place, delta: text, logprobs: [] },
    { type: 'response.output_text.done', ...place, text, logprobs: [] },
    { type: 'response.content_part.done', ...place, part: part(text) },
    { type: 'response.output_item.done', output_index: index, item },
  ]
}

/** Returns the events that end an unfinished item, and the finished item: a message has the text that it had so far. */
export function closingEvents(
  begun: Json,
  text: string,
  index: number,
): { readonly item: Json; readonly events: Json[] } {
  if (begun['type'] !== 'message' || text === '') {
    const item = { ...begun, status: 'completed' }
    return { item, events: [{ type: 'response.output_item.done', output_index: index, item }] }
  }
  const content = [{ type: 'output_text', text, annotations: [], logprobs: [] }]
  const item = { ...begun, status: 'completed', content }
  return { item, events: messageEvents(item, text, index).slice(3) }
}
