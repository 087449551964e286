/** Whole Messages responses that end a run: without tool calls, with the terminal state. */
import { type Json, parseObject, textOf } from '../../core/json-object.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import { withMembers } from '../../json/edit.ts'
import type { AnswerChange, GovernorReply, ReadAnswer } from '../dialect.ts'
import { objectsIn, summedUsage } from '../shared/summed-usage.ts'
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

/** Returns content without calls. `text` replaces the text of the model; its reasoning and the provider's own calls stay. */
function changedContent(content: readonly Json[], text: string | undefined): Json[] {
  const kept = content.filter((block) => !isCall(block))
  if (text === undefined) return kept
  return [...kept.filter(({ type }) => type !== 'text'), ...(text === '' ? [] : [{ type: 'text', text }])]
}

/** Returns content with the footer at the end of its last text: some clients show the last block alone. */
function withFooter(content: readonly Json[], footer: string): Json[] {
  const last = content.findLast(({ type }) => type === 'text')
  if (!last) return [...content, { type: 'text', text: footer }]
  return content.map((block) => (block === last ? { ...block, text: textOf(block['text']) + footer } : block))
}

/** Writes a whole response as the final answer of a run. */
export function writeMessage(body: Buffer, change: AnswerChange): Buffer {
  const answer = parseObject(body.toString('utf8')) ?? {}
  const content = contentOf(answer)
  const { stop_reason: reason } = answer
  const mustDrop = change.dropCalls && (content.some(isCall) || stopWithoutCalls(reason) !== reason)
  const isSame = change.text === undefined && change.footer === undefined
  if (!mustDrop && isSame && change.earlier.length === 0) {
    // Only the terminal state is added: all other bytes stay as the provider sent them.
    return withMembers(body, { governor: JSON.stringify(change.terminal) })
  }
  const said = change.dropCalls ? changedContent(content, change.text) : content
  return Buffer.from(
    JSON.stringify({
      ...answer,
      content: change.footer === undefined ? said : withFooter(said, change.footer),
      stop_reason: change.dropCalls ? stopWithoutCalls(reason) : reason,
      ...summedUsage(objectsIn(change.earlier), answer),
      governor: change.terminal,
    }),
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
  if (!streams) {
    return { contentType: 'application/json', body: Buffer.from(JSON.stringify({ ...message, governor })) }
  }
  return {
    contentType: 'text/event-stream; charset=utf-8',
    body: Buffer.concat([
      event({ type: 'message_start', message: { ...message, content: [], stop_reason: null } }),
      ...(text === '' ? [] : textEvents(0, text)),
      event({
        type: 'message_delta',
        delta: { stop_reason: reason, stop_sequence: null },
        usage: { output_tokens: 0 },
        governor,
      }),
      event({ type: 'message_stop' }),
    ]),
  }
}
