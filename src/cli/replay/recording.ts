/** Reads recorded conversations: one request body per line, or one message of a conversation per line. */
import type { Conversation } from '../../core/conversation.ts'
import { isObject, type Json, parseObject } from '../../core/json-object.ts'
import { chat } from '../../dialect/chat/index.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { messages as anthropic } from '../../dialect/messages/index.ts'
import { responses } from '../../dialect/responses/index.ts'

export interface Line {
  readonly text: string
  /** 1-based. */
  readonly number: number
}

export interface Recording {
  /** The id in the line; `undefined` if it has none. */
  readonly id: string | undefined
  readonly conversation: Conversation
}

/** The most characters of a conversation with one message per line. */
const MAX_HELD = 67_108_864

/** True for a message, and for an item of a call or a result in the Responses API. */
function isMessage(value: Json | undefined): boolean {
  if (!value || Array.isArray(value['messages']) || Array.isArray(value['input'])) return false
  return typeof value['role'] === 'string' || typeof value['type'] === 'string'
}

/** Yields the conversations of a file: its lines, or one list of all messages if the first line is a message. */
export async function* conversationsIn(lines: AsyncIterable<string>): AsyncGenerator<Line> {
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

/** Returns the API whose items or messages these are. */
function dialectOf(items: readonly Json[]): Dialect {
  if (items.some(({ role, type }) => typeof role !== 'string' && typeof type === 'string')) return responses
  const hasBlocks = items.some(
    ({ content }) =>
      Array.isArray(content) &&
      content.some((part) => isObject(part) && (part['type'] === 'tool_use' || part['type'] === 'tool_result')),
  )
  return hasBlocks ? anthropic : chat
}

/**
 * Reads the text of one conversation as the proxy would: a request body (an object with `messages`, or with `input` for
 * Responses), or a list of messages. `undefined` if it is neither. Throws `SyntaxError` if it is not JSON.
 */
export function readRecording(text: string): Recording | undefined {
  const value: unknown = JSON.parse(text)
  const top: Json = Array.isArray(value) ? { messages: value } : isObject(value) ? value : {}
  const { id, messages, input } = top
  const list = Array.isArray(messages) ? messages : input
  if (!Array.isArray(list) || !list.every(isObject)) return undefined
  const dialect = list === input ? responses : dialectOf(list)
  const key = dialect === responses ? 'input' : 'messages'
  const body = Array.isArray(value) ? `{"${key}":${text}}` : text
  const request = dialect.read({ path: '', body: Buffer.from(body) })
  if (!request) return undefined
  const isNamed = typeof id === 'string' || typeof id === 'number'
  return { id: isNamed ? String(id) : undefined, conversation: request.conversation }
}
