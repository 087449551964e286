/** OpenAI's Chat Completions, as OpenAI and the many providers that took it over speak it. */

import type { Conversation, Role } from '../core/conversation.ts'
import { appendElement, type Edit, prependElement, removeMembers, setMember } from '../json/edit.ts'
import { indexList, type ListIndex } from '../json/list.ts'
import { decode, elements, isKey, member, members, type Span, skipValue, walkObject } from '../json/scan.ts'
import { readChatAnswer, replyInChat, writeChatAnswer } from './chat-answer.ts'
import { type ChatMessage, callsOf } from './chat-calls.ts'
import { chatCallsNothing, chatFacts } from './chat-facts.ts'
import { openChatGate, readChatCalls, roundMessages, withoutChatCalls } from './chat-gate.ts'
import { openChatStream } from './chat-stream.ts'
import type { Dialect, DialectRequest, Recall, ToolBan } from './dialect.ts'
import { addText, fieldReader, holdsItems, type ListedItem, recallItems, remember, roleAt } from './listed.ts'
import { openaiOverflow } from './overflow-error.ts'
import { isObject, textOf } from './shape.ts'

const ROLES: ReadonlyMap<string, Role> = new Map([
  ['system', 'system'],
  ['developer', 'system'],
  ['user', 'user'],
  ['assistant', 'assistant'],
  ['tool', 'tool'],
  ['function', 'tool'],
])

const OPEN_BRACE = 0x7b
const OPEN_BRACKET = 0x5b

/** The texts of a content: a string, or a list of parts of which those with a text count. */
function textsOf(content: unknown): string[] {
  if (typeof content === 'string') return [content]
  if (!Array.isArray(content)) return []
  return content.flatMap((part: unknown) => {
    if (typeof part === 'string') return [part]
    return isObject(part) && typeof part['text'] === 'string' ? [part['text']] : []
  })
}

/** A message by its bytes. */
export interface ChatItem extends ListedItem {
  /** Where the list of its tool calls starts, from the message's own start; 0 where it has none. */
  readonly calls: number
  /** It holds the one call of the old kind. */
  readonly hasFunctionCall: boolean
}

type Index = ListIndex<ChatItem>

/** Reads what a message is, its text and calls unread. */
function readItem(json: Buffer, at: number): ChatItem {
  let role: Role = 'system'
  let calls = 0
  let hasFunctionCall = false
  const end = walkObject(json, at, (keyStart, keyEnd, value) => {
    if (isKey(json, keyStart, keyEnd, 'role')) role = roleAt(json, value, ROLES)
    else if (isKey(json, keyStart, keyEnd, 'tool_calls'))
      calls = json[value] === OPEN_BRACKET ? value - at : 0
    else if (isKey(json, keyStart, keyEnd, 'function_call')) hasFunctionCall = json[value] === OPEN_BRACE
  })
  return { start: at, end, role, calls, hasFunctionCall }
}

/** How many elements has the list that starts `at`? */
function countAt(json: Buffer, at: number): number {
  return elements(json, { start: at, end: skipValue(json, at) }).length
}

function conversationOf(index: Index, field: (name: string) => unknown): Conversation {
  const { json, items, fields } = index
  const message = remember((at): ChatMessage => {
    const item = items[at]
    return item ? (decode(json, item) as ChatMessage) : {}
  })
  const role = (at: number): Role => items[at]?.role ?? 'system'
  const texts = (at: number) => textsOf(message(at).content)
  return {
    model: textOf(field('model')),
    streams: field('stream') === true,
    offersTools: ['tools', 'functions'].some((name) => {
      const offered = member(fields, name)?.value
      return offered !== undefined && holdsItems(json, offered)
    }),
    systemText() {
      const leading = items.findIndex((item) => item.role !== 'system')
      const all = items.slice(0, leading === -1 ? items.length : leading)
      return all.flatMap((_, at) => texts(at)).join('\n')
    },
    length: items.length,
    role,
    texts,
    calls: (at) => (role(at) === 'assistant' ? callsOf(message(at)) : []),
    results(at) {
      if (role(at) !== 'tool') return []
      const { tool_call_id: id, name } = message(at)
      return [{ callId: textOf(id ?? name), text: texts(at).join('\n') }]
    },
    callCount(at) {
      const item = items[at]
      if (item?.role !== 'assistant') return 0
      const listed = item.calls > 0 ? countAt(json, item.start + item.calls) : 0
      return listed > 0 || !item.hasFunctionCall ? listed : 1
    },
    resultCount: (at) => (role(at) === 'tool' ? 1 : 0),
  }
}

