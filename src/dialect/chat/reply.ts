/** Whole Chat Completions responses that end a run: without tool calls, with the terminal state. */
import { isObject, type Json, parseObject } from '../../core/json-object.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import { dataFrame } from '../../sse/frames.ts'
import type { AnswerChange, GovernorReply, ReadAnswer } from '../dialect.ts'
import { DONE } from '../openai/api.ts'
import { jsonReply, streamReply, writeAnswer } from '../shared/whole-response.ts'
import { callsOf } from './calls.ts'
import {
  choicesOf,
  finishWithoutCalls,
  hasCalls,
  isCutOff,
  isFailure,
  textOfMessage,
  withAddedText,
  withoutCalls,
} from './wire.ts'

/** Reads a whole response; `undefined` if it is no chat completion. */
export function readChatAnswer(body: Buffer): ReadAnswer | undefined {
  const answer = parseObject(body.toString('utf8'))
  const message = answer && choicesOf(answer)[0]?.['message']
  if (!answer || !isObject(message)) return undefined
  return {
    text: textOfMessage(message),
    calls: callsOf(message),
    end: isFailure(answer) ? 'failed' : isCutOff(answer) ? 'truncated' : 'complete',
  }
}

const messageOf = ({ message }: Json): Json => (isObject(message) ? message : {})

/** Writes a whole response as the final answer of a run. */
export function writeChatAnswer(body: Buffer, change: AnswerChange): Buffer {
  const { dropCalls, text, footer } = change
  const isDropped = (choice: Json) =>
    hasCalls(messageOf(choice)) || finishWithoutCalls(choice['finish_reason']) !== choice['finish_reason']
  return writeAnswer(
    body,
    change,
    (answer) => choicesOf(answer).some(isDropped),
    (answer) => ({
      choices: choicesOf(answer).map((choice) => {
        const message = messageOf(choice)
        const { finish_reason: reason } = choice
        const kept = dropCalls ? withoutCalls(message) : message
        const said = text === undefined ? kept : { ...kept, content: text }
        return {
          ...choice,
          message: footer === undefined ? said : withAddedText(said, footer),
          finish_reason: dropCalls ? finishWithoutCalls(reason) : reason,
        }
      }),
    }),
  )
}

/** Returns a reply of Governor's own. `createdAt` is in ms since the epoch; `created` in the reply is in seconds. */
export function replyInChat(
  answer: FinalAnswer,
  streams: boolean,
  id: string,
  createdAt: number,
  statesUsage = false,
): GovernorReply {
  const finish = answer.terminal.truncated ? 'length' : 'stop'
  const base = { id: `chatcmpl-${id}`, created: Math.floor(createdAt / 1000), model: answer.model }
  const usage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }
  if (!streams) {
    const message = { role: 'assistant', content: answer.text, refusal: null }
    const choices = [{ index: 0, message, logprobs: null, finish_reason: finish }]
    return jsonReply({ ...base, object: 'chat.completion', choices, usage, governor: answer.terminal })
  }
  const chunk = (fields: Json) =>
    dataFrame(JSON.stringify({ ...base, object: 'chat.completion.chunk', ...fields }))
  const delta = { role: 'assistant', content: answer.text }
  const end = { index: 0, delta: {}, logprobs: null, finish_reason: finish }
  return streamReply([
    chunk({ choices: [{ index: 0, delta, logprobs: null, finish_reason: null }] }),
    chunk({ choices: [end], governor: answer.terminal }),
    ...(statesUsage ? [chunk({ choices: [], usage })] : []),
    dataFrame(DONE),
  ])
}
