/** Anthropic's Messages, as Anthropic and the providers that took it over speak it. */

import type { Conversation, Role } from '../core/conversation.ts'
import type { Channel } from '../core/verdict.ts'
import { appendElement, type Edit, prependElement, removeMembers, setMember } from '../json/edit.ts'
import { indexList, type ListIndex } from '../json/list.ts'
import { isKey, member, members, type Span, walkObject } from '../json/scan.ts'
import type { Dialect, DialectRequest, Recall, RefusedRound, ToolBan } from './dialect.ts'
import { addText, fieldReader, holdsItems, type ListedItem, recallItems, remember, roleAt } from './listed.ts'
import { readMessage, replyInMessages, writeMessage } from './messages-answer.ts'
import { messagesBound } from './messages-bound.ts'
import {
  type Content,
  callsOf,
  contentAt,
  countOf,
  resultsOf,
  systemTextOf,
  textsOf,
} from './messages-content.ts'
import { messagesCallsNothing, messagesFacts } from './messages-facts.ts'
import { openMessagesGate, withoutMessageCalls } from './messages-gate.ts'
import { readMessageCalls, refusedResults, roundAfter, roundMessages } from './messages-held.ts'
import { openMessagesStream } from './messages-stream.ts'
import { anthropicOverflow } from './overflow-error.ts'
import { isObject, textOf } from './shape.ts'

const ROLES: ReadonlyMap<string, Role> = new Map([
  ['system', 'system'],
  ['user', 'user'],
  ['assistant', 'assistant'],
])

/** A message by its bytes. */
interface MessageItem extends ListedItem {
  /** Where its content starts, from the message's own start; 0 where it has none. */
  readonly content: number
  readonly callCount: number
  readonly resultCount: number
  /** It says something besides: its content is a text, or some block is. */
  readonly hasText: boolean
}

type Index = ListIndex<MessageItem>

/** Reads what a message consists of in one pass, its texts, calls and results undecoded. */
function readItem(json: Buffer, at: number): MessageItem {
  let role = 'system' as Role
  let start = 0
  let content: Content | undefined
  const end = walkObject(json, at, (keyStart, keyEnd, value) => {
    if (isKey(json, keyStart, keyEnd, 'role')) role = roleAt(json, value, ROLES)
    else if (isKey(json, keyStart, keyEnd, 'content')) {
      start = value
      content = contentAt(json, value)
      return content.value?.end
    }
    return undefined
  })
  const count = (type: string) => (content ? countOf(content, type) : 0)
  return {
    start: at,
    end,
    role,
    content: start === 0 ? 0 : start - at,
    callCount: role === 'assistant' ? count('tool_use') : 0,
    resultCount: role === 'user' ? count('tool_result') : 0,
    hasText: content?.blocks.length === 0 || count('text') > 0,
  }
}

/**
 * The response that a request goes on from: in a message thread the provider keeps system text, tools and messages, and
 * takes what is new alone. Source: platform.claude.com/docs/en/build-with-claude/message-threads
 */
function previousIn(field: (name: string) => unknown): string | undefined {
  const thread = field('thread')
  if (!isObject(thread) || thread['type'] !== 'continue') return undefined
  return textOf(thread['previous_message_id']) || undefined
}

interface ReadMessages extends Conversation {
  content(index: number): Content
}

function conversationOf(index: Index, field: (name: string) => unknown): ReadMessages {
  const { json, items, fields } = index
  const content = remember((at): Content => {
    const item = items[at]
    if (!item || item.content === 0) return { json, value: undefined, blocks: [] }
    return contentAt(json, item.start + item.content)
  })
  const role = (at: number): Role => items[at]?.role ?? 'system'
  const tools = member(fields, 'tools')?.value
  return {
    model: textOf(field('model')),
    streams: field('stream') === true,
    // A thread keeps the tools it was begun with.
    offersTools: (tools !== undefined && holdsItems(json, tools)) || previousIn(field) !== undefined,
    systemText: () => systemTextOf(field('system')),
    length: items.length,
    role,
    content,
    texts: (at) => (items[at]?.hasText ? textsOf(content(at)) : []),
    calls: (at) => (items[at]?.callCount ? callsOf(content(at)) : []),
    results: (at) => (items[at]?.resultCount ? resultsOf(content(at)) : []),
    callCount: (at) => items[at]?.callCount ?? 0,
    resultCount: (at) => items[at]?.resultCount ?? 0,
  }
}

function textBlock(text: string): string {
  return JSON.stringify({ type: 'text', text })
}

/** At the end of the last user message; after what tools gave, as a block of its own. */
function noticeInLast({ json, items }: Index, conversation: ReadMessages, text: string): Edit | undefined {
  const at = items.findLastIndex(({ role }) => role === 'user')
  const message = items[at]
  if (!message) return undefined
  const { value } = conversation.content(at)
  if (!value) return setMember(message, members(json, message), 'content', JSON.stringify(text))
  if (conversation.resultCount(at) > 0) return appendElement(json, value, textBlock(text))
  return addText(json, value, text)
}

/**
 * A message of role `system` is known to few models, and those that don't know it refuse the request. User messages in a
 * row are one to the API.
 */