function messageJson(role: string, content: string): string {
  return JSON.stringify({ role, content })
}

/** Puts a paragraph at the end of a message; `undefined` where its content has no form that could take one. */
function addParagraph(json: Buffer, message: Span, text: string): Edit | undefined {
  const fields = members(json, message)
  const content = member(fields, 'content')?.value
  if (!content) return setMember(message, fields, 'content', JSON.stringify(text))
  return addText(json, content, text)
}

/** Where a notice goes by default: the newest tool result where the input ends in one, else the last user message. */
function lastInput(index: Index, conversation: Conversation): Span | undefined {
  const { items } = index
  if (conversation.role(items.length - 1) === 'tool') return items.at(-1)
  const user = items.findLastIndex((_, at) => conversation.role(at) === 'user')
  return user === -1 ? undefined : items[user]
}

const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'parallel_tool_calls', 'functions', 'function_call'])

function banTools(index: Index, ban: ToolBan): Edit[] {
  const { object, fields } = index
  if (ban === 'no_tools') return removeMembers(fields, TOOL_FIELDS)
  // Providers refuse a tool_choice without tools.
  const edits: Edit[] = []
  if (member(fields, 'tools')) edits.push(setMember(object, fields, 'tool_choice', '"none"'))
  if (member(fields, 'functions')) edits.push(setMember(object, fields, 'function_call', '"none"'))
  return edits
}

function read(body: Buffer, recall?: Recall): DialectRequest | undefined {
  const list = indexList<ChatItem>(body, { key: 'messages', readItem, recall: recallItems(recall) })
  if (!list) return undefined
  const { json, fields, list: messages, items } = list
  const field = fieldReader(json, fields)
  const conversation = conversationOf(list, field)
  return {
    list,
    conversation,
    field,
    notice(text, channel) {
      if (items.length === 0) return undefined
      if (channel === 'system' || channel === 'user') {
        return [appendElement(json, messages, messageJson(channel, text))]
      }
      const target = lastInput(list, conversation)
      const edit = target && addParagraph(json, target, text)
      return edit && [edit]
    },
    announce(text) {
      const first = items[0]
      const edit = first && conversation.role(0) === 'system' ? addParagraph(json, first, text) : undefined
      return [edit ?? prependElement(json, messages, messageJson('system', text))]
    },
    banTools: (ban) => banTools(list, ban),
    goOn: (rounds, isBare = false) =>
      rounds
        .flatMap((round) => roundMessages(round, isBare))
        .map((message) => appendElement(json, messages, JSON.stringify(message))),
  }
}

export const chat: Dialect = {
  name: 'chat',
  claims: (segments) => segments.at(-2) === 'chat' && segments.at(-1) === 'completions',
  read,
  facts: chatFacts,
  callsNothing: chatCallsNothing,
  readAnswer: readChatAnswer,
  writeAnswer: writeChatAnswer,
  openStream: (dropCalls) => openChatStream(dropCalls),
  readCalls: readChatCalls,
  withoutCalls: withoutChatCalls,
  overflowError: openaiOverflow,
  errorReply: (error) => ({ error }),
  openGate: openChatGate,
  reply: replyInChat,
}
