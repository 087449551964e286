/** Chat Completions responses as the input shows them, and without some of their calls. */

import type { BlockedMessage, BufferedCalls } from '../dialect.ts'
import { isObject, type Json, objectsIn, parseObject, summedUsage } from '../shared/json-object.ts'
import { argumentsOf, callsOf } from './calls.ts'
import { choicesOf, contentText, withoutCalls } from './wire.ts'

export function bufferedCallsOf(message: Json): BufferedCalls {
  return { calls: callsOf(message), text: contentText(message['content']), message }
}

export function readChatCalls(body: Buffer): BufferedCalls | undefined {
  const answer = parseObject(body.toString('utf8'))
  const choices = answer ? choicesOf(answer) : []
  const message = choices[0]?.['message']
  return choices.length === 1 && isObject(message) ? bufferedCallsOf(message) : undefined
}

/** The texts of responses that the client sees as one. */
function joined(texts: readonly string[]): string {
  return texts.filter((text) => text !== '').join('\n\n')
}

/** What is left of a list of calls, by their place among those that can be read. */
function keptCalls(calls: unknown, blocked: ReadonlySet<number>): unknown[] {
  let place = 0
  const isKept = (call: unknown) => callsOf({ tool_calls: [call] }).length === 0 || !blocked.has(place++)
  return Array.isArray(calls) ? calls.filter(isKept) : []
}

export function withoutChatCalls(
  body: Buffer,
  blocked: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  const [answer = {}, ...before] = objectsIn([body, ...earlier])
  const textBefore = joined(
    before.map((one) => {
      const message = choicesOf(one)[0]?.['message']
      return isObject(message) ? contentText(message['content']) : ''
    }),
  )
  const choices = choicesOf(answer).map((choice) => {
    const message = isObject(choice['message']) ? choice['message'] : {}
    const calls = keptCalls(message['tool_calls'], blocked)
    const content =
      textBefore === '' ? {} : { content: joined([textBefore, contentText(message['content'])]) }
    const kept = calls.length > 0 ? { ...message, tool_calls: calls } : withoutCalls(message)
    return { ...choice, message: { ...(blocked.size > 0 ? kept : message), ...content } }
  })
  return Buffer.from(JSON.stringify({ ...answer, choices, ...summedUsage(before, answer) }))
}

/** A call as providers take it in the input, where its arguments are to be JSON. */
function asInput(call: unknown): unknown {
  if (!isObject(call) || !isObject(call['function'])) return call
  const { arguments: text } = call['function']
  return argumentsOf(text).trim() === ''
    ? { ...call, function: { ...call['function'], arguments: '{}' } }
    : call
}

/** What the API takes in an assistant message; providers say more than that, and not all take it back. */
const STANDARD_FIELDS = new Set([
  'role',
  'content',
  'refusal',
  'name',
  'audio',
  'tool_calls',
  'function_call',
])

/** A message as it is sent back; `isBare`: without what is not the API's own. */
function messageOf({ buffered }: BlockedMessage, onlyStandardFields: boolean): Json {
  const message = isObject(buffered.message) ? buffered.message : {}
  if (!onlyStandardFields) return message
  return Object.fromEntries(Object.entries(message).filter(([key]) => STANDARD_FIELDS.has(key)))
}

/** The messages that stand after a refused round: what the model said, and what became of each call. */
export function messagesAfterBlock(blockedMessage: BlockedMessage, onlyStandardFields: boolean): Json[] {
  const { buffered, results } = blockedMessage
  const message = messageOf(blockedMessage, onlyStandardFields)
  const { tool_calls: listed, ...others } = message
  const calls = Array.isArray(listed) ? listed : []
  const isOldKind = calls.length === 0
  return [
    isOldKind ? others : { ...others, tool_calls: calls.map(asInput) },
    ...buffered.calls.map(({ id, name }, at) =>
      isOldKind
        ? { role: 'function', name, content: results[at] ?? '' }
        : { role: 'tool', tool_call_id: id, content: results[at] ?? '' },
    ),
  ]
}
