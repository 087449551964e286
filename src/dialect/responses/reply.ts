/** Whole Responses as the last of a run: tool calls out, terminal state in. */
import type { FinalAnswer } from '../../core/terminal.ts'
import { applyEdits, setMember } from '../../json/edit.ts'
import { members, root } from '../../json/scan.ts'
import type { AnswerChange, AnswerEnd, BufferedCalls, GovernorReply, ReadAnswer } from '../dialect.ts'
import {
  isObject,
  type Json,
  objectsIn,
  objectsOf,
  parseObject,
  summedUsage,
  textOf,
} from '../shared/json-object.ts'
import { eventFrame, messageEvents } from './events.ts'
import {
  bufferedCallsOf,
  COMPLETED,
  isClientCall,
  messageItem,
  placesWithoutBlocked,
  textOfOutputItems,
  withoutCallItems,
} from './wire.ts'

/** A response that is still under way is no answer either. */
function endOf({ status, error }: Json): AnswerEnd {
  if (isObject(error)) return 'failed'
  if (status === 'incomplete') return 'truncated'
  return status === undefined || status === 'completed' ? 'complete' : 'failed'
}

export function readResponse(body: Buffer): ReadAnswer | undefined {
  const response = parseObject(body.toString('utf8'))
  if (!response || !Array.isArray(response['output'])) return undefined
  const output = objectsOf(response['output'])
  const buffered = bufferedCallsOf(response['id'], output)
  return { text: buffered.text, calls: buffered.calls, end: endOf(response), buffered }
}

export function writeResponse(body: Buffer, change: AnswerChange): Buffer {
  const response = parseObject(body.toString('utf8')) ?? {}
  const output = objectsOf(response['output'])
  const mustDrop = change.dropCalls && output.some(isClientCall)
  if (!mustDrop && change.text === undefined && change.earlier.length === 0) {
    // Nothing but the terminal state to add: the provider's bytes stay as they are.
    const object = root(body)
    return applyEdits(body, [
      setMember(object, members(body, object), 'governor', JSON.stringify(change.terminal)),
    ])
  }
  const kept = change.dropCalls ? withoutCallItems(output) : output
  const own = change.text !== undefined && messageItem(governorId('msg', response['id']), change.text)
  return Buffer.from(
    JSON.stringify({
      ...response,
      ...(change.dropCalls && !change.terminal.truncated ? COMPLETED : {}),
      output: own ? [own] : kept,
      // Some providers add what SDKs only compute.
      ...('output_text' in response ? { output_text: change.text ?? textOfOutputItems(kept) } : {}),
      ...summedUsage(objectsIn(change.earlier), response),
      governor: change.terminal,
    }),
  )
}

export function readResponseCalls(body: Buffer): BufferedCalls | undefined {
  const response = parseObject(body.toString('utf8'))
  if (!response || !Array.isArray(response['output'])) return undefined
  return bufferedCallsOf(response['id'], objectsOf(response['output']))
}

export function withoutResponseCalls(
  body: Buffer,
  blocked: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  const [response = {}, ...before] = objectsIn([body, ...earlier])
  const output = objectsOf(response['output'])
  const said = before.flatMap((one) => objectsOf(one['output']).filter(({ type }) => type === 'message'))
  const left = placesWithoutBlocked(output, blocked).map((at) => output[at])
  const kept = [...said, ...left.filter(isObject)]
  return Buffer.from(
    JSON.stringify({
      ...response,
      output: kept,
      ...('output_text' in response ? { output_text: textOfOutputItems(kept) } : {}),
      ...summedUsage(before, response),
    }),
  )
}

/** An id for an item of Governor's own, after that of the response it stands in. */
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

/** The object a reply of Governor's own is made of; `created_at` in seconds, as this API has it. */
export function replyInResponses(
  answer: FinalAnswer,
  streams: boolean,
  id: string,
  createdAt: number,
): GovernorReply {
  const isTruncated = answer.terminal.truncated === true
  const status = isTruncated ? 'incomplete' : 'completed'
  const base: Json = {
    // One that the provider knows, where there is one: the client may go on from it.
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
