/** Whole Messages responses that end a run: without tool calls, with the terminal state. */
import { parseObject, textOf } from '../../core/json-object.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import type { AnswerChange, GovernorReply, ReadAnswer } from '../dialect.ts'
import { jsonReply, streamReply, writeAnswer } from '../shared/whole-response.ts'
import { readMessageCalls } from './buffered-calls.ts'
import { event, textEvents } from './events.ts'
import { answerText, contentOf, isCall, isCutOff, stopWithoutCalls } from './wire.ts'

/** Reads a whole response; `undefined` if it is no message. */
export function readMessage(body: Buffer): ReadAnswer | undefined {
  const answer = parseObject(body.toString('utf8'))
  if (!answer || answer['type'] === 'error' || !Array.isArray(answer['content'])) return undefined
  const buffered = readMessageCalls(body)
  return {
    text: answerText(contentOf(answer)),
    calls: buffered?.calls ?? [],
    end: isCutOff(answer['stop_reason']) ? 'truncated' : 'complete',
    buffered,
  }
}

/** Writes a whole response as the final answer of a run. */
export function writeMessage(body: Buffer, change: AnswerChange): Buffer {
  const { dropCalls, text, footer } = change
  return writeAnswer(
    body,
    change,
    (answer) =>
      contentOf(answer).some(isCall) || stopWithoutCalls(answer['stop_reason']) !== answer['stop_reason'],
    (answer) => {
      const { stop_reason: reason } = answer
      let content = contentOf(answer)
      if (dropCalls) content = content.filter((block) => !isCall(block))
      if (dropCalls && text !== undefined) {
        // The reasoning and the provider's own calls stay.
        content = content.filter(({ type }) => type !== 'text')
        if (text !== '') content.push({ type: 'text', text })
      }
      if (footer !== undefined) {
        // Some clients show the last block alone.
        const last = content.findLast(({ type }) => type === 'text')
        if (last) content[content.indexOf(last)] = { ...last, text: textOf(last['text']) + footer }
        else content.push({ type: 'text', text: footer })
      }
      return { content, stop_reason: dropCalls ? stopWithoutCalls(reason) : reason }
    },
  )
}

/** Returns a reply of Governor's own. */
export function replyInMessages(answer: FinalAnswer, streams: boolean, id: string): GovernorReply {
  const { text, model, terminal: governor } = answer
  const reason = governor.truncated ? 'max_tokens' : 'end_turn'
  const message = {
    id: answer.id ?? `msg_${id}`,
    type: 'message',
    role: 'assistant',
    model,
    content: text === '' ? [] : [{ type: 'text', text }],
    stop_reason: reason,
    stop_sequence: null,
    usage: { input_tokens: 0, output_tokens: 0 },
  }
  if (!streams) return jsonReply({ ...message, governor })
  const delta = { stop_reason: reason, stop_sequence: null }
  return streamReply([
    event({ type: 'message_start', message: { ...message, content: [], stop_reason: null } }),
    ...(text === '' ? [] : textEvents(0, text)),
    event({ type: 'message_delta', delta, usage: { output_tokens: 0 }, governor }),
    event({ type: 'message_stop' }),
  ])
}
