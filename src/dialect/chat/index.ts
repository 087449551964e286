/** OpenAI's Chat Completions, as OpenAI and the many providers with the same API implement it. */
import type { Conversation, Role, ToolCall, ToolResult } from '../../core/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import { type Json, propertyOf } from '../../core/json-object.ts'
import type { Work } from '../../core/work.ts'
import { decodeAtToCompare, decodeInTurns, decodeStringToCompare, decodeToCompare, PIECE } from '../../json/compare.ts'
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
  memoize,
  type NamedRole,
  resultText,
  roleOf,
  stringAt,
  textsOfParts,
} from '../shared/request-list.ts'
import { requestMembers } from '../shared/request-members.ts'
import { responseFacts, textsUnder } from '../shared/response-facts.ts'
import { messagesAfterBlock, readChatAnswer, replyInChat, withoutChatCalls, writeChatAnswer } from './reply.ts'
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
interface ChatItem extends ListedItem {
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

/** Returns functions that decode messages, each when it is read and once. */
function messagesOf({ json, work, items }: RequestIndex) {
  /** Where the content of a message stands; `undefined` if it does not begin with the byte `first`. */
  const contentAt = (at: number, first: number): Span | undefined => {
    const item = items[at]
    if (!item || item.content === 0 || json[item.start + item.content] !== first) return undefined
    return { start: item.start + item.content, end: item.start + item.contentEnd }
  }
  /** The content of a message if it is a list. */
  const partsAt = (at: number): unknown => {
    const list = contentAt(at, OPEN_BRACKET)
    return list && decodeToCompare(json, list, work)
  }
  const textsAt = memoize((at): readonly string[] => {
    const text = contentAt(at, QUOTE)
    return text ? [decodeStringToCompare(json, text, work)] : textsOfParts(partsAt(at))
  })
  const callsAt = memoize((at): readonly ToolCall[] => {
    const item = items[at]
    const list = item && item.calls > 0 ? item.start + item.calls : 0
    const listed = list > 0 ? listedCalls(decodeAtToCompare(json, list, work)) : NO_CALLS
    return listed.length > 0 || !item ? listed : callsOf((decodeToCompare(json, item, work) ?? {}) as Json)
  })
  /** The id of the call that a message answers; empty if it names none. */
  const callIdAt = (at: number): string => {
    const item = items[at]
    return stringAt(json, item && item.answers > 0 ? item.start + item.answers : undefined)
  }
  return { contentAt, partsAt, textsAt, callsAt, callIdAt }
}

/** Decodes the texts and the calls of a large message. */
function* prepare(
  { json, work }: RequestIndex,
  { contentAt, textsAt, callsAt }: ReturnType<typeof messagesOf>,
  at: number,
  { start, calls }: ChatItem,
): Generator<void> {
  const parts = contentAt(at, OPEN_BRACKET)
  if (parts) textsAt.set(at, textsOfParts(yield* decodeInTurns(json, parts, work)))
  if (calls === 0) return
  const list = { start: start + calls, end: skipValue(json, start + calls) }
  callsAt.set(at, listedCalls(yield* decodeInTurns(json, list, work)))
}

function conversationOf(index: RequestIndex): Conversation {
  const { json, fields, items, work } = index
  const messages = messagesOf(index)
  const { contentAt, partsAt, textsAt, callsAt, callIdAt } = messages
  const role = (at: number): Role => items[at]?.role ?? 'system'
  const callCount = (at: number): number => items[at]?.callCount ?? 0
  return {
    work,
    model: stringAt(json, member(fields, 'model')?.value.start),
    streams: isTrue(json, member(fields, 'stream')?.value),
    offersTools: ['tools', 'functions'].some((name) => holdsItems(json, member(fields, name)?.value)),
    length: items.length,
    systemText() {
      const end = items.findIndex((item) => item.role !== 'system')
      return items
        .slice(0, end === -1 ? items.length : end)
        .flatMap((_, at) => textsAt(at))
        .join('\n')
    },
    role,
    texts: textsAt,
    pictures: (at) => attachmentHashes(partsAt(at)),
    calls: (at) => (callCount(at) > 0 ? callsAt(at) : NO_CALLS),
    results(at): ToolResult[] {
      if (role(at) !== 'tool') return []
      const parts = partsAt(at)
      return [{ callId: callIdAt(at), text: parts === undefined ? (textsAt(at)[0] ?? '') : resultText(parts) }]
    },
    rawResult(at) {
      const text = role(at) === 'tool' ? contentAt(at, QUOTE) : undefined
      return text && { callId: callIdAt(at), bytes: json.subarray(text.start, text.end) }
    },
    prepare(at) {
      const item = items[at]
      return item && item.end - item.start > PIECE ? prepare(index, messages, at, item) : undefined
    },
    forget() {
      textsAt.forget()
      callsAt.forget()
    },
    callCount,
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
  responseFacts: (response) => responseFacts(response, undefined, textsUnder(response.tail, 'finish_reason')),
  readAnswer: readChatAnswer,
  writeAnswer: writeChatAnswer,
  withoutCalls: withoutChatCalls,
  reply: replyInChat,
}
