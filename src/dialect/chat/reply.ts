/** Whole Chat Completions responses: read, without calls, in the form that the input takes, and Governor's own. */
import { isObject, type Json, parseObject, propertyOf } from '../../core/json-object.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import { dataFrame } from '../../sse/frames.ts'
import type { AnswerChange, BlockedMessage, BufferedCalls, GovernorReply, ReadAnswer } from '../dialect.ts'
import { DONE } from '../openai/api.ts'
import { jsonReply, rewritten, streamReply, writeAnswer } from '../shared/whole-response.ts'
import {
  argumentsOf,
  callsOf,
  choicesOf,
  contentText,
  finishWithoutCalls,
  hasCalls,
  isCutOff,
  isFailure,
  listedCalls,
  textOfMessage,
  withAddedText,
  withoutCalls,
} from './wire.ts'

/** Returns the calls of an assistant message. */
export function bufferedCallsOf(message: Json): BufferedCalls {
  return { calls: callsOf(message), text: contentText(message['content']), message }
}

/** Reads a whole response; `undefined` if it is no chat completion. */
export function readChatAnswer(body: Buffer): ReadAnswer | undefined {
  const answer = parseObject(body.toString('utf8')) ?? {}
  const choices = choicesOf(answer)
  const message = choices[0]?.['message']
  if (!isObject(message)) return undefined
  return {
    text: textOfMessage(message),
    calls: callsOf(message),
    end: isFailure(answer) ? 'failed' : isCutOff(answer) ? 'truncated' : 'complete',
    buffered: choices.length === 1 ? bufferedCallsOf(message) : undefined,
  }
}

const messageOf = ({ message }: Json): Json => (isObject(message) ? message : {})

/** Writes a whole response as the final answer of a run. */
export function writeChatAnswer(body: Buffer, change: AnswerChange): Buffer {
  const { dropCalls, text, footer, earlier } = change
  return writeAnswer(body, change, (answer) => {
    let isChanged = text !== undefined || footer !== undefined || earlier.length > 0
    const choices = choicesOf(answer).map((choice) => {
      let message = messageOf(choice)
      let reason = choice['finish_reason']
      if (dropCalls) {
        isChanged ||= hasCalls(message) || finishWithoutCalls(reason) !== reason
        message = withoutCalls(message)
        reason = finishWithoutCalls(reason)
      }
      if (text !== undefined) message = { ...message, content: text }
      if (footer !== undefined) message = withAddedText(message, footer)
      return { ...choice, message, finish_reason: reason }
    })
    return isChanged ? { choices } : undefined
  })
}

/** Writes a whole response without the calls in `blocked`, with text and usage of the `earlier` responses added. */
export function withoutChatCalls(body: Buffer, blocked: ReadonlySet<number>, earlier: readonly Buffer[]): Buffer {
  return rewritten(body, earlier, (answer, before) => {
    const texts = before.map((one) => contentText(propertyOf(choicesOf(one)[0]?.['message'], 'content')))
    const said = texts.filter((text) => text !== '').join('\n\n')
    const choices = choicesOf(answer).map((choice) => {
      const message = messageOf(choice)
      const { tool_calls: listed } = message
      // `blocked` counts only the calls that can be read.
      let place = 0
      const calls = (Array.isArray(listed) ? listed : []).filter(
        (call) => listedCalls([call]).length === 0 || !blocked.has(place++),
      )
      const kept = calls.length > 0 ? { ...message, tool_calls: calls } : withoutCalls(message)
      const own = contentText(message['content'])
      const content = own === '' ? said : `${said}\n\n${own}`
      return { ...choice, message: { ...(blocked.size > 0 ? kept : message), ...(said === '' ? {} : { content }) } }
    })
    return { choices }
  })
}

/** The fields that the API specifies for an assistant message. Not all providers accept their others back. */
const STANDARD_FIELDS = ['role', 'content', 'refusal', 'name', 'audio', 'tool_calls', 'function_call']

/** Returns a call for the input, where providers accept only JSON as arguments. */
function asInput(call: unknown): unknown {
  const called = propertyOf(call, 'function')
  if (!isObject(call) || !isObject(called) || argumentsOf(called['arguments']).trim() !== '') return call
  return { ...call, function: { ...called, arguments: '{}' } }
}

/**
 * Returns the messages that a blocked message adds to the input: the assistant message, and one result for each call.
 * `onlyStandardFields`: without fields that the API does not specify.
 */
export function messagesAfterBlock({ buffered, results }: BlockedMessage, onlyStandardFields: boolean): Json[] {
  const fields = Object.entries(isObject(buffered.message) ? buffered.message : {})
  const { tool_calls: listed, ...message } = Object.fromEntries(
    fields.filter(([key]) => !onlyStandardFields || STANDARD_FIELDS.includes(key)),
  )
  const isListed = Array.isArray(listed) && listed.length > 0
  const answers = buffered.calls.map(({ id, name }, at) => ({
    ...(isListed ? { role: 'tool', tool_call_id: id } : { role: 'function', name }),
    content: results[at],
  }))
  return [isListed ? { ...message, tool_calls: listed.map(asInput) } : message, ...answers]
}

/** Returns a reply of Governor's own. `createdAt` is in ms since the epoch; `created` in the reply is in seconds. */
export function replyInChat(
  { text, model, terminal: governor }: FinalAnswer,
  streams: boolean,
  id: string,
  createdAt: number,
  statesUsage = false,
): GovernorReply {
  const finish = governor.truncated ? 'length' : 'stop'
  const base = { id: `chatcmpl-${id}`, created: Math.floor(createdAt / 1000), model }
  const usage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }
  const choice = { index: 0, logprobs: null, finish_reason: finish }
  if (!streams) {
    const choices = [{ ...choice, message: { role: 'assistant', content: text, refusal: null } }]
    return jsonReply({ ...base, object: 'chat.completion', choices, usage, governor })
  }
  const chunk = (fields: Json) => dataFrame(JSON.stringify({ ...base, object: 'chat.completion.chunk', ...fields }))
  const delta = { role: 'assistant', content: text }
  return streamReply([
    chunk({ choices: [{ ...choice, delta, finish_reason: null }] }),
    chunk({ choices: [{ ...choice, delta: {} }], governor }),
    ...(statesUsage ? [chunk({ choices: [], usage })] : []),
    dataFrame(DONE),
  ])
}
