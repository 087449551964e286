/** Events of streamed Messages responses, and the one message that the client gets from one or more of them. */
import { dataEvent, dataOf, type Frame, terminated, withData } from '../sse/frames.ts'
import { withMembers } from './messages-shape.ts'
import { type Json, parseObject } from './shape.ts'

/** An event as it came, and what it says. */
export interface MessagesEvent {
  readonly frame: Frame
  readonly text: string
  readonly data: Json
}

/** Reads a frame; `undefined` where it holds no event of this API, a comment say. */
export function eventOf(frame: Frame): MessagesEvent | undefined {
  const text = dataOf(frame)
  const data = text === undefined ? undefined : parseObject(text)
  return data && text !== undefined ? { frame, text, data } : undefined
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

/** The event with other values (JSON texts) for some of its members. */
export function changed({ frame, text }: MessagesEvent, changes: Readonly<Record<string, string>>): Buffer {
  return withData(frame, withMembers(Buffer.from(text), changes).toString('utf8'))
}

/** The blocks of the client's response: one after the other, numbered without gaps, whichever try they came from. */
export function createBlocks() {
  let next = 0
  let open: number | undefined
  const places = new Map<unknown, number>()
  return {
    /** The event of a block at its place in the client's response. */
    place(entry: MessagesEvent): Buffer {
      const { type, index } = entry.data
      if (type === 'content_block_start') {
        open = next
        places.set(index, next++)
      }
      const place = places.get(index)
      if (type === 'content_block_stop' && place === open) open = undefined
      if (place === undefined || place === index) return terminated(entry.frame)
      return changed(entry, { index: String(place) })
    },
    /** Ends the block that a response which broke off has left open. The numbers of the next response are its own. */
    close(): Buffer[] {
      places.clear()
      if (open === undefined) return []
      const index = open
      open = undefined
      return [event({ type: 'content_block_stop', index })]
    },
    text: (text: string): Buffer[] => textEvents(next++, text),
  }
}

export type Blocks = ReturnType<typeof createBlocks>
