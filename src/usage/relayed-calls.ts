/** Finds the ids of the calls in a streamed response while it is relayed, and its end, without decoding the rest. */
import type { Dialect, StreamMarks } from '../dialect/dialect.ts'

/** Bytes of a line that are searched: the id of a call stands near the beginning. */
const MAX_LINE = 65_536

/** Takes the chunks of one stream without its content coding. */
export interface StreamSearch {
  /** Returns how the stream ended, if this chunk says that. */
  push(chunk: Buffer): 'whole' | 'failed' | undefined
  /** The ids that were found so far. */
  readonly callIds: readonly string[]
}

/** Returns a search of one stream; `undefined` if nothing is known of the streams of its dialect. */
export function searchStream({ marks }: Dialect): StreamSearch | undefined {
  if (!marks) return undefined
  const callIds: string[] = []
  /** The beginning of a line that is not over. */
  let open: Buffer | undefined
  return {
    callIds,
    push(chunk) {
      const piece = open ? Buffer.concat([open, chunk]) : chunk
      // A character for each byte: all marks are ASCII, and a text is searched in a third of the time.
      const text = piece.toString('latin1')
      const end = text.lastIndexOf('\n') + 1
      // Of a line that is too long only the beginning is kept, so that it is not searched again with each chunk.
      open = end === text.length ? undefined : piece.subarray(end, end + MAX_LINE)
      findCalls(piece, text, marks, callIds)
      return marks.end(text)
    },
  }
}

/** Adds the ids of the calls in a piece of a stream, each once; a line that is not over too. `text`: it in Latin-1. */
function findCalls(piece: Buffer, text: string, marks: StreamMarks, found: string[]): void {
  for (let at = text.indexOf(marks.call); at !== -1; ) {
    const from = text.lastIndexOf('\n', at) + 1
    const next = text.indexOf('\n', at)
    const to = next === -1 ? text.length : next
    for (const id of marks.callIds(piece.toString('utf8', from, Math.min(to, from + MAX_LINE))))
      if (!found.includes(id)) found.push(id)
    at = next === -1 ? -1 : text.indexOf(marks.call, next)
  }
}
