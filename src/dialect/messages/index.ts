/** Anthropic's Messages, as Anthropic and the providers that took it over speak it. */

import type { Conversation, Role, ToolCall, ToolResult } from '../../core/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import type { Work } from '../../core/work.ts'
import { appendElement, type Edit, prependElement, removeMembers, setMember } from '../../json/edit.ts'
import type { ListIndex } from '../../json/list.ts'
import {
  firstKey,
  isKey,
  member,
  members,
  nextKey,
  type Span,
  skipString,
  skipValue,
  valueAfter,
} from '../../json/scan.ts'
import type { BlockedMessage, Dialect, DialectRequest, RequestInput, ToolBan } from '../dialect.ts'
import { isObject } from '../shared/json-object.ts'
import { SHARED_MEMBERS } from '../shared/members.ts'
import { demandsIn, forcedTools, formatIn } from '../shared/output-demands.ts'
import {
  addText,
  fieldOf,
  holdsItems,
  indexRequest,
  isTrue,
  type ListedItem,
  memoize,
  type NamedRole,
  roleOf,
  stringAt,
} from '../shared/request-list.ts'
import { sessionIdAt } from '../shared/session-id.ts'
import { openAnswer, openFilter } from '../shared/stream-engine.ts'
import { dropTools } from '../shared/tools.ts'
import { firstText } from '../shared/usage-text.ts'
import { anthropic } from './api.ts'
import {
  blockedResults,
  continuationOf,
  messagesAfterBlock,
  readMessageCalls,
  withoutMessageCalls,
} from './buffered-calls.ts'
import {
  type Content,
  callsOf,
  contentAt,
  countOf,
  idsRunByProvider,
  isRunByProvider,
  picturesOf,
  resultsOf,
  systemTextOf,
  textsOf,
} from './content.ts'
import { readMessage, replyInMessages, writeMessage } from './reply.ts'
import { messagesStream } from './stream.ts'
import { messagesBoundThinking } from './thinking.ts'
import { messagesCallsNothing, messagesMetadata } from './usage.ts'
import { previousIn } from './wire.ts'

const ROLES: readonly NamedRole[] = [
  ['user', 'user'],
  ['assistant', 'assistant'],
  ['system', 'system'],
]

const QUOTE = 0x22

/** A message by its bytes. */
interface MessageItem extends ListedItem {
  /** Where its content starts, from the message's own start; 0 where it has none. */
  readonly content: number
  readonly callCount: number
  readonly resultCount: number
  /** The provider ran tools itself. */
  readonly hasRun: boolean
  /** It says something besides: its content is a text, or some block is. */
  readonly hasText: boolean
}

type RequestIndex = ListIndex<MessageItem>

/** Reads what a message consists of in one pass, its texts, calls and results undecoded. */
function readItem(json: Buffer, at: number, work: Work): MessageItem {
  let role: Role = 'system'
  let content: Content | undefined
  let key = firstKey(json, at)
  while (json[key] === QUOTE) {
    work.spend(1)
    const keyEnd = skipString(json, key)
    const value = valueAfter(json, keyEnd)
    let end: number
    if (isKey(json, key, keyEnd, 'content')) {
      content = contentAt(json, value, work)
      end = content.value?.end ?? value
    } else {
      end = skipValue(json, value)
      if (isKey(json, key, keyEnd, 'role')) role = roleOf(json, value, end, ROLES)
    }
    key = nextKey(json, end)
  }
  return {
    start: at,
    end: key + 1,
    role,
    content: content?.value ? content.value.start - at : 0,
    callCount: content && role === 'assistant' ? countOf(content, 'tool_use') : 0,
    resultCount: content && role === 'user' ? countOf(content, 'tool_result') : 0,
    hasRun: role === 'assistant' && content?.blocks.some(isRunByProvider) === true,
    hasText: content !== undefined && (content.blocks.length === 0 || countOf(content, 'text') > 0),
  }
}

const NO_CALLS: readonly ToolCall[] = []
const NO_RESULTS: readonly ToolResult[] = []
const NO_TEXTS: readonly string[] = []

/** A conversation that gives the content of a message too. */
interface MessagesConversation extends Conversation {
  content(at: number): Content
}

