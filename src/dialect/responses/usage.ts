/** What a Responses response says of itself: its id, what it took, what it called. */
import type { ToolCall } from '../../core/conversation.ts'
import type { TokenUsage } from '../../core/usage.ts'
import { decode, elements, kindAt, member, members, root } from '../../json/scan.ts'
import { tokenUsage } from '../chat/usage.ts'
import type { ResponseMetadata, ResponseTail } from '../dialect.ts'
import { isObject, type Json, parseObject, textOf } from '../shared/json-object.ts'
import { firstText, lastObject } from '../shared/usage-text.ts'
import { callOfItem, isClientCall } from './wire.ts'

/** Its numbers have names of their own, and those inside them. */
function usageOf(usage: Json | undefined): TokenUsage | undefined {
  return usage && tokenUsage(usage, usage['input_tokens_details'], usage['output_tokens_details'])
}

/** What a response says of itself after its output, in bytes; it may repeat all tools. */
const AFTER_OUTPUT = 65_536

/** Does the response say that its provider has not kept it? */
function isForgotten({ head, tail }: ResponseTail): boolean {
  const said = /"store"\s{0,4}:\s{0,4}(true|false)/g
  const end = tail.toString('latin1', Math.max(0, tail.length - AFTER_OUTPUT))
  let last: string | undefined
  for (let found = said.exec(end); found; found = said.exec(end)) last = found[1]
  return (last ?? said.exec(head.toString('latin1'))?.[1]) === 'false'
}

/** Items of one response that are looked at. */
const MAX_ITEMS = 256

const ITEM_DONE = 'response.output_item.done'
const LF = 0x0a

/** The items that a stream, or its tail, tells the whole of: those of one kind of event, each on a line of its own. */
function streamedItems(bytes: Buffer): Json[] {
  const items: Json[] = []
  let at = bytes.indexOf(`"${ITEM_DONE}"`)
  while (at !== -1 && items.length < MAX_ITEMS) {
    const start = bytes.lastIndexOf(LF, at) + 1
    const next = bytes.indexOf(LF, at)
    const end = next === -1 ? bytes.length : next
    const line = bytes.toString('utf8', start, end)
    const event = line.startsWith('data:') ? parseObject(line.slice('data:'.length)) : undefined
    if (event?.['type'] === ITEM_DONE && isObject(event['item'])) items.push(event['item'])
    at = bytes.indexOf(`"${ITEM_DONE}"`, end)
  }
  return items
}

/** The items of a whole response, each decoded by itself: what surrounds them repeats the request. */
function wholeItems(body: Buffer): Json[] {
  try {
    const output = member(members(body, root(body)), 'output')?.value
    if (!output || kindAt(body, output) !== 'array') return []
    return elements(body, output)
      .slice(0, MAX_ITEMS)
      .map((item) => decode(body, item))
      .filter(isObject)
  } catch {
    // It broke off, and nobody got what it called.
    return []
  }
}

function callsOf({ tail, whole, streams }: ResponseTail): Pick<ResponseMetadata, 'calls' | 'item'> {
  const items = streams ? streamedItems(whole ?? tail) : whole ? wholeItems(whole) : []
  const calls = items.filter(isClientCall).map(
    (item): ToolCall => ({
      ...callOfItem(item),
      ...(typeof item['id'] === 'string' ? { item: item['id'] } : {}),
    }),
  )
  const first = whole ? textOf(items[0]?.['id']) : ''
  return { calls, ...(first === '' ? {} : { item: first }) }
}

/** The id stands at the beginning, in a stream in the first event; what it took at the end. */
export function responsesMetadata(response: ResponseTail): ResponseMetadata {
  const usage = usageOf(lastObject(response.tail, 'usage'))
  const conversation = textOf(lastObject(response.tail, 'conversation')?.['id'])
  const id = firstText(response.head, 'id')
  const said = response.withCalls ? callsOf(response) : undefined
  return {
    usage,
    id: id === undefined || isForgotten(response) ? undefined : id,
    conversation: conversation === '' ? undefined : conversation,
    calls: said?.calls,
    item: said?.item,
  }
}

/** What asks the client to do something. */
const CALLS =
  /"type"\s{0,4}:\s{0,4}"(?:function_call|custom_tool_call|local_shell_call|shell_call|apply_patch_call|computer_call|mcp_approval_request)"/

/** The last event of a stream has all that was said; of a whole response all of it must be there. */
export function responsesCallsNothing({ tail, whole, streams }: ResponseTail): boolean {
  if (!streams) return whole !== undefined && !CALLS.test(whole.toString('latin1'))
  const last = tail.lastIndexOf('"response.completed"')
  return last !== -1 && !CALLS.test(tail.toString('latin1', last))
}
