/** Reads the streamed response to a stop that keeps a forced tool: one call of that tool is the answer. */

import type { ToolCall } from '../../core/conversation.ts'
import { isRealAnswer } from '../../core/final-answer.ts'
import type { AnswerStream, BufferedCalls, Dialect } from '../../dialect/dialect.ts'
import { createFrameReader, type Frame, isTooLong } from '../../sse/frames.ts'

/** Returns the only call of a response if it calls one of these tools; else `undefined`. */
export function onlyCall(
  calls: readonly ToolCall[] = [],
  names: readonly string[] = [],
): ToolCall | undefined {
  const [call, other] = calls
  return call && !other && names.includes(call.name) ? call : undefined
}

/** How to read a response with a forced tool. */
export interface ForcedReading {
  readonly dialect: Dialect
  readonly isJson: boolean
  /** A footer may follow the answer. */
  readonly mayHaveFooter: boolean
  /** Names of the tools one call of which is the answer. */
  readonly keeps: readonly string[]
  /** Bytes; a longer response has no call that is an answer. */
  readonly maxBytes: number
  /** Gives the client chunks. `hasText`: they are more than the beginning of a response. */
  show(chunks: readonly Buffer[], hasText: boolean): Promise<void>
}

/** What was read. */
export interface ForcedRead {
  readonly stream: AnswerStream
  /** The stream is the answer or has failed: no further response may follow. */
  readonly isOver: boolean
  /** The call that is the answer. */
  readonly kept?: ToolCall | undefined
  /** Calls that are no answer. */
  readonly buffered?: BufferedCalls | undefined
}

/** Reads a response and holds its calls until they are complete; its text passes, and the terminal state is added at its end. */
export async function readForced(reading: ForcedReading, plain: AsyncIterable<Buffer>): Promise<ForcedRead> {
  const { dialect, isJson, mayHaveFooter, keeps, maxBytes, show } = reading
  const filter = dialect.openFilter()
  const stream = dialect.openStream(false, isJson, mayHaveFooter)
  const released = createFrameReader()
  const give = async (frames: readonly Frame[]) => {
    for (const frame of frames) await show(stream.push(frame), stream.hasText)
  }
  const pass = (chunks: readonly Buffer[]) => give(chunks.flatMap((chunk) => released.push(chunk)))
  const reader = createFrameReader()
  let length = 0
  for await (const chunk of plain) {
    const frames = reader.push(chunk)
    length += frames.some(isTooLong) ? Number.POSITIVE_INFINITY : chunk.length
    if (length > maxBytes) break
    for (const frame of frames) await pass(filter.push(frame))
  }
  for (const frame of reader.end()) await pass(filter.push(frame))
  const buffered = filter.endResponse()
  const kept = length > maxBytes ? undefined : onlyCall(buffered?.calls, keeps)
  const isText = buffered?.calls.length === 0 && isRealAnswer(buffered.text, isJson)
  const isNoAnswer = length > maxBytes || (buffered !== undefined && !kept && !isText)
  if (isNoAnswer && !stream.hasFailed) {
    const [opening, answer] = filter.becomeAnswer(isJson, mayHaveFooter)
    await show(opening, false)
    return { stream: answer, isOver: false, buffered }
  }
  await pass(filter.release(new Set()))
  await give(released.end())
  return { stream, isOver: true, kept }
}
