/** Responses of the Responses API that are not rewritten as a stream: what is read of them, and how they end a run. */

import type { ToolCall } from '../../core/conversation.ts'
import { isObject, type Json, objectsOf, parseObject, textOf } from '../../core/json-object.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import { decode, elements, kindAt, member, members, root } from '../../json/scan.ts'
import type { AnswerChange, Dialect, GovernorReply, ReadAnswer, ResponseMetadata, ResponseTail } from '../dialect.ts'
import { tokenUsage } from '../openai/api.ts'
import { firstId, lastObject, responseFacts, textsUnder } from '../shared/response-tail.ts'
import { jsonReply, responsesIn, rewritten, streamReply, withTerminal } from '../shared/whole-response.ts'
import {
  bufferedCallsOf,
  COMPLETED,
  callOfItem,
  eventFrame,
  isClientCall,
  itemsLeft,
  messageEvents,
  messageItem,
  textOfOutputItems,
  withAddedText,
} from './wire.ts'

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

function clientCallsOf({ tail, whole, streams }: ResponseTail): Pick<ResponseMetadata, 'calls' | 'item'> {
  const items = streams ? streamedItems(whole ?? tail) : whole ? wholeItems(whole) : []
  const calls: ToolCall[] = []
  for (const item of items) {
    const id = typeof item['id'] === 'string' ? { item: item['id'] } : {}
    if (isClientCall(item)) calls.push({ ...callOfItem(item), ...id })
  }
  return { calls, item: whole ? textOf(items[0]?.['id']) || undefined : undefined }
}

/** Reads the id at the beginning, in a stream in the first event, and the usage at the end. */
function responsesMetadata(response: ResponseTail): ResponseMetadata {
  const usage = lastObject(response.tail, 'usage')
  const conversation = textOf(lastObject(response.tail, 'conversation')?.['id']) || undefined
  const id = firstId(response.head)
  const called = response.withCalls ? clientCallsOf(response) : undefined
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

function responsesCallsNothing({ tail, whole, streams }: ResponseTail): boolean {
  if (!streams) return whole !== undefined && !CALLS.test(whole.toString('latin1'))
  // The last event of a stream repeats all output.
  const last = tail.lastIndexOf('"response.completed"')
  return last !== -1 && !CALLS.test(tail.toString('latin1', last))
}

function readResponse(body: Buffer): ReadAnswer | undefined {
  const response = parseObject(body.toString('utf8'))
  if (!response || !Array.isArray(response['output'])) return undefined
  const output = objectsOf(response['output'])
  const buffered = bufferedCallsOf(response['id'], output)
  const { text, calls } = buffered
  const { status, error } = response
  if (!isObject(error) && status === 'incomplete') return { text, calls, end: 'truncated', buffered }
  // One that is still in progress is no answer.
  const isComplete = !isObject(error) && (status === undefined || status === 'completed')
  return { text, calls, end: isComplete ? 'complete' : 'failed', buffered }
}

/** Returns the output, also as the text that some providers send and SDKs compute otherwise. */
function outputOf(response: Json, output: readonly Json[]): Json {
  return { output, ...('output_text' in response ? { output_text: textOfOutputItems(output) } : {}) }
}

function writeResponse(body: Buffer, { terminal, dropCalls, text, footer, earlier }: AnswerChange): Buffer {
  const all = responsesIn(body, earlier)
  const { response } = all
  const id = governorId('msg', response['id'])
  let output = objectsOf(response['output'])
  const isSame = text === undefined && footer === undefined && earlier.length === 0
  if (isSame && !(dropCalls && output.some(isClientCall))) return withTerminal(body, terminal)
  if (dropCalls) output = itemsLeft(output, 'all')
  if (text !== undefined) output = [messageItem(id, text)]
  if (footer !== undefined) {
    const last = output.findLast(({ type }) => type === 'message')
    if (last) output[output.indexOf(last)] = withAddedText(last, footer)
    else output.push(messageItem(id, footer))
  }
  const end = dropCalls && !terminal.truncated ? COMPLETED : {}
  return rewritten(all, { ...end, ...outputOf(response, output), governor: terminal })
}

function withoutResponseCalls(body: Buffer, blocked: ReadonlySet<number>, earlier: readonly Buffer[]): Buffer {
  const all = responsesIn(body, earlier)
  const output: Json[] = []
  for (const before of all.before)
    for (const item of objectsOf(before['output'])) if (item['type'] === 'message') output.push(item)
  output.push(...itemsLeft(objectsOf(all.response['output']), blocked))
  return rewritten(all, outputOf(all.response, output))
}

/** Returns an id for an item of Governor's own, made of the id of its response. */
export function governorId(prefix: string, responseId: unknown): string {
  return `${prefix}_${textOf(responseId).replace(/^resp_/, '')}_governor`
}

const NO_USAGE = {
  input_tokens: 0,
  input_tokens_details: { cached_tokens: 0 },
  output_tokens: 0,
  output_tokens_details: { reasoning_tokens: 0 },
  total_tokens: 0,
}

function replyInResponses(answer: FinalAnswer, streams: boolean, id: string, createdAt: number): GovernorReply {
  const isTruncated = answer.terminal.truncated === true
  const status = isTruncated ? 'incomplete' : 'completed'
  const base: Json = {
    // If there is an id that the provider knows, the client can continue from it.
    id: answer.id ?? `resp_${id}`,
    object: 'response',
    created_at: Math.floor(createdAt / 1000),
    status,
    background: false,
    error: null,
    incomplete_details: isTruncated ? { reason: 'max_output_tokens' } : null,
    instructions: null,
    max_output_tokens: null,
    metadata: {},
    model: answer.model,
    output: [],
    parallel_tool_calls: true,
    previous_response_id: null,
    reasoning: { effort: null, summary: null },
    store: false,
    temperature: null,
    text: { format: { type: 'text' } },
    tool_choice: 'none',
    tools: [],
    top_p: null,
    truncation: 'disabled',
    usage: null,
    user: null,
  }
  const item = messageItem(`msg_${id}`, answer.text)
  const whole = { ...base, output: [item], usage: NO_USAGE, governor: answer.terminal }
  if (!streams) return jsonReply(whole)
  const begun = { ...base, status: 'in_progress' }
  const events: Json[] = [
    { type: 'response.created', response: begun },
    { type: 'response.in_progress', response: begun },
    ...messageEvents(item, answer.text, 0),
    { type: `response.${status}`, response: whole },
  ]
  return streamReply(events.map((event, number) => eventFrame({ ...event, sequence_number: number })))
}

/** How Responses reads and writes responses that are not rewritten as a stream. */
export const responsesReplies = {
  metadata: responsesMetadata,
  callsNothing: responsesCallsNothing,
  responseFacts(response) {
    // The end of a response has its status at the top; that of a stream is the type of its last event.
    const { tail, whole, streams } = response
    const status = streams
      ? textsUnder(tail, 'type').findLast((type) => /^response\.(?:completed|incomplete|failed)$/.test(type))
      : textOf(parseObject(whole?.toString('utf8') ?? '')?.['status'])
    return responseFacts(response, 'response', status ? [status.replace('response.', '')] : [])
  },
  readAnswer: readResponse,
  writeAnswer: writeResponse,
  withoutCalls: withoutResponseCalls,
  reply: replyInResponses,
} as const satisfies Partial<Dialect>
