/** Chat Completions responses: read unvalidated, without calls, as input, and Governor's own. */
import type { ToolCall } from '../../core/conversation/conversation.ts'
import { isObject, type Json, objectIn, objectsOf, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { dataFrame } from '../../sse/frames.ts'
import type { BlockedMessage, BufferedCalls, Dialect } from '../dialect.ts'
import { DONE, lacksOutput, tokenUsage } from '../openai/api.ts'
import { hasError } from '../shared/event-types.ts'
import { textsOfParts } from '../shared/request.ts'
import { idsUnder, lastText, responseFacts, textsUnder } from '../shared/response-tail.ts'
import { statedIn } from '../shared/stated-usage.ts'
import { joinedTexts, jsonReply, responsesIn, rewritten, streamReply, withTerminal } from '../shared/whole-response.ts'

/** Returns arguments as text. They are a string of JSON; some servers and clients send the JSON value itself. */
function argumentsOf(args: unknown): string {
  return typeof args === 'object' && args !== null ? JSON.stringify(args) : textOf(args)
}

function callOf(id: unknown, name: unknown, args: unknown): ToolCall {
  return { id: textOf(id), name: textOf(name), arguments: argumentsOf(args) }
}

/** Returns the calls in a decoded list; an empty list if the value is not a list. */
export function listedCalls(list: unknown): readonly ToolCall[] {
  const calls: ToolCall[] = []
  for (const { id, custom, function: called } of objectsOf(list)) {
    // Custom tools carry free text where functions carry JSON.
    if (isObject(custom)) calls.push(callOf(id, custom['name'], custom['input']))
    else if (isObject(called)) calls.push(callOf(id, called['name'], called['arguments']))
  }
  return calls
}

/** Returns the calls of a message: those in its list, or the single one in the deprecated form. */
export function callsOf({ tool_calls: list, function_call: single }: Json): readonly ToolCall[] {
  const listed = listedCalls(list)
  if (listed.length > 0 || !isObject(single)) return listed
  // The deprecated form has no ids: a result names its function.
  return [callOf(single['name'], single['name'], single['arguments'])]
}

/** True if a message or a delta contains a call, or a piece of one: some providers send empty lists. */
export function hasCalls({ tool_calls: list, function_call: single }: Json): boolean {
  return objectsOf(list).length > 0 || isObject(single)
}

function withoutCalls({ tool_calls: _list, function_call: _single, ...rest }: Json): Json {
  return rest
}

export function choicesOf(body: Json): Json[] {
  return objectsOf(body['choices'])
}

function contentText(content: unknown): string {
  return textsOfParts(content).join('')
}

/** Returns the text of a message or a delta: its content, refusal, and transcript of audio. */
export function textOfMessage({ content, refusal, audio }: Json): string {
  return contentText(content) + textOf(refusal) + textOf(propertyOf(audio, 'transcript'))
}

/** Returns a message or a delta with more text at the end of its content. */
export function withAddedText(message: Json, text: string): Json {
  const { content } = message
  if (Array.isArray(content)) return { ...message, content: [...content, { type: 'text', text }] }
  return { ...message, content: typeof content === 'string' ? content + text : text }
}

/** Returns the finish reason that is true once the calls are removed. */
function finishWithoutCalls(reason: unknown): unknown {
  return reason === 'tool_calls' || reason === 'function_call' ? 'stop' : reason
}

const CUT_OFF = /length|max_tokens|content_filter/

/** Returns the finish reason of a last answer without its calls: clients may throw on one that was cut off. */
export function finishOfAnswer(reason: unknown): unknown {
  return CUT_OFF.test(textOf(reason)) ? 'stop' : finishWithoutCalls(reason)
}

/** True if a response or a chunk reports an error: OpenRouter sends `error`, Z.ai the reason `network_error`. */
export function isFailure(body: Json): boolean {
  const hasFailed = ({ error, finish_reason: reason }: Json) => error || textOf(reason).endsWith('error')
  return Boolean(body['error']) || choicesOf(body).some(hasFailed)
}

export function isCutOff(body: Json): boolean {
  return choicesOf(body).some(({ finish_reason: reason }) => CUT_OFF.test(textOf(reason)))
}

/** A list of calls that is not empty. Text of the model can't match, as its quotes are escaped. */
const CALLS = /"(?:tool_calls"\s{0,4}:\s{0,4}\[\s{0,4}\{|function_call"\s{0,4}:\s{0,4}\{)/

export function bufferedCallsOf(message: Json): BufferedCalls {
  return { calls: callsOf(message), text: contentText(message['content']), message }
}

/** The fields that the API specifies for an assistant message. Not all providers accept their others back. */
const STANDARD_FIELDS = ['role', 'content', 'refusal', 'name', 'audio', 'tool_calls', 'function_call']

/** Returns a call for the input, where providers accept only JSON as arguments. */
function asInput(call: unknown): unknown {
  const called = propertyOf(call, 'function')
  if (!isObject(call) || !isObject(called) || argumentsOf(called['arguments']).trim() !== '') return call
  return { ...call, function: { ...called, arguments: '{}' } }
}

/** Returns a blocked assistant message and its results; `onlyStandardFields`: those that the API specifies. */
export function messagesAfterBlock({ buffered, results }: BlockedMessage, onlyStandardFields: boolean): Json[] {
  const fields = Object.entries(objectIn(buffered, 'message'))
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

/** The reason of an end. Text of the model can't match, as its quotes are escaped. */
const REASON = /"finish_reason"\s{0,4}:\s{0,4}"[^"\\]{0,64}"/g

export const chatReplies = {
  // The usage stands at the end of a whole response, and in the last chunk of a stream or, growing, in every one.
  metadata(response) {
    const { usage, bill } = statedIn(response)
    return { usage: tokenUsage(usage), isBegun: lacksOutput(usage), bill }
  },
  callsNothing({ tail }) {
    // Some providers send `stop` beside calls.
    const reason = lastText(tail, 'finish_reason')
    if (reason === undefined || finishWithoutCalls(reason) !== reason) return false
    return !CALLS.test(tail.toString('latin1'))
  },
  marks: {
    call: '"tool_calls"',
    // The id of the response, if it stands behind them, is that of no other answer.
    callIds: (line) => idsUnder(line.slice(line.indexOf('"tool_calls"')), 'id'),
    end(piece) {
      if (hasError(piece)) return 'failed'
      const reasons = piece.match(REASON)
      if (reasons) return reasons.at(-1)?.endsWith('error"') ? 'failed' : 'whole'
      return piece.includes(`data: ${DONE}`) ? 'whole' : undefined
    },
  },
  responseFacts: (response) => responseFacts(response, undefined, textsUnder(response.tail, 'finish_reason')),
  readAnswer(body) {
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
  },
  writeAnswer(body, { terminal, dropCalls, text, footer, earlier }) {
    const all = responsesIn(body, earlier)
    let isChanged = text !== undefined || footer !== undefined || earlier.length > 0
    const choices = choicesOf(all.response).map((choice) => {
      let message = objectIn(choice, 'message')
      let reason = choice['finish_reason']
      if (dropCalls) {
        isChanged ||= hasCalls(message) || finishOfAnswer(reason) !== reason
        message = withoutCalls(message)
        reason = finishOfAnswer(reason)
      }
      if (text !== undefined) message = { ...message, content: text }
      if (footer !== undefined) message = withAddedText(message, footer)
      return { ...choice, message, finish_reason: reason }
    })
    return isChanged ? rewritten(all, { choices, governor: terminal }) : withTerminal(body, terminal)
  },
  withoutCalls(body, blocked, earlier, isJson) {
    const all = responsesIn(body, earlier)
    let said = ''
    for (const one of isJson ? [] : all.before)
      said = joinedTexts(said, contentText(propertyOf(choicesOf(one)[0]?.['message'], 'content')))
    const choices = choicesOf(all.response).map((choice) => {
      const message = { ...objectIn(choice, 'message') }
      const { tool_calls: listed, content } = message
      if (blocked.size > 0 && Array.isArray(listed)) {
        // `blocked` counts only the calls that can be read.
        let place = 0
        message['tool_calls'] = listed.filter((call) => listedCalls([call]).length === 0 || !blocked.has(place++))
      }
      if (said !== '') message['content'] = joinedTexts(said, contentText(content))
      return { ...choice, message }
    })
    return rewritten(all, { choices })
  },
  reply({ text, model, terminal: governor }, streams, id, createdAt, statesUsage) {
    const base = { id: `chatcmpl-${id}`, created: Math.floor(createdAt / 1000), model }
    const usage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }
    const choice = { index: 0, logprobs: null, finish_reason: 'stop' }
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
  },
} as const satisfies Partial<Dialect>
