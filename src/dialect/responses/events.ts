/** Events of a streamed response, as Governor writes them itself. */
import type { Json } from '../shared/json-object.ts'

/** One event: its name stands in the frame and in the data. */
export function eventFrame(event: Json): Buffer {
  return Buffer.from(`event: ${String(event['type'])}\ndata: ${JSON.stringify(event)}\n\n`)
}

/** The events by which a message comes into being at a place of the output, but for their sequence numbers. */
export function messageEvents(item: Json, text: string, index: number): Json[] {
  const place = { item_id: item['id'], output_index: index, content_index: 0 }
  const part = (said: string) => ({ type: 'output_text', text: said, annotations: [], logprobs: [] })
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

/** The events that end an item which was begun and not done, and what it is then: a message says what it said so far. */
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
