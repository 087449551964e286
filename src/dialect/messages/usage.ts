/** What a Messages response says of itself. */
import type { TokenUsage } from '../../core/usage.ts'
import {
  decode,
  firstKey,
  isKey,
  nextKey,
  rootStart,
  skipString,
  skipValue,
  valueAfter,
} from '../../json/scan.ts'
import { createFrameReader, dataOf } from '../../sse/frames.ts'
import type { ResponseMetadata, ResponseTail } from '../dialect.ts'
import { isObject, parseObject, propertyOf, textOf } from '../shared/json-object.ts'
import { firstText, lastObject, lastText, tokens } from '../shared/usage-text.ts'
import { readMessageCalls, streamedMessage } from './buffered-calls.ts'
import { laterUsage } from './wire.ts'

const QUOTE = 0x22

/** Tokens read from a cache and written to one are counted beside `input_tokens`, not in it. */
export function messagesUsage(usage: unknown): TokenUsage | undefined {
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

/** The start of a streamed response, which is its first event but for pings. */
function startOf(head: Buffer): unknown {
  for (const frame of createFrameReader().push(head)) {
    const data = parseObject(dataOf(frame) ?? '')
    if (data?.['type'] === 'message_start') return data['message']
  }
  return undefined
}

/** What a whole response says of itself, without reading what the model said; `undefined` where it is no object. */
function memberValues(whole: Buffer): { readonly usage: unknown; readonly id: string } | undefined {
  let usage: unknown
  let id: unknown
  try {
    let key = firstKey(whole, rootStart(whole))
    while (whole[key] === QUOTE) {
      const keyEnd = skipString(whole, key)
      const start = valueAfter(whole, keyEnd)
      const end = skipValue(whole, start)
      if (isKey(whole, key, keyEnd, 'usage')) usage = decode(whole, { start, end })
      else if (isKey(whole, key, keyEnd, 'id')) id = decode(whole, { start, end })
      key = nextKey(whole, end)
    }
  } catch {
    // It broke off, or is no JSON.
    return undefined
  }
  return { usage, id: textOf(id) }
}

function statedIn({ head, tail, whole, streams }: ResponseTail): {
  readonly usage: unknown
  readonly id: string
} {
  if (streams) {
    const start = startOf(head)
    return {
      usage: laterUsage(propertyOf(start, 'usage'), lastObject(tail, 'usage')),
      id: textOf(propertyOf(start, 'id')),
    }
  }
  // A call's input may hold anything, so that only of a long response usage is looked for in its last bytes.
  const said = whole && memberValues(whole)
  return said ?? { usage: lastObject(tail, 'usage'), id: firstText(head, 'id') ?? '' }
}

/** A call of a tool that the provider runs itself: no text of the model's holds a quote without a backslash before it. */
const RUN_BY_PROVIDER =
  /"type"\s{0,4}:\s{0,4}"[a-z]{1,20}_tool_use"\s{0,4},\s{0,4}"id"\s{0,4}:\s{0,4}"([^"\\]{1,200})"/

/** What a client shows that goes on from a response which has paused: the id of the first call in it. */
function pausedAt({ head, tail }: ResponseTail): string | undefined {
  if (lastText(tail, 'stop_reason') !== 'pause_turn') return undefined
  return RUN_BY_PROVIDER.exec(head.toString('latin1'))?.[1]
}

/** By its own id a response can be gone on from in a message thread alone. */
export function messagesMetadata(response: ResponseTail): ResponseMetadata {
  const { withCalls, whole, streams } = response
  const { usage, id } = statedIn(response)
  if (!withCalls || id === '') return { usage: messagesUsage(usage), id: pausedAt(response) }
  const said = whole && (streams ? streamedMessage(whole) : readMessageCalls(whole))
  return { usage: messagesUsage(usage), id, calls: said?.calls }
}

export function messagesCallsNothing({ tail }: ResponseTail): boolean {
  const reason = lastText(tail, 'stop_reason')
  return reason !== undefined && reason !== 'tool_use' && reason !== 'pause_turn'
}
