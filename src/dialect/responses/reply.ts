/** Responses of the Responses API that are not rewritten as a stream: what is read of them, and how they end a run. */

import { isObject, type Json, objectsOf, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { decode, elements, kindAt, member, members, root } from '../../json/scan.ts'
import type { Dialect, ResponseMetadata, ResponseTail } from '../dialect.ts'
import { lacksOutput, tokenUsage } from '../openai/api.ts'
import { stringIn } from '../shared/request.ts'
import { firstText, idsUnder, objectsUnder, responseFacts, textsUnder } from '../shared/response-tail.ts'
import { statedIn } from '../shared/stated-usage.ts'
import { eventFrame, jsonReply, responsesIn, rewritten, streamReply, withTerminal } from '../shared/whole-response.ts'
import { endIn, isOver, lastCompleted, lastEnd } from './ends.ts'
import {
  bufferedCallsOf,
  COMPLETED,
  callsIn,
  clientCallsIn,
  HOSTED_CALL_ID,
  HOSTED_SHELL,
  itemsLeft,
  messageEvents,
  messageItem,
  textOfOutputItems,
  withAddedText,
} from './wire.ts'

/** The most bytes that the members after the output take; they may repeat all tools. */
const AFTER_OUTPUT = 65_536

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

/**
 * Returns the finished items in a stream or its tail: those of `response.output_item.done`, one line each. Those of the
 * last event where none comes alone, as some gateways write streams, and where a client goes on in the middle of one.
 */
function streamedItems({ head, tail, whole }: ResponseTail): readonly Json[] {
  const bytes = whole ?? tail
  const items: Json[] = []
  let ends = 0
  for (const line of bytes.toString('utf8').split('\n')) {
    if (!line.startsWith('data:') || !line.includes(`"${ITEM_DONE}"`)) continue
    if (++ends > MAX_ITEMS) break
    const { type, item } = parseObject(line.slice('data:'.length)) ?? {}
    if (type === ITEM_DONE && isObject(item)) items.push(item)
  }
  if (items.length > 0 && head.includes('"response.created"')) return items
  const last = lastEnd(bytes.toString('latin1'))
  const inLast = (last && itemsInLine(bytes.toString('utf8', last.start, last.end))) ?? []
  return inLast.length > 0 ? inLast.slice(0, MAX_ITEMS) : items
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

function compactionIn({ whole, streams }: ResponseTail): Pick<ResponseMetadata, 'item'> {
  if (!whole || streams || !whole.includes('"response.compaction"')) return {}
  return { item: textOf(wholeItems(whole).findLast(({ type }) => type === 'compaction')?.['id']) || undefined }
}

function clientCallsOf(response: ResponseTail): Pick<ResponseMetadata, 'calls' | 'item'> {
  const { whole, streams } = response
  const items = streams ? streamedItems(response) : whole ? wholeItems(whole) : []
  const ids = clientCallsIn(items).map(({ id }) => id)
  const calls = callsIn(items).map((call, at) => {
    const id = ids[at]
    return { ...call, ...(typeof id === 'string' ? { item: id } : {}) }
  })
  return { calls, item: whole ? textOf(items[0]?.['id']) || undefined : undefined }
}

const CALLS =
  /"type"\s{0,4}:\s{0,4}"(?:(?:function|custom_tool|local_shell|shell|apply_patch|computer)_call|mcp_approval_request)"/

/** Marks of calls that the provider has made itself, and of what it answered them with. */
const HOSTED = new RegExp(`"(?:${HOSTED_SHELL}|${HOSTED_CALL_ID}|[a-z_]{1,40}_output")`)

/** True if a response has no call of a client. `text`: its bytes, which are decoded only if the provider made some. */
function isWithoutCalls(text: string, output: () => readonly Json[] | undefined): boolean {
  if (!CALLS.test(text)) return true
  const items = HOSTED.test(text) ? output() : undefined
  return items !== undefined && clientCallsIn(items).length === 0
}

/** Returns the items in a line of a stream, which states one of them or the whole response. */
function itemsInLine(line: string): readonly Json[] | undefined {
  const event = parseObject(line.slice(line.indexOf('{')))
  const { item, response } = event ?? {}
  return event && (isObject(item) ? [item] : objectsOf(propertyOf(response, 'output')))
}

/** Returns the output, also as the text that some providers send and SDKs compute otherwise. */
export function outputOf(response: Json, output: readonly Json[]): Json {
  return { output, ...('output_text' in response ? { output_text: textOfOutputItems(output) } : {}) }
}

/** Returns an id for a message of Governor's own, made of the id of its response. */
export function governorId(responseId: unknown): string {
  return `msg_${textOf(responseId).replace(/^resp_/, '')}_governor`
}

const NO_USAGE = {
  input_tokens: 0,
  input_tokens_details: { cached_tokens: 0 },
  output_tokens: 0,
  output_tokens_details: { reasoning_tokens: 0 },
  total_tokens: 0,
}

/** A status of a response, or of an item, that is not over. */
const PENDING = /"status"\s{0,4}:\s{0,4}"(?:queued|in_progress)"/

export const responsesReplies = {
  // The id stands at the beginning, in a stream in the first event, and the usage at the end.
  metadata(response) {
    const { usage, bill } = statedIn(response)
    return {
      usage: tokenUsage(usage),
      isBegun: lacksOutput(usage),
      bill,
      id: isNotStored(response) ? undefined : firstText(response.head, 'id'),
      conversation: textOf(objectsUnder(response.tail, 'conversation').at(-1)?.['id']) || undefined,
      ...(response.withCalls ? clientCallsOf(response) : compactionIn(response)),
    }
  },
  callsNothing({ tail, whole, streams }) {
    if (!streams) return whole !== undefined && isWithoutCalls(whole.toString('latin1'), () => wholeItems(whole))
    // The last event of a stream repeats all output.
    const text = tail.toString('latin1')
    const last = lastCompleted(text)
    if (!last) return false
    const { start, end } = last
    return isWithoutCalls(text.slice(start), () => itemsInLine(tail.toString('utf8', start, end)))
  },
  isPending({ head, tail, whole, streams }) {
    if (streams) return !isOver(tail.toString('latin1'))
    if (!PENDING.test((whole ?? head).toString('latin1'))) return false
    // Items of the output have a status too.
    const status = whole ? stringIn(whole, members(whole, root(whole)), 'status') : firstText(head, 'status')
    return status === 'queued' || status === 'in_progress'
  },
  marks: {
    call: '"call_id"',
    callIds(line) {
      const ids = idsUnder(line, 'call_id')
      const items = ids.length > 0 && HOSTED.test(line) ? itemsInLine(line) : undefined
      return items ? callsIn(items).map(({ id }) => id) : ids
    },
    end: endIn,
  },
  responseFacts(response) {
    // The end of a response has its status at the top; that of a stream is the type of its last event.
    const { tail, whole, streams } = response
    const status = streams
      ? textsUnder(tail, 'type').findLast((type) => /^response\.(?:completed|incomplete|failed)$/.test(type))
      : textOf(parseObject(whole?.toString('utf8') ?? '')?.['status'])
    return responseFacts(response, 'response', status ? [status.replace('response.', '')] : [])
  },
  readAnswer(body) {
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
  },
  writeAnswer(body, { terminal, dropCalls, text, footer, earlier }) {
    const all = responsesIn(body, earlier)
    const { response } = all
    const id = governorId(response['id'])
    let output = objectsOf(response['output'])
    const isSame = text === undefined && footer === undefined && earlier.length === 0
    const isChanged = dropCalls && (response['status'] === 'incomplete' || clientCallsIn(output).length > 0)
    if (isSame && !isChanged) return withTerminal(body, terminal)
    if (dropCalls) output = itemsLeft(output, 'all')
    if (text !== undefined) output = [messageItem(id, text)]
    if (footer !== undefined) {
      const last = output.findLast(({ type }) => type === 'message')
      if (last) output[output.indexOf(last)] = withAddedText(last, footer)
      else output.push(messageItem(id, footer))
    }
    // Clients may throw on an answer that was cut off; the terminal state says so.
    return rewritten(all, { ...(dropCalls ? COMPLETED : {}), ...outputOf(response, output), governor: terminal })
  },
  withoutCalls(body, blocked, earlier, isJson) {
    const all = responsesIn(body, earlier)
    const said = isJson ? [] : all.before
    const before = said.flatMap(({ output }) => objectsOf(output)).filter(({ type }) => type === 'message')
    const left = itemsLeft(objectsOf(all.response['output']), blocked)
    return rewritten(all, outputOf(all.response, [...before, ...left]))
  },
  reply(answer, streams, id, createdAt) {
    const base: Json = {
      // If there is an id that the provider knows, the client can continue from it.
      id: answer.id ?? `resp_${id}`,
      object: 'response',
      created_at: Math.floor(createdAt / 1000),
      status: 'completed',
      background: false,
      error: null,
      incomplete_details: null,
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
      { type: 'response.completed', response: whole },
    ]
    return streamReply(events.map((event, number) => eventFrame({ ...event, sequence_number: number })))
  },
} as const satisfies Partial<Dialect>
