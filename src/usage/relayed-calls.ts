/** Finds the ids of the calls in a streamed response while it is relayed, and its end, without decoding the rest. */
import type { Dialect, StreamMarks } from '../dialect/dialect.ts'

/** Bytes of a line that are searched: the id of a call stands near the beginning. */
const MAX_LINE = 65_536
const LINE_FEED = 10

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
      const end = piece.lastIndexOf(LINE_FEED) + 1
      // Of a line that is too long only the beginning is kept, so that it is not searched again with each chunk.
      open = end === piece.length ? undefined : piece.subarray(end, end + MAX_LINE)
      findCalls(piece, marks, callIds)
      return marks.end(piece)
    },
  }
}

/** Adds the ids of the calls in a piece of a stream, each once; a line that is not over is searched too. */
function findCalls(piece: Buffer, marks: StreamMarks, found: string[]): void {
  for (let at = piece.indexOf(marks.call); at !== -1; ) {
    const from = piece.lastIndexOf(LINE_FEED, at) + 1
    const next = piece.indexOf(LINE_FEED, at)
    const to = next === -1 ? piece.length : next
    for (const id of marks.callIds(piece.toString('utf8', from, Math.min(to, from + MAX_LINE))))
      if (!found.includes(id)) found.push(id)
    at = next === -1 ? -1 : piece.indexOf(marks.call, next)
  }
}
