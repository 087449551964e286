/** Whole responses that end a run: without tool calls, with the terminal state. */
import { isObject, type Json, objectsOf, parseObject, textOf } from '../../core/json-object.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import type { AnswerChange, Dialect, GovernorReply, ReadAnswer } from '../dialect.ts'
import { responseFacts, textsUnder } from '../shared/response-tail.ts'
import { jsonReply, rewritten, streamReply, writeAnswer } from '../shared/whole-response.ts'
import {
  bufferedCallsOf,
  COMPLETED,
  eventFrame,
  isClientCall,
  itemsLeft,
  messageEvents,
  messageItem,
  textOfOutputItems,
  withAddedText,
} from './wire.ts'

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

function writeResponse(body: Buffer, change: AnswerChange): Buffer {
  const { dropCalls, text, footer, terminal, earlier } = change
  return writeAnswer(body, change, (response) => {
    const id = governorId('msg', response['id'])
    let output = objectsOf(response['output'])
    const isSame = text === undefined && footer === undefined && earlier.length === 0
    if (isSame && !(dropCalls && output.some(isClientCall))) return undefined
    if (dropCalls) output = itemsLeft(output, 'all')
    if (text !== undefined) output = [messageItem(id, text)]
    if (footer !== undefined) {
      const last = output.findLast(({ type }) => type === 'message')
      if (last) output[output.indexOf(last)] = withAddedText(last, footer)
      else output.push(messageItem(id, footer))
    }
    return { ...(dropCalls && !terminal.truncated ? COMPLETED : {}), ...outputOf(response, output) }
  })
}

function withoutResponseCalls(body: Buffer, blocked: ReadonlySet<number>, earlier: readonly Buffer[]): Buffer {
  return rewritten(body, earlier, (response, before) => {
    const output = objectsOf(response['output'])
    const messages = before.flatMap((one) => objectsOf(one['output'])).filter(({ type }) => type === 'message')
    return outputOf(response, [...messages, ...itemsLeft(output, blocked)])
  })
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

/** How Responses reads and writes whole responses. */
export const responsesReplies = {
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
