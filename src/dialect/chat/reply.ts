/** Whole Chat Completions responses that end a run: without tool calls, with the terminal state. */
import { isObject, type Json, parseObject } from '../../core/json-object.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import { withMembers } from '../../json/edit.ts'
import { dataFrame } from '../../sse/frames.ts'
import type { AnswerChange, GovernorReply, ReadAnswer } from '../dialect.ts'
import { DONE } from '../openai/api.ts'
import { objectsIn, summedUsage } from '../shared/summed-usage.ts'
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

function rewrittenChoice(choice: Json, change: AnswerChange): Json {
  const message = isObject(choice['message']) ? choice['message'] : {}
  const kept = change.dropCalls ? withoutCalls(message) : message
  const said = change.text === undefined ? kept : { ...kept, content: change.text }
  return {
    ...choice,
    message: change.footer === undefined ? said : withAddedText(said, change.footer),
    finish_reason: change.dropCalls ? finishWithoutCalls(choice['finish_reason']) : choice['finish_reason'],
  }
}

/** Writes a whole response as the final answer of a run. */
export function writeChatAnswer(body: Buffer, change: AnswerChange): Buffer {
  const answer = parseObject(body.toString('utf8')) ?? {}
  const choices = choicesOf(answer)
  const mustDrop =
    change.dropCalls &&
    choices.some(
      (choice) =>
        (isObject(choice['message']) && hasCalls(choice['message'])) ||
        finishWithoutCalls(choice['finish_reason']) !== choice['finish_reason'],
    )
  const isSame = change.text === undefined && change.footer === undefined
  if (!mustDrop && isSame && change.earlier.length === 0) {
    // Only the terminal state is added: all other bytes stay as the provider sent them.
    return withMembers(body, { governor: JSON.stringify(change.terminal) })
  }
  return Buffer.from(
    JSON.stringify({
      ...answer,
      choices: choices.map((choice) => rewrittenChoice(choice, change)),
      ...summedUsage(objectsIn(change.earlier), answer),
      governor: change.terminal,
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
    const body = { ...base, object: 'chat.completion', choices, usage, governor: answer.terminal }
    return { contentType: 'application/json', body: Buffer.from(JSON.stringify(body)) }
  }
  const chunk = (fields: Json) =>
    dataFrame(JSON.stringify({ ...base, object: 'chat.completion.chunk', ...fields }))
  const delta = { role: 'assistant', content: answer.text }
  return {
    contentType: 'text/event-stream; charset=utf-8',
    body: Buffer.concat([
      chunk({ choices: [{ index: 0, delta, logprobs: null, finish_reason: null }] }),
      chunk({
        choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: finish }],
        governor: answer.terminal,
      }),
      ...(statesUsage ? [chunk({ choices: [], usage })] : []),
      dataFrame(DONE),
    ]),
  }
}
