/** OpenAI's Chat Completions, as OpenAI and the many providers with the same API implement it. */
import type { Conversation, RawResult, Role, ToolCall, ToolResult } from '../../core/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import { type Json, propertyOf } from '../../core/json-object.ts'
import type { Work } from '../../core/work.ts'
import {
  decodeAtToCompare,
  decodeInTurns,
  decodeStringToCompare,
  decodeToCompare,
  PIECE,
} from '../../json/compare.ts'
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
import { openai } from '../openai/api.ts'
import { dialectMembers } from '../shared/dialect-members.ts'
import { collapseRepeats } from '../shared/repeats.ts'
import {
  addText,
  attachmentHashes,
  fieldOf,
  holdsItems,
  indexRequest,
  isNull,
  isTrue,
  type ListedItem,
  lastInput,
  type NamedRole,
  resultText,
  roleOf,
  stringAt,
  textsOfParts,
} from '../shared/request-list.ts'
import { requestMembers } from '../shared/request-members.ts'
import {
  messagesAfterBlock,
  readChatAnswer,
  replyInChat,
  withoutChatCalls,
  writeChatAnswer,
} from './reply.ts'
import { chatStream } from './stream.ts'
import { callsOf, chatCallsNothing, chatMetadata, listedCalls } from './wire.ts'

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

/** The byte offsets of a message. Those of its fields count from the start of the message; 0 if it lacks the field. */
export interface ChatItem extends ListedItem {
  /** Where its content starts, and where it ends. */
  readonly content: number
  readonly contentEnd: number
  /** Where the list of its tool calls starts. */
  readonly calls: number
  /** The number of its calls: those in its list, or the single one in the deprecated form. */
  readonly callCount: number
  /** Where the id of the call starts that it answers; in the deprecated form, the name of the function. */
  readonly answers: number
}

type RequestIndex = ListIndex<ChatItem>

/** Reads the role of a message and where its fields are, without decoding them. */
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

/** The messages of a request, each decoded on demand and once. */
interface Messages {
  readonly json: Buffer
  readonly work: Work
  readonly items: readonly ChatItem[]
  /** Indexed by the distance from the end, as the last messages are read most. */
  readonly texts: (readonly string[])[]
  readonly calls: (readonly ToolCall[])[]
}

/** Decodes a content that is a list; `undefined` if it is anything else. */
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
  const value = texts[place] ?? textsIn(messages, item)
  texts[place] = value
  return value
}

function callsAt({ json, work, items, calls }: Messages, at: number): readonly ToolCall[] {
  const item = items[at]
  if (!item || item.callCount === 0) return NO_CALLS
  const place = items.length - at
  const known = calls[place]
  if (known) return known
  const listed =
    item.calls > 0 ? listedCalls(decodeAtToCompare(json, item.start + item.calls, work)) : NO_CALLS
  const value = listed.length > 0 ? listed : callsOf((decodeToCompare(json, item, work) ?? {}) as Json)
  calls[place] = value
  return value
}

/** Decodes the texts and the calls of a large message. */
function* prepare(messages: Messages, at: number, item: ChatItem): Generator<void> {
  const { json, work, items, texts, calls } = messages
  const place = items.length - at
  const start = item.start + item.content
  if (item.content > 0 && json[start] === OPEN_BRACKET) {
    const end = item.start + item.contentEnd
    texts[place] ??= textsOfParts(yield* decodeInTurns(json, { start, end }, work))
  }
  if (item.calls === 0) return
  const list = { start: item.start + item.calls, end: skipValue(json, item.start + item.calls) }
  calls[place] ??= listedCalls(yield* decodeInTurns(json, list, work))
}

/** Returns the id of the call that a message answers; empty if it names none. */
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
    prepare(at) {
      const item = items[at]
      return item && item.end - item.start > PIECE ? prepare(messages, at, item) : undefined
    },
    forget() {
      messages.texts.length = 0
      messages.calls.length = 0
    },
    callCount: (at) => items[at]?.callCount ?? 0,
    resultCount: (at) => (role(at) === 'tool' ? 1 : 0),
  }
}

function messageJson(role: string, content: string): string {
  return JSON.stringify({ role, content })
}

/** Appends a paragraph to a message; `undefined` if its content is neither text nor a list of parts. */
function addParagraph(json: Buffer, message: Span, text: string): Edit | undefined {
  const fields = members(json, message)
  const content = member(fields, 'content')?.value
  if (!content) return setMember(message, fields, 'content', JSON.stringify(text))
  return addText(json, content, text)
}

const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'parallel_tool_calls', 'functions', 'function_call'])

/** Asks for one choice: of several choices, none would be the final answer. */
function askForOneChoice({ json, fields }: RequestIndex): Edit[] {
  const count = member(fields, 'n')?.value
  const isOne = !count || !(Number(json.toString('latin1', count.start, count.end)) > 1)
  return isOne ? [] : [{ ...count, text: '1' }]
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

function noticeIn(index: RequestIndex, text: string, channel: Channel): Edit[] | undefined {
  const { json, list, items } = index
  if (items.length === 0) return undefined
  if (channel === 'system' || channel === 'user') {
    return [appendElement(json, list, messageJson(channel, text))]
  }
  const target = lastInput(index)
  const edit = target && addParagraph(json, target, text)
  return edit && [edit]
}

function read({ body, known }: RequestInput): DialectRequest | undefined {
  const index = indexRequest(body, 'messages', readItem, known)
  if (!index) return undefined
  const { json, object, fields, list, items } = index
  const conversation = conversationOf(index)
  return {
    conversation,
    asksForUsage: () => propertyOf(fieldOf(index, 'stream_options'), 'include_usage') === true,
    notice: (text, channel) => noticeIn(index, text, channel),
    collapseRepeats: () =>
      collapseRepeats(index, conversation, (at, text) => {
        const item = items[at]
        return item && addParagraph(json, item, text)
      }),
    announce(text) {
      if (kindAt(json, list) !== 'array') return []
      const first = items[0]
      const edit = first?.role === 'system' ? addParagraph(json, first, text) : undefined
      return [edit ?? prependElement(json, list, messageJson('system', text))]
    },
    banTools: (ban) => banTools(index, ban),
    keepForced(name) {
      const choice = JSON.stringify({ type: 'function', function: { name } })
      const forced = name === undefined ? [] : [setMember(object, fields, 'tool_choice', choice)]
      return [...askForOneChoice(index), ...forced]
    },
    continueAfterBlock: (blockedMessages, onlyStandardFields = false) =>
      blockedMessages
        .flatMap((blockedMessage) => messagesAfterBlock(blockedMessage, onlyStandardFields))
        .map((message) => appendElement(json, list, JSON.stringify(message))),
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, [['response_format']]),
  }
}

/** The dialect of Chat Completions. */
export const chat: Dialect = {
  ...dialectMembers(chatStream),
  name: 'chat',
  api: openai,
  claims: (segments) => segments.at(-2) === 'chat' && segments.at(-1) === 'completions',
  read,
  metadata: chatMetadata,
  callsNothing: chatCallsNothing,
  readAnswer: readChatAnswer,
  writeAnswer: writeChatAnswer,
  withoutCalls: withoutChatCalls,
  reply: replyInChat,
}
