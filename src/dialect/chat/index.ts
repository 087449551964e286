/** OpenAI's Chat Completions, as OpenAI and the many providers that took it over speak it. */

import type { Conversation, RawResult, Role, ToolCall, ToolResult } from '../../core/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import type { Work } from '../../core/work.ts'
import { decodeAtToCompare, decodeStringToCompare, decodeToCompare } from '../../json/compare.ts'
import { appendElement, type Edit, prependElement, removeMembers, setMember } from '../../json/edit.ts'
import type { ListIndex } from '../../json/list.ts'
import {
  firstElement,
  firstKey,
  isKey,
  kindAt,
  member,
  members,
  nextElement,
  nextKey,
  type Span,
  skipString,
  skipValue,
  valueAfter,
} from '../../json/scan.ts'
import type { Dialect, DialectRequest, RequestInput, ToolBan } from '../dialect.ts'
import { attachmentHashes, resultText, textsOfParts } from '../shared/content-parts.ts'
import { isObject } from '../shared/json-object.ts'
import { SHARED_MEMBERS } from '../shared/members.ts'
import { openai } from '../shared/openai.ts'
import { demandsIn, forcedTools, formatIn } from '../shared/output-demands.ts'
import {
  addText,
  fieldOf,
  holdsItems,
  indexRequest,
  isNull,
  isTrue,
  type ListedItem,
  type NamedRole,
  roleOf,
  stringAt,
} from '../shared/request-list.ts'
import { sessionIdAt } from '../shared/session-id.ts'
import { openAnswer, openFilter } from '../shared/stream-engine.ts'
import { dropTools } from '../shared/tools.ts'
import { messagesAfterBlock, readChatCalls, withoutChatCalls } from './buffered-calls.ts'
import { type ChatMessage, callsOf, listedCalls } from './calls.ts'
import { readChatAnswer, replyInChat, writeChatAnswer } from './reply.ts'
import { chatStream } from './stream.ts'
import { chatCallsNothing, chatMetadata } from './usage.ts'

const ROLES: readonly NamedRole[] = [
  ['tool', 'tool'],
  ['assistant', 'assistant'],
  ['user', 'user'],
  ['system', 'system'],
  ['developer', 'system'],
  ['function', 'tool'],
]

const QUOTE = 0x22
const OPEN_BRACE = 0x7b
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

/** A message by its bytes. Offsets are from the message's own start; 0 where it has no such thing. */
export interface ChatItem extends ListedItem {
  /** Where its content starts, and where it ends. */
  readonly content: number
  readonly contentEnd: number
  /** Where the list of its tool calls starts. */
  readonly calls: number
  /** How many it makes: those listed, or the one of the old kind. */
  readonly callCount: number
  /** Where the id starts of the call that it answers, or, of the old kind, the name. */
  readonly answers: number
}

type RequestIndex = ListIndex<ChatItem>

/** Reads what a message is, its text and calls unread. */
function readItem(json: Buffer, at: number, work: Work): ChatItem {
  let role: Role = 'system'
  let content = 0
  let contentEnd = 0
  let calls = 0
  let listed = 0
  let hasFunctionCall = false
  let id = 0
  let name = 0
  let key = firstKey(json, at)
  while (json[key] === QUOTE) {
    work.spend(1)
    const keyEnd = skipString(json, key)
    const value = valueAfter(json, keyEnd)
    let end = -1
    if (isKey(json, key, keyEnd, 'role')) {
      end = skipValue(json, value)
      role = roleOf(json, value, end, ROLES)
    } else if (isKey(json, key, keyEnd, 'content')) {
      end = skipValue(json, value)
      content = value - at
      contentEnd = end - at
    } else if (isKey(json, key, keyEnd, 'tool_call_id')) id = value - at
    else if (isKey(json, key, keyEnd, 'tool_calls')) {
      calls = 0
      listed = 0
      if (json[value] === OPEN_BRACKET) {
        calls = value - at
        let call = firstElement(json, value)
        while (json[call] !== CLOSE_BRACKET) {
          listed++
          work.spend(1)
          call = nextElement(json, skipValue(json, call))
        }
        end = call + 1
      }
    } else if (isKey(json, key, keyEnd, 'name')) name = value - at
    else if (isKey(json, key, keyEnd, 'function_call')) hasFunctionCall = json[value] === OPEN_BRACE
    key = nextKey(json, end === -1 ? skipValue(json, value) : end)
  }
  const callCount = role !== 'assistant' ? 0 : listed > 0 || !hasFunctionCall ? listed : 1
  const hasId = id > 0 && !isNull(json, at + id)
  const answers = role !== 'tool' ? 0 : hasId ? id : name
  return { start: at, end: key + 1, role, content, contentEnd, calls, callCount, answers }
}

