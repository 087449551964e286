/** What a Messages response says of itself. */
import type { TokenUsage } from '../core/usage.ts'
import { createFrameReader, dataOf } from '../sse/frames.ts'
import type { Facts, Tapped } from './dialect.ts'
import { readMessageCalls, streamedMessage } from './messages-held.ts'
import { laterUsage } from './messages-shape.ts'
import { parseObject, textOf } from './shape.ts'
import { firstText, inside, lastObject, lastText, tokens } from './usage-text.ts'

/** Tokens read from a cache and written to one are counted beside `input_tokens`, not in it. */
export function messagesUsage(usage: unknown): TokenUsage | undefined {
  const fresh = tokens(inside(usage, 'input_tokens'))
  const output = tokens(inside(usage, 'output_tokens'))
  if (fresh === undefined && output === undefined) return undefined
  const cachedInput = tokens(inside(usage, 'cache_read_input_tokens'))
  const cacheWrite = tokens(inside(usage, 'cache_creation_input_tokens'))
  const reasoning = tokens(inside(inside(usage, 'output_tokens_details'), 'thinking_tokens'))
  return {
    input: (fresh ?? 0) + (cachedInput ?? 0) + (cacheWrite ?? 0),
    output: output ?? 0,
    ...(cachedInput === undefined ? {} : { cachedInput }),
    ...(cacheWrite === undefined ? {} : { cacheWrite }),
    ...(reasoning === undefined ? {} : { reasoning }),
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

function statedIn({ head, tail, whole, streams }: Tapped): { readonly usage: unknown; readonly id: string } {
  if (streams) {
    const start = startOf(head)
    return {
      usage: laterUsage(inside(start, 'usage'), lastObject(tail, 'usage')),
      id: textOf(inside(start, 'id')),
    }
  }
  // A call's input may hold anything, so that only of a long response usage is looked for in its last bytes.
  const message = whole && parseObject(whole.toString('utf8'))
  return message
    ? { usage: message['usage'], id: textOf(message['id']) }
    : { usage: lastObject(tail, 'usage'), id: firstText(head, 'id') ?? '' }
}

/** By its id a response can be gone on from in a message thread alone. */
export function messagesFacts(tapped: Tapped): Facts {
  const stated = statedIn(tapped)
  const usage = messagesUsage(stated.usage)
  const facts = usage ? { usage } : {}
  if (!tapped.withCalls || stated.id === '') return facts
  const { whole, streams } = tapped
  const said = whole && (streams ? streamedMessage(whole) : readMessageCalls(whole))
  return { ...facts, id: stated.id, ...(said ? { calls: said.calls } : {}) }
}

export function messagesCallsNothing({ tail }: Tapped): boolean {
  const reason = lastText(tail, 'stop_reason')
  return reason !== undefined && reason !== 'tool_use' && reason !== 'pause_turn'
}
