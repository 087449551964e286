/** Chat Completions responses in the form that the input takes, and without some of their calls. */
import { isObject, type Json, parseObject, propertyOf } from '../../core/json-object.ts'
import type { BlockedMessage, BufferedCalls } from '../dialect.ts'
import { rewritten } from '../shared/whole-response.ts'
import { argumentsOf, callsOf } from './calls.ts'
import { choicesOf, contentText, withoutCalls } from './wire.ts'

/** Returns the calls of an assistant message. */
export function bufferedCallsOf(message: Json): BufferedCalls {
  return { calls: callsOf(message), text: contentText(message['content']), message }
}

/** Reads the calls of a whole response; `undefined` if it is no chat completion, or has several choices. */
export function readChatCalls(body: Buffer): BufferedCalls | undefined {
  const answer = parseObject(body.toString('utf8'))
  const choices = answer ? choicesOf(answer) : []
  const message = choices[0]?.['message']
  return choices.length === 1 && isObject(message) ? bufferedCallsOf(message) : undefined
}

/** Joins the texts of responses that the client sees as one. */
function joined(texts: readonly string[]): string {
  return texts.filter((text) => text !== '').join('\n\n')
}

/** Writes a whole response without the calls in `blocked`, with text and usage of the `earlier` responses added. */
export function withoutChatCalls(
  body: Buffer,
  blocked: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  return rewritten(body, earlier, (answer, before) => {
    const textBefore = joined(
      before.map((response) => contentText(propertyOf(choicesOf(response)[0]?.['message'], 'content'))),
    )
    const choices = choicesOf(answer).map((choice) => {
      const message = isObject(choice['message']) ? choice['message'] : {}
      const { tool_calls: listed, content } = message
      // `blocked` counts only the calls that can be read.
      let place = 0
      const calls = (Array.isArray(listed) ? listed : []).filter(
        (call) => callsOf({ tool_calls: [call] }).length === 0 || !blocked.has(place++),
      )
      const kept = calls.length > 0 ? { ...message, tool_calls: calls } : withoutCalls(message)
      const said = textBefore === '' ? {} : { content: joined([textBefore, contentText(content)]) }
      return { ...choice, message: { ...(blocked.size > 0 ? kept : message), ...said } }
    })
    return { choices }
  })
}

/** Returns a call for the input, where providers accept only JSON as arguments. */
function asInput(call: unknown): unknown {
  if (!isObject(call) || !isObject(call['function'])) return call
  const { arguments: text } = call['function']
  return argumentsOf(text).trim() === ''
    ? { ...call, function: { ...call['function'], arguments: '{}' } }
    : call
}

/**
 * The fields that the API specifies for an assistant message. Providers add others, which not all of them accept back.
 */
const STANDARD_FIELDS = new Set([
  'role',
  'content',
  'refusal',
  'name',
  'audio',
  'tool_calls',
  'function_call',
])

/**
 * Returns the messages that a blocked message adds to the input: the assistant message, and one result for each call.
 * `onlyStandardFields`: without fields that the API does not specify.
 */
export function messagesAfterBlock(
  { buffered, results }: BlockedMessage,
  onlyStandardFields: boolean,
): Json[] {
  const fields = isObject(buffered.message) ? Object.entries(buffered.message) : []
  const { tool_calls: listed, ...others } = Object.fromEntries(
    onlyStandardFields ? fields.filter(([key]) => STANDARD_FIELDS.has(key)) : fields,
  )
  const calls = Array.isArray(listed) ? listed : []
  const isDeprecatedForm = calls.length === 0
  return [
    isDeprecatedForm ? others : { ...others, tool_calls: calls.map(asInput) },
    ...buffered.calls.map(({ id, name }, at) =>
      isDeprecatedForm
        ? { role: 'function', name, content: results[at] ?? '' }
        : { role: 'tool', tool_call_id: id, content: results[at] ?? '' },
    ),
  ]
}
