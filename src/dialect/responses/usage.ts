/** Reads usage, ids and calls from a relayed response. */
import type { ToolCall } from '../../core/conversation.ts'
import { isObject, type Json, objectsOf, parseObject, textOf } from '../../core/json-object.ts'
import { decode, elements, kindAt, member, members, root } from '../../json/scan.ts'
import type { ResponseMetadata, ResponseTail } from '../dialect.ts'
import { tokenUsage } from '../openai/api.ts'
import { firstText, lastObject } from '../shared/response-tail.ts'
import { callOfItem, isClientCall } from './wire.ts'

/** The most bytes that the members after the output take; they may repeat all tools. */
const AFTER_OUTPUT = 65_536

/** True if the response says that the provider has not stored it. */
function isNotStored({ head, tail }: ResponseTail): boolean {
  const store = /"store"\s{0,4}:\s{0,4}(true|false)/g
  const [first] = head.toString('latin1').matchAll(store)
  const end = tail.toString('latin1', Math.max(0, tail.length - AFTER_OUTPUT))
  const last = [...end.matchAll(store)].at(-1) ?? first
  return last?.[1] === 'false'
}

/** At most this many items of one response are read. */
const MAX_ITEMS = 256

const ITEM_DONE = 'response.output_item.done'

/** Returns the finished items in a stream or its tail: those of `response.output_item.done`, one line each. */
function streamedItems(bytes: Buffer): Json[] {
  const items: Json[] = []
  let ends = 0
  for (const line of bytes.toString('utf8').split('\n')) {
    if (!line.startsWith('data:') || !line.includes(`"${ITEM_DONE}"`)) continue
    if (++ends > MAX_ITEMS) break
    const { type, item } = parseObject(line.slice('data:'.length)) ?? {}
    if (type === ITEM_DONE && isObject(item)) items.push(item)
  }
  return items
}

/** Returns the items of a whole response, without decoding the rest, which repeats the request. */
function wholeItems(body: Buffer): Json[] {
  try {
    const output = member(members(body, root(body)), 'output')?.value
    if (!output || kindAt(body, output) !== 'array') return []
    const items = elements(body, output).slice(0, MAX_ITEMS)
    return objectsOf(items.map((item) => decode(body, item)))
  } catch {
    // It is incomplete, so the client did not get its calls.
    return []
  }
}

function callsOf({ tail, whole, streams }: ResponseTail): Pick<ResponseMetadata, 'calls' | 'item'> {
  const items = streams ? streamedItems(whole ?? tail) : whole ? wholeItems(whole) : []
  const calls: ToolCall[] = []
  for (const item of items) {
    const id = typeof item['id'] === 'string' ? { item: item['id'] } : {}
    if (isClientCall(item)) calls.push({ ...callOfItem(item), ...id })
  }
  return { calls, item: whole ? textOf(items[0]?.['id']) || undefined : undefined }
}

/** Reads the id at the beginning, in a stream in the first event, and the usage at the end. */
export function responsesMetadata(response: ResponseTail): ResponseMetadata {
  const usage = lastObject(response.tail, 'usage')
  const conversation = textOf(lastObject(response.tail, 'conversation')?.['id']) || undefined
  const id = firstText(response.head, 'id')
  const called = response.withCalls ? callsOf(response) : undefined
  return {
    usage: usage && tokenUsage(usage, usage['input_tokens_details'], usage['output_tokens_details']),
    id: isNotStored(response) ? undefined : id,
    conversation,
    calls: called?.calls,
    item: called?.item,
  }
}

/** The types of the calls that a client makes. */
const CALLS =
  /"type"\s{0,4}:\s{0,4}"(?:(?:function|custom_tool|local_shell|shell|apply_patch|computer)_call|mcp_approval_request)"/

export function responsesCallsNothing({ tail, whole, streams }: ResponseTail): boolean {
  if (!streams) return whole !== undefined && !CALLS.test(whole.toString('latin1'))
  // The last event of a stream repeats all output.
  const last = tail.lastIndexOf('"response.completed"')
  return last !== -1 && !CALLS.test(tail.toString('latin1', last))
}
