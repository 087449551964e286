/** What a Messages response says of itself. */
import type { TokenUsage } from '../core/usage.ts'
import { createFrameReader, dataOf } from '../sse/frames.ts'
import type { Facts, Tapped } from './dialect.ts'
import { laterUsage } from './messages-shape.ts'
import { parseObject, textOf } from './shape.ts'
import { firstText, inside, lastObject, tokens } from './usage-text.ts'

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

function factsOfStream({ head, tail }: Tapped): Facts {
  const start = startOf(head)
  const usage = messagesUsage(laterUsage(inside(start, 'usage'), lastObject(tail, 'usage')))
  const id = textOf(inside(start, 'id'))
  return { ...(usage ? { usage } : {}), ...(id === '' ? {} : { id }) }
}

/** A call's input may hold anything, so that only of a long response usage is looked for in its last bytes. */
function factsOfWhole({ head, tail, whole }: Tapped): Facts {
  const message = whole && parseObject(whole.toString('utf8'))
  const usage = messagesUsage(message ? message['usage'] : lastObject(tail, 'usage'))
  const id = message ? textOf(message['id']) : firstText(head, 'id')
  return { ...(usage ? { usage } : {}), ...(id ? { id } : {}) }
}

export function messagesFacts(tapped: Tapped): Facts {
  return tapped.streams ? factsOfStream(tapped) : factsOfWhole(tapped)
}
