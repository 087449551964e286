/** Whole responses that end a run: without tool calls, with the terminal state. */
import { isObject, type Json, objectsOf, parseObject, textOf } from '../../core/json-object.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import { withMembers } from '../../json/edit.ts'
import type { AnswerChange, AnswerEnd, GovernorReply, ReadAnswer } from '../dialect.ts'
import { objectsIn, summedUsage } from '../shared/summed-usage.ts'
import { eventFrame, messageEvents } from './events.ts'
import {
  bufferedCallsOf,
  COMPLETED,
  isClientCall,
  messageItem,
  placesWithoutBlocked,
  textOfOutputItems,
  withAddedText,
  withoutCallItems,
} from './wire.ts'

/** Returns how a response ended; one that is still in progress has failed, as it is no answer. */
function endOf({ status, error }: Json): AnswerEnd {
  if (isObject(error)) return 'failed'
  if (status === 'incomplete') return 'truncated'
  return status === undefined || status === 'completed' ? 'complete' : 'failed'
}

/** Reads a whole response; `undefined` if the body is no response. */
export function readResponse(body: Buffer): ReadAnswer | undefined {
  const response = parseObject(body.toString('utf8'))
  if (!response || !Array.isArray(response['output'])) return undefined
  const output = objectsOf(response['output'])
  const buffered = bufferedCallsOf(response['id'], output)
  return { text: buffered.text, calls: buffered.calls, end: endOf(response), buffered }
}

/** Returns an output with the footer at the end of its last message. `id`: for a message of its own if there is none. */
function withFooter(output: readonly Json[], footer: string, id: string): Json[] {
  const last = output.findLast(({ type }) => type === 'message')
  if (!last) return [...output, messageItem(id, footer)]
  return output.map((item) => (item === last ? withAddedText(item, footer) : item))
}

/** Writes a whole response as the final answer of a run. */
export function writeResponse(body: Buffer, change: AnswerChange): Buffer {
  const response = parseObject(body.toString('utf8')) ?? {}
  const output = objectsOf(response['output'])
  const mustDrop = change.dropCalls && output.some(isClientCall)
  const isSame = change.text === undefined && change.footer === undefined
  if (!mustDrop && isSame && change.earlier.length === 0) {
    // Only the terminal state is added: all other bytes stay as the provider sent them.
    return withMembers(body, { governor: JSON.stringify(change.terminal) })
  }
  const kept = change.dropCalls ? withoutCallItems(output) : output
  const id = governorId('msg', response['id'])
  const said = change.text === undefined ? kept : [messageItem(id, change.text)]
  const shown = change.footer === undefined ? said : withFooter(said, change.footer, id)
  return Buffer.from(
    JSON.stringify({
      ...response,
      ...(change.dropCalls && !change.terminal.truncated ? COMPLETED : {}),
      output: shown,
      // Some providers send this member, which SDKs compute otherwise.
      ...('output_text' in response ? { output_text: textOfOutputItems(shown) } : {}),
      ...summedUsage(objectsIn(change.earlier), response),
      governor: change.terminal,
    }),
  )
}

/** Writes a whole response without the calls in `blocked`, with the messages and the usage of the `earlier` responses added. */
export function withoutResponseCalls(
  body: Buffer,
  blocked: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  const [response = {}, ...before] = objectsIn([body, ...earlier])
  const output = objectsOf(response['output'])
  const earlierMessages = before.flatMap((earlierResponse) =>
    objectsOf(earlierResponse['output']).filter(({ type }) => type === 'message'),
  )
  const left = placesWithoutBlocked(output, blocked).map((at) => output[at])
  const kept = [...earlierMessages, ...left.filter(isObject)]
  return Buffer.from(
    JSON.stringify({
      ...response,
      output: kept,
      ...('output_text' in response ? { output_text: textOfOutputItems(kept) } : {}),
      ...summedUsage(before, response),
    }),
  )
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

/** Returns a reply of Governor's own. `createdAt` is in ms since the epoch; `created_at` in the reply is in seconds. */
export function replyInResponses(
  answer: FinalAnswer,
  streams: boolean,
  id: string,
  createdAt: number,
): GovernorReply {
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
  if (!streams) return { contentType: 'application/json', body: Buffer.from(JSON.stringify(whole)) }
  const begun = { ...base, status: 'in_progress' }
  const events: Json[] = [
    { type: 'response.created', response: begun },
    { type: 'response.in_progress', response: begun },
    ...messageEvents(item, answer.text, 0),
    { type: `response.${status}`, response: whole },
  ]
  return {
    contentType: 'text/event-stream; charset=utf-8',
    body: Buffer.concat(events.map((event, number) => eventFrame({ ...event, sequence_number: number }))),
  }
}
