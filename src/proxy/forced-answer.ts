/** The streamed response to a stop that leaves a tool forced: one call of that tool is the answer. */

import type { ToolCall } from '../core/conversation.ts'
import { isRealAnswer } from '../core/final-answer.ts'
import type { AnswerStream, BufferedCalls, Dialect } from '../dialect/dialect.ts'
import { createFrameReader, type Frame } from '../sse/frames.ts'

/** The call that a response consists of, if it is of one of these tools. */
export function onlyCall(
  calls: readonly ToolCall[] = [],
  names: readonly string[] = [],
): ToolCall | undefined {
  const [call, other] = calls
  return call && !other && names.includes(call.name) ? call : undefined
}

export interface ForcedReading {
  readonly dialect: Dialect
  readonly isJson: boolean
  /** Names of the tools of which one call is the answer. */
  readonly keeps: readonly string[]
  /** Bytes; of a longer response no call is kept. */
  readonly maxBytes: number
  /** Gives the client chunks; `hasSaid`: more than the beginning of a response. */
  show(chunks: readonly Buffer[], hasSaid: boolean): Promise<void>
}

/** `isOver`: nothing may follow it. `kept`: the call that it is. `held`: what was called in vain. */
export interface ForcedRead {
  readonly stream: AnswerStream
  readonly isOver: boolean
  readonly kept?: ToolCall | undefined
  readonly buffered?: BufferedCalls | undefined
}

/** Reads a response whose calls wait until they are all there; its text goes on, and its end gets the terminal state. */
export async function readForced(state: ForcedReading, plain: AsyncIterable<Buffer>): Promise<ForcedRead> {
  const { dialect, isJson, keeps, maxBytes, show } = state
  const filter = dialect.openFilter()
  const stream = dialect.openStream(false, isJson)
  const released = createFrameReader()
  const give = async (frames: readonly Frame[]) => {
    for (const frame of frames) await show(stream.push(frame), stream.hasText)
  }
  const pass = (chunks: readonly Buffer[]) => give(chunks.flatMap((chunk) => released.push(chunk)))
  const reader = createFrameReader()
  let length = 0
  for await (const chunk of plain) {
    for (const frame of reader.push(chunk)) await pass(filter.push(frame))
    length += chunk.length
    if (length > maxBytes) break
  }
  for (const frame of reader.end()) await pass(filter.push(frame))
  const buffered = filter.endResponse()
  const kept = length > maxBytes ? undefined : onlyCall(buffered?.calls, keeps)
  const isText = buffered?.calls.length === 0 && isRealAnswer(buffered.text, isJson)
  const isVain = length > maxBytes || (buffered !== undefined && !kept && !isText)
  if (isVain && !stream.hasFailed) {
    const [opening, answer] = filter.becomeAnswer(isJson)
    await show(opening, false)
    return { stream: answer, isOver: false, buffered }
  }
  await pass(filter.release(new Set()))
  await give(released.end())
  return { stream, isOver: true, kept }
}