function noticeIn(
  index: Index,
  conversation: ReadMessages,
  text: string,
  channel: Channel,
): Edit[] | undefined {
  const { json, list, items } = index
  if (items.length === 0 || channel === 'system') return undefined
  if (channel === 'user') {
    return [appendElement(json, list, JSON.stringify({ role: 'user', content: text }))]
  }
  const edit = noticeInLast(index, conversation, text)
  return edit && [edit]
}

function announceIn({ json, object, fields }: Index, text: string): Edit[] {
  const system = member(fields, 'system')?.value
  const edit = system && addText(json, system, text)
  return [edit ?? setMember(object, fields, 'system', JSON.stringify(text))]
}

/** Servers of tools make no sense without the tools that name them. */
const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'mcp_servers'])

function chooseNone({ object, fields }: Index): Edit {
  return setMember(object, fields, 'tool_choice', '{"type":"none"}')
}

function banTools(index: Index, ban: ToolBan): Edit[] {
  if (ban === 'no_tools') return removeMembers(index.fields, TOOL_FIELDS)
  // A choice without anything to choose from is refused.
  return member(index.fields, 'tools') ? [chooseNone(index)] : []
}

function goOnIn({ json, list }: Index, rounds: readonly RefusedRound[]): Edit[] {
  return rounds.flatMap(roundMessages).map((message) => appendElement(json, list, message))
}

/** Where the id stands of the response that a request in a thread goes on from. */
function previousMember({ json, fields }: Index): Span | undefined {
  const thread = member(fields, 'thread')?.value
  return thread && member(members(json, thread), 'previous_message_id')?.value
}

/** The provider has what was sent and what the model said: only the newest results are news to it. */
function goOnInThread(index: Index, rounds: readonly RefusedRound[]): Edit[] | undefined {
  const { list } = index
  const last = rounds.at(-1)
  const previous = previousMember(index)
  if (!last || !previous) return undefined
  const { id, messages: results } = roundAfter(last)
  if (id === '') return undefined
  return [
    { ...previous, text: JSON.stringify(id) },
    { ...list, text: results },
  ]
}

/** The last user message holds the results of all calls of the response before it. */
function repayIn(
  index: Index,
  conversation: ReadMessages,
  owed: readonly string[],
  as: string | undefined,
): Edit[] {
  const { json, items, fields, list } = index
  const previous = as === undefined ? undefined : previousMember(index)
  const renamed = previous ? [{ ...previous, text: JSON.stringify(as) }] : []
  if (owed.length === 0) return renamed
  const at = items.findIndex((_, place) => conversation.resultCount(place) > 0)
  const { blocks } = conversation.content(at)
  // Results come first in a message.
  const [first] = blocks
  if (first) return [...renamed, { start: first.start, end: first.start, text: `${owed.join(',')},` }]
  const message = `{"role":"user","content":[${owed.join(',')}]}`
  return [...renamed, ...(member(fields, 'messages') ? [prependElement(json, list, message)] : [])]
}

/** The results in a request that Governor answers alone, for the one that comes after it. */
function unsentIn({ json, items }: Index, conversation: ReadMessages, as: string, unique: string) {
  const owed = items.flatMap((_, at) =>
    conversation
      .content(at)
      .blocks.filter(({ type }) => type === 'tool_result')
      .map(({ start, end }) => json.toString('utf8', start, end)),
  )
  return { id: `msg_${unique}`, owed, as }
}

function read(body: Buffer, recall?: Recall): DialectRequest | undefined {
  const list = indexList<MessageItem>(body, { key: 'messages', readItem, recall: recallItems(recall) })
  if (!list) return undefined
  const field = fieldReader(list.json, list.fields)
  const conversation = conversationOf(list, field)
  const previous = previousIn(field)
  const isKept = isObject(field('thread'))
  return {
    ...(previous === undefined ? {} : { previous }),
    isKept,
    list,
    preface: member(list.fields, 'system')?.value,
    conversation,
    field,
    notice: (text, channel) => noticeIn(list, conversation, text, channel),
    // A thread keeps the system text and the tools it was begun with.
    announce: (text) => (previous === undefined ? announceIn(list, text) : []),
    banTools: (ban) => (previous === undefined ? banTools(list, ban) : [chooseNone(list)]),
    goOn: (rounds) => (previous === undefined ? goOnIn(list, rounds) : goOnInThread(list, rounds)),
    owed: (round, refused) => (isKept ? refusedResults(round, refused) : []),
    unsent: (unique) => (previous === undefined ? undefined : unsentIn(list, conversation, previous, unique)),
    repay: (owed, as) => (previous === undefined ? [] : repayIn(list, conversation, owed, as)),
  }
}

export const messages: Dialect = {
  name: 'messages',
  // `v1/messages/count_tokens` and `v1/messages/batches` make no answer; `threads/ID/messages` is another API.
  claims: (segments) => segments.at(-2) === 'v1' && segments.at(-1) === 'messages',
  read,
  facts: messagesFacts,
  bound: messagesBound,
  callsNothing: messagesCallsNothing,
  readAnswer: readMessage,
  writeAnswer: writeMessage,
  openStream: (dropCalls) => openMessagesStream(dropCalls),
  readCalls: readMessageCalls,
  withoutCalls: withoutMessageCalls,
  overflowError: anthropicOverflow,
  errorReply: (error) => ({ type: 'error', error }),
  openGate: openMessagesGate,
  reply: replyInMessages,
}
