/** Reads recorded conversations: one request body per line, or one message of a conversation per line. */
import { isObject, type Json, parseObject } from '../../core/json-object.ts'
import { chat } from '../../dialect/chat/index.ts'
import { messages as anthropic } from '../../dialect/messages/index.ts'
import { responses } from '../../dialect/responses/index.ts'

/** The most characters of a conversation with one message per line. */
const MAX_HELD = 67_108_864

/** True for a message, and for an item of a call or a result in the Responses API. */
function isMessage(value: Json | undefined): boolean {
  if (!value || Array.isArray(value['messages']) || Array.isArray(value['input'])) return false
  return typeof value['role'] === 'string' || typeof value['type'] === 'string'
}

/** Yields the conversations of a file: its lines, or one list of all messages if the first line is a message. */
export async function* conversationsIn(lines: AsyncIterable<string>) {
  const held: string[] = []
  let first: number | undefined
  let length = 0
  let number = 0
  for await (const text of lines) {
    number++
    if (text.trim() === '') continue
    const mayBeHeld = (first === undefined || held.length > 0) && length <= MAX_HELD
    first ??= number
    if (mayBeHeld && isMessage(parseObject(text))) {
      held.push(text)
      length += text.length
    } else yield { text, number }
  }
  if (first !== undefined && held.length > 0) yield { text: `[${held.join(',')}]`, number: first }
}

/**
 * Reads the text of one conversation as the proxy would: a request body (an object with `messages`, or with `input` for
 * Responses), or a list of messages. `undefined` if it is neither. Throws `SyntaxError` if it is not JSON.
 */
export function readRecording(text: string) {
  const value: unknown = JSON.parse(text)
  const top: Json = Array.isArray(value) ? { messages: value } : isObject(value) ? value : {}
  const { id, messages, input } = top
  const list = Array.isArray(messages) ? messages : input
  if (!Array.isArray(list) || !list.every(isObject)) return undefined
  const isItem = ({ role, type }: Json) => typeof role !== 'string' && typeof type === 'string'
  const isBlock = (part: unknown) => isObject(part) && (part['type'] === 'tool_use' || part['type'] === 'tool_result')
  const hasBlock = ({ content }: Json) => Array.isArray(content) && content.some(isBlock)
  const dialect = list === input || list.some(isItem) ? responses : list.some(hasBlock) ? anthropic : chat
  const key = dialect === responses ? 'input' : 'messages'
  const body = Array.isArray(value) ? `{"${key}":${text}}` : text
  const request = dialect.read({ path: '', body: Buffer.from(body) })
  if (!request) return undefined
  const isNamed = typeof id === 'string' || typeof id === 'number'
  return { id: isNamed ? String(id) : undefined, conversation: request.conversation }
}