/** `isThread`: the provider keeps the thread that the request continues. */
function conversationOf(index: RequestIndex, isThread: boolean): MessagesConversation {
  const { json, items, fields, work } = index
  const content = memoize((at): Content => {
    const item = items[at]
    if (!item || item.content === 0) return { json, work, value: undefined, blocks: [] }
    return contentAt(json, item.start + item.content, work)
  })
  const role = (at: number): Role => items[at]?.role ?? 'system'
  const callCount = (at: number): number => items[at]?.callCount ?? 0
  const resultCount = (at: number): number => items[at]?.resultCount ?? 0
  return {
    work,
    model: stringAt(json, member(fields, 'model')?.value.start),
    streams: isTrue(json, member(fields, 'stream')?.value),
    // A thread keeps the tools that it began with.
    offersTools: holdsItems(json, member(fields, 'tools')?.value) || isThread,
    length: items.length,
    systemText: () => systemTextOf(fieldOf(index, 'system')),
    role,
    content,
    texts: (at) => (items[at]?.hasText ? textsOf(content(at)) : NO_TEXTS),
    calls: (at) => (callCount(at) > 0 ? callsOf(content(at)) : NO_CALLS),
    results: (at) => (resultCount(at) > 0 ? resultsOf(content(at)) : NO_RESULTS),
    ranByProvider: (at) => (items[at]?.hasRun ? idsRunByProvider(content(at)) : NO_TEXTS),
    pictures: (at) => (role(at) === 'user' ? picturesOf(content(at)) : NO_TEXTS),
    callCount,
    resultCount,
  }
}

function textBlock(text: string): string {
  return JSON.stringify({ type: 'text', text })
}

/** May the reasoning in the newest answer, or in the answer to this request, be bound to this prompt? */
function bindsReasoning(index: RequestIndex, conversation: MessagesConversation): boolean {
  const thinking = fieldOf(index, 'thinking')
  if (isObject(thinking)) return thinking['type'] !== 'disabled'
  const newest = index.items.findLastIndex(({ role }) => role === 'assistant')
  return newest !== -1 && countOf(conversation.content(newest), 'thinking') > 0
}

/** At the end of the last user message; after what tools gave, as a block of its own. */
function noticeInLast(
  { json, items }: RequestIndex,
  conversation: MessagesConversation,
  text: string,
): Edit | undefined {
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
  index: RequestIndex,
  conversation: MessagesConversation,
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

function announceIn({ json, object, fields }: RequestIndex, text: string): Edit[] {
  const system = member(fields, 'system')?.value
  const edit = system && addText(json, system, text)
  return [edit ?? setMember(object, fields, 'system', JSON.stringify(text))]
}

/** Servers of tools make no sense without the tools that name them. */
const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'mcp_servers'])

function chooseNone({ object, fields }: RequestIndex): Edit {
  return setMember(object, fields, 'tool_choice', '{"type":"none"}')
}

function banTools(index: RequestIndex, ban: ToolBan): Edit[] {
  if (ban === 'no_tools') return removeMembers(index.fields, TOOL_FIELDS)
  // A choice without anything to choose from is refused.
  return member(index.fields, 'tools') ? [chooseNone(index)] : []
}

function continueIn({ json, list }: RequestIndex, blockedMessages: readonly BlockedMessage[]): Edit[] {
  return blockedMessages.flatMap(messagesAfterBlock).map((message) => appendElement(json, list, message))
}

/** Where the id stands of the response that a request in a thread goes on from. */
function previousMember({ json, fields }: RequestIndex): Span | undefined {
  const thread = member(fields, 'thread')?.value
  return thread && member(members(json, thread), 'previous_message_id')?.value
}

/** The provider has what was sent and what the model said: only the newest results are news to it. */
function continueInThread(
  index: RequestIndex,
  blockedMessages: readonly BlockedMessage[],
): Edit[] | undefined {
  const { list } = index
  const last = blockedMessages.at(-1)
  const previous = previousMember(index)
  if (!last || !previous) return undefined
  const { id, messages: results } = continuationOf(last)
  if (id === '') return undefined
  return [
    { ...previous, text: JSON.stringify(id) },
    { ...list, text: results },
  ]
}

