/** Finds the ids of the calls in a streamed response while it is relayed, and its end, without decoding the rest. */
import type { Dialect, StreamMarks } from '../dialect/dialect.ts'

/** Bytes of a line that are searched: the id of a call stands near the beginning. */
const MAX_LINE = 65_536

/** Takes the chunks of one stream without its content coding. */
export interface StreamSearch {
  /** Returns how the stream ended, if it says that so far. */
  push(chunk: Buffer): 'whole' | 'failed' | undefined
  /** The ids that were found so far. */
  readonly callIds: readonly string[]
}

/** Returns a search of one stream; `undefined` if nothing is known of the streams of its dialect. */
export function searchStream({ marks }: Dialect): StreamSearch | undefined {
  if (!marks) return undefined
  const callIds: string[] = []
  /** A line that is not over. */
  let open: Buffer | undefined
  let ending: 'whole' | 'failed' | undefined
  return {
    callIds,
    push(chunk) {
      const piece = open ? Buffer.concat([open, chunk]) : chunk
      // A character for each byte: all marks are ASCII, and a text is searched in a third of the time.
      const text = piece.toString('latin1')
      const end = Math.max(text.lastIndexOf('\n'), text.lastIndexOf('\r')) + 1
      // Of a line that is too long only the newest part is kept, so that all of it is not searched with each chunk.
      open = end === text.length ? undefined : piece.subarray(Math.max(end, text.length - MAX_LINE))
      findCalls(piece, text, marks, callIds)
      // What follows an error ends the stream, and not its answer.
      if (ending !== 'failed') ending = marks.end(text) ?? ending
      return ending
    },
  }
}

/** Adds the ids of the calls in a piece of a stream, each once; a line that is not over too. `text`: it in Latin-1. */
function findCalls(piece: Buffer, text: string, { call, callIds }: StreamMarks, found: string[]): void {
  if (!text.includes(call)) return
  for (const { 0: line, index } of text.matchAll(/.+/g)) {
    if (!line.includes(call)) continue
    for (const id of callIds(piece.toString('utf8', index, index + Math.min(line.length, MAX_LINE))))
      if (!found.includes(id)) found.push(id)
  }
}