const NO_CALLS: readonly ToolCall[] = []
const NO_RESULTS: readonly ToolResult[] = []
const NO_TEXTS: readonly string[] = []

/** A request's messages, each decoded on demand and once. */
interface Messages {
  readonly json: Buffer
  readonly work: Work
  readonly items: readonly ChatItem[]
  /** By how far from the end a message is: those at the end are asked for most. */
  readonly texts: (readonly string[])[]
  readonly calls: (readonly ToolCall[])[]
}

/** A content that is a list, decoded; `undefined` where it is anything else. */
function partsIn({ json, work }: Messages, item: ChatItem): unknown {
  const start = item.start + item.content
  if (item.content === 0 || json[start] !== OPEN_BRACKET) return undefined
  return decodeToCompare(json, { start, end: item.start + item.contentEnd }, work)
}

function textsIn(messages: Messages, item: ChatItem): readonly string[] {
  if (item.content === 0) return NO_TEXTS
  const { json, work } = messages
  const start = item.start + item.content
  if (json[start] !== QUOTE) return textsOfParts(partsIn(messages, item))
  return [decodeStringToCompare(json, { start, end: item.start + item.contentEnd }, work)]
}

function textsAt(messages: Messages, at: number): readonly string[] {
  const { items, texts } = messages
  const item = items[at]
  if (!item) return NO_TEXTS
  const place = items.length - at
  const known = texts[place] ?? textsIn(messages, item)
  texts[place] = known
  return known
}

function callsIn({ json, work }: Messages, item: ChatItem): readonly ToolCall[] {
  const listed =
    item.calls > 0 ? listedCalls(decodeAtToCompare(json, item.start + item.calls, work)) : NO_CALLS
  return listed.length > 0 ? listed : callsOf(decodeToCompare(json, item, work) as ChatMessage)
}

function callsAt(messages: Messages, at: number): readonly ToolCall[] {
  const { items, calls } = messages
  const item = items[at]
  if (!item || item.callCount === 0) return NO_CALLS
  const place = items.length - at
  const known = calls[place] ?? callsIn(messages, item)
  calls[place] = known
  return known
}

/** The id of the call that a message answers; empty where it names none. */
function callIdIn({ json }: Messages, item: ChatItem): string {
  return stringAt(json, item.answers === 0 ? undefined : item.start + item.answers)
}

function resultsAt(messages: Messages, at: number): readonly ToolResult[] {
  const item = messages.items[at]
  if (item?.role !== 'tool') return NO_RESULTS
  const parts = partsIn(messages, item)
  const text = parts === undefined ? (textsAt(messages, at)[0] ?? '') : resultText(parts)
  return [{ callId: callIdIn(messages, item), text }]
}

function rawResultAt(messages: Messages, at: number): RawResult | undefined {
  const { json, items } = messages
  const item = items[at]
  if (item?.role !== 'tool' || item.content === 0) return undefined
  const start = item.start + item.content
  if (json[start] !== QUOTE) return undefined
  return { callId: callIdIn(messages, item), bytes: json.subarray(start, item.start + item.contentEnd) }
}

function conversationOf({ json, fields, items, work }: RequestIndex): Conversation {
  const messages: Messages = { json, work, items, texts: [], calls: [] }
  const role = (at: number): Role => items[at]?.role ?? 'system'
  return {
    work,
    model: stringAt(json, member(fields, 'model')?.value.start),
    streams: isTrue(json, member(fields, 'stream')?.value),
    offersTools:
      holdsItems(json, member(fields, 'tools')?.value) ||
      holdsItems(json, member(fields, 'functions')?.value),
    length: items.length,
    systemText() {
      const texts: string[] = []
      for (let at = 0; at < items.length && role(at) === 'system'; at++) texts.push(...textsAt(messages, at))
      return texts.join('\n')
    },
    role,
    texts: (at) => textsAt(messages, at),
    pictures: (at) => {
      const item = items[at]
      return item ? attachmentHashes(partsIn(messages, item)) : NO_TEXTS
    },
    calls: (at) => callsAt(messages, at),
    results: (at) => resultsAt(messages, at),
    rawResult: (at) => rawResultAt(messages, at),
    callCount: (at) => items[at]?.callCount ?? 0,
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

/** Where a notice goes by default: the newest tool result or user message, whichever comes later, near the input's end. */
function lastInput(index: RequestIndex, conversation: Conversation): Span | undefined {
  return index.items.findLast((_, at) => {
    const role = conversation.role(at)
    return role === 'tool' || role === 'user'
  })
}

const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'parallel_tool_calls', 'functions', 'function_call'])