/** The last user message holds the results of all calls of the response before it. */
function injectionEdits(
  index: RequestIndex,
  conversation: MessagesConversation,
  pendingResults: readonly string[],
  redirectTo: string | undefined,
): Edit[] {
  const { json, items, fields, list } = index
  const previous = redirectTo === undefined ? undefined : previousMember(index)
  const renamed = previous ? [{ ...previous, text: JSON.stringify(redirectTo) }] : []
  if (pendingResults.length === 0) return renamed
  const at = items.findIndex((_, place) => conversation.resultCount(place) > 0)
  const { blocks } = conversation.content(at)
  // Results come first in a message.
  const [first] = blocks
  if (first)
    return [...renamed, { start: first.start, end: first.start, text: `${pendingResults.join(',')},` }]
  const message = `{"role":"user","content":[${pendingResults.join(',')}]}`
  return [...renamed, ...(member(fields, 'messages') ? [prependElement(json, list, message)] : [])]
}

/** Names the first answer in the input where the provider ran something for it, as it may have paused there. */
function firstItemOf({ items }: RequestIndex, conversation: MessagesConversation): string | undefined {
  const first = items.findIndex(({ role }) => role === 'assistant')
  return first === -1 ? undefined : conversation.ranByProvider?.(first)[0]
}

/** The results in a request that Governor answers alone, for the one that comes after it. */
function skippedResultsIn(
  { json, items }: RequestIndex,
  conversation: MessagesConversation,
  redirectTo: string,
  unique: string,
) {
  const pendingResults = items.flatMap((_, at) =>
    conversation
      .content(at)
      .blocks.filter(({ type }) => type === 'tool_result')
      .map(({ start, end }) => json.toString('utf8', start, end)),
  )
  return { id: `msg_${unique}`, pendingResults, redirectTo }
}

function read({ body }: RequestInput): DialectRequest | undefined {
  const list = indexRequest(body, 'messages', readItem)
  if (!list) return undefined
  const field = (name: string): unknown => fieldOf(list, name)
  const previous = previousIn(field)
  const conversation = conversationOf(list, previous !== undefined)
  const isKept = isObject(field('thread'))
  return {
    previous,
    firstItem: previous === undefined ? firstItemOf(list, conversation) : undefined,
    isKept,
    bindsReasoning: () => bindsReasoning(list, conversation),
    sessionIdAt: (path) => sessionIdAt(field, path, list.work),
    demands: () => demandsIn(list),
    hasFormat: () => formatIn(list) !== undefined,
    forcedTools: () => forcedTools(list),
    dropTools: (drop, instead) => dropTools(list, drop, instead),
    conversation,
    notice: (text, channel) => noticeIn(list, conversation, text, channel),
    // A thread keeps the system text and the tools it was begun with.
    announce: (text) => (previous === undefined ? announceIn(list, text) : []),
    banTools: (ban) => (previous === undefined ? banTools(list, ban) : [chooseNone(list)]),
    keepForced: (name) =>
      name === undefined
        ? []
        : [setMember(list.object, list.fields, 'tool_choice', JSON.stringify({ type: 'tool', name }))],
    continueAfterBlock: (blockedMessages) =>
      previous === undefined ? continueIn(list, blockedMessages) : continueInThread(list, blockedMessages),
    pendingResults: (blockedMessage, blocked) => (isKept ? blockedResults(blockedMessage, blocked) : []),
    skippedResults: (unique) =>
      previous === undefined ? undefined : skippedResultsIn(list, conversation, previous, unique),
    injectPendingResults: (pendingResults, redirectTo) =>
      previous === undefined ? [] : injectionEdits(list, conversation, pendingResults, redirectTo),
  }
}

export const messages: Dialect = {
  ...SHARED_MEMBERS,
  name: 'messages',
  api: anthropic,
  // `v1/messages/count_tokens` and `v1/messages/batches` make no answer; `threads/ID/messages` is another API.
  claims: (segments) => segments.at(-2) === 'v1' && segments.at(-1) === 'messages',
  read,
  responseId: (head) => firstText(head, 'id'),
  metadata: messagesMetadata,
  boundThinking: messagesBoundThinking,
  callsNothing: messagesCallsNothing,
  readAnswer: readMessage,
  writeAnswer: writeMessage,
  openStream: (dropCalls, isJson) => openAnswer(messagesStream, dropCalls, isJson),
  readCalls: readMessageCalls,
  withoutCalls: withoutMessageCalls,
  openFilter: () => openFilter(messagesStream),
  reply: replyInMessages,
}
