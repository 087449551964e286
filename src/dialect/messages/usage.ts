/** Reads usage, ids and calls from a relayed Messages response. */
import { isObject, propertyOf, textOf } from '../../core/json-object.ts'
import type { TokenUsage } from '../../core/usage.ts'
import { decode, member, members, rootStart } from '../../json/scan.ts'
import { createFrameReader } from '../../sse/frames.ts'
import type { ResponseMetadata, ResponseTail } from '../dialect.ts'
import { firstText, lastObject, lastText, tokens } from '../shared/response-tail.ts'
import { eventIn, laterUsage, readMessage, streamedMessage } from './reply.ts'

/** Reads a `usage` object, if it states tokens. `input` includes cached tokens, `input_tokens` does not. */
function messagesUsage(usage: unknown): TokenUsage | undefined {
  if (!isObject(usage)) return undefined
  const fresh = tokens(usage['input_tokens'])
  const output = tokens(usage['output_tokens'])
  if (fresh === undefined && output === undefined) return undefined
  const cachedInput = tokens(usage['cache_read_input_tokens'])
  const cacheWrite = tokens(usage['cache_creation_input_tokens'])
  return {
    input: (fresh ?? 0) + (cachedInput ?? 0) + (cacheWrite ?? 0),
    output: output ?? 0,
    cachedInput,
    cacheWrite,
    reasoning: tokens(propertyOf(usage['output_tokens_details'], 'thinking_tokens')),
  }
}

/** Returns the usage and the id that a response states; the id is empty if it states none. */
function statedIn({ head, tail, whole, streams }: ResponseTail): { usage: unknown; id: string } {
  if (streams) {
    // The first event of a stream, except for pings.
    const events = createFrameReader().push(head).map(eventIn)
    const start = events.find((data) => data?.['type'] === 'message_start')?.['message']
    const usage = laterUsage(propertyOf(start, 'usage'), lastObject(tail, 'usage'))
    return { usage, id: textOf(propertyOf(start, 'id')) }
  }
  try {
    if (whole) {
      // The content is not decoded. The input of a call may contain a `usage` too.
      const fields = members(whole, { start: rootStart(whole), end: whole.length })
      const usage = member(fields, 'usage')?.value
      const id = member(fields, 'id')?.value
      return { usage: usage && decode(whole, usage), id: textOf(id && decode(whole, id)) }
    }
  } catch {
    // It is incomplete or not JSON.
  }
  return { usage: lastObject(tail, 'usage'), id: firstText(head, 'id') ?? '' }
}

/** A call that the provider makes itself. Text of the model can't match, as its quotes are escaped. */
const RUN_BY_PROVIDER = /"type"\s{0,4}:\s{0,4}"[a-z]{1,20}_tool_use"\s{0,4},\s{0,4}"id"\s{0,4}:\s{0,4}"([^"\\]{1,200})"/

/**
 * Reads a response. Clients continue from its own id in a message thread only. Elsewhere they continue a paused
 * response, and send the first call of the provider in it.
 */
export function messagesMetadata(response: ResponseTail): ResponseMetadata {
  const { withCalls, head, tail, whole, streams } = response
  const { usage, id } = statedIn(response)
  if (!withCalls || id === '') {
    const isPaused = lastText(tail, 'stop_reason') === 'pause_turn'
    const called = isPaused ? RUN_BY_PROVIDER.exec(head.toString('latin1'))?.[1] : undefined
    return { usage: messagesUsage(usage), id: called }
  }
  const buffered = whole && (streams ? streamedMessage(whole) : readMessage(whole)?.buffered)
  return { usage: messagesUsage(usage), id, calls: buffered?.calls }
}

export function messagesCallsNothing({ tail }: ResponseTail): boolean {
  const reason = lastText(tail, 'stop_reason')
  return reason !== undefined && reason !== 'tool_use' && reason !== 'pause_turn'
}