/** A run has one last answer: of several choices side by side nobody could say which it is. */
function askForOneChoice({ json, fields }: RequestIndex): Edit[] {
  const wanted = member(fields, 'n')?.value
  const isOne = !wanted || !(Number(json.toString('latin1', wanted.start, wanted.end)) > 1)
  return isOne ? [] : [{ ...wanted, text: '1' }]
}

function banTools(index: RequestIndex, ban: ToolBan): Edit[] {
  const { object, fields } = index
  if (ban === 'no_tools') return [...removeMembers(fields, TOOL_FIELDS), ...askForOneChoice(index)]
  // Providers refuse a tool_choice without tools.
  const edits = askForOneChoice(index)
  if (member(fields, 'tools')) edits.push(setMember(object, fields, 'tool_choice', '"none"'))
  if (member(fields, 'functions')) edits.push(setMember(object, fields, 'function_call', '"none"'))
  return edits
}

function asksForUsage(index: RequestIndex): boolean {
  const options = fieldOf(index, 'stream_options')
  return isObject(options) && options['include_usage'] === true
}

function noticeIn(
  index: RequestIndex,
  conversation: Conversation,
  text: string,
  channel: Channel,
): Edit[] | undefined {
  const { json, list, items } = index
  if (items.length === 0) return undefined
  if (channel === 'system' || channel === 'user') {
    return [appendElement(json, list, messageJson(channel, text))]
  }
  const target = lastInput(index, conversation)
  const edit = target && addParagraph(json, target, text)
  return edit && [edit]
}

function announceIn({ json, list, items }: RequestIndex, text: string): Edit[] {
  if (kindAt(json, list) !== 'array') return []
  const first = items[0]
  const edit = first?.role === 'system' ? addParagraph(json, first, text) : undefined
  return [edit ?? prependElement(json, list, messageJson('system', text))]
}

function keepForced(index: RequestIndex, name: string | undefined): Edit[] {
  const edits = askForOneChoice(index)
  const choice = JSON.stringify({ type: 'function', function: { name } })
  if (name !== undefined) edits.push(setMember(index.object, index.fields, 'tool_choice', choice))
  return edits
}

function read({ body }: RequestInput): DialectRequest | undefined {
  const index = indexRequest(body, 'messages', readItem)
  if (!index) return undefined
  const conversation = conversationOf(index)
  return {
    sessionIdAt: (path) => sessionIdAt((name) => fieldOf(index, name), path, index.work),
    demands: () => demandsIn(index),
    hasFormat: () => formatIn(index) !== undefined,
    forcedTools: () => forcedTools(index),
    dropTools: (drop, instead) => dropTools(index, drop, instead),
    conversation,
    asksForUsage: () => asksForUsage(index),
    notice: (text, channel) => noticeIn(index, conversation, text, channel),
    announce: (text) => announceIn(index, text),
    banTools: (ban) => banTools(index, ban),
    keepForced: (name) => keepForced(index, name),
    continueAfterBlock: (blockedMessages, onlyStandardFields = false) =>
      blockedMessages
        .flatMap((blockedMessage) => messagesAfterBlock(blockedMessage, onlyStandardFields))
        .map((message) => appendElement(index.json, index.list, JSON.stringify(message))),
  }
}

export const chat: Dialect = {
  ...SHARED_MEMBERS,
  name: 'chat',
  api: openai,
  claims: (segments) => segments.at(-2) === 'chat' && segments.at(-1) === 'completions',
  read,
  metadata: chatMetadata,
  callsNothing: chatCallsNothing,
  readAnswer: readChatAnswer,
  writeAnswer: writeChatAnswer,
  openStream: (dropCalls, isJson) => openAnswer(chatStream, dropCalls, isJson),
  readCalls: readChatCalls,
  withoutCalls: withoutChatCalls,
  openFilter: () => openFilter(chatStream),
  reply: replyInChat,
}
