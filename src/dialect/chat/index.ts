/** OpenAI's Chat Completions, as OpenAI and the many providers with the same API implement it. */
import type { Conversation, Role, ToolCall, ToolResult } from '../../core/conversation.ts'
import { type Json, propertyOf } from '../../core/json-object.ts'
import type { Work } from '../../core/work.ts'
import { decodeInTurns, decodeStringToCompare, decodeToCompare, PIECE } from '../../json/compare.ts'
import { appendElement, prependElement, removeMembers, setMember } from '../../json/edit.ts'
import { indexList, type ListIndex } from '../../json/list.ts'
import {
  CLOSE_BRACKET,
  firstElement,
  firstKey,
  isString,
  kindAt,
  member,
  members,
  nextElement,
  nextKey,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  type Span,
  skipString,
  skipValue,
  valueAfter,
} from '../../json/scan.ts'
import type { Dialect, DialectRequest, RequestInput } from '../dialect.ts'
import { openai } from '../openai/api.ts'
import { dialectMembers } from '../shared/dialect-members.ts'
import {
  type AddText,
  addText,
  attachmentHashes,
  fieldOf,
  holdsItems,
  isTrue,
  type ListedItem,
  type Memo,
  memoize,
  type NamedRole,
  noticeIn,
  resultText,
  roleOf,
  stringAt,
  stringIn,
  textsOfParts,
} from '../shared/request-list.ts'
import { requestMembers } from '../shared/request-members.ts'
import { callsOf, chatReplies, listedCalls, messagesAfterBlock } from './reply.ts'
import { chatStream } from './stream.ts'

const ROLES: readonly NamedRole[] = [
  ['tool', 'tool'],
  ['assistant', 'assistant'],
  ['user', 'user'],
  ['system', 'system'],
  ['developer', 'system'],
  ['function', 'tool'],
]

const LETTER_N = 0x6e

/** The byte offsets of a message and of its fields; 0 if it lacks the field. */
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
    if (isString(json, key, keyEnd, 'role')) {
      end = skipValue(json, value)
      role = roleOf(json, value, end, ROLES)
    } else if (isString(json, key, keyEnd, 'content')) {
      end = skipValue(json, value)
      content = value
      contentEnd = end
    } else if (isString(json, key, keyEnd, 'tool_call_id')) id = value
    else if (isString(json, key, keyEnd, 'tool_calls')) {
      calls = 0
      listed = 0
      if (json[value] === OPEN_BRACKET) {
        calls = value
        let call = firstElement(json, value)
        while (json[call] !== CLOSE_BRACKET) {
          listed++
          work.spend(1)
          call = nextElement(json, skipValue(json, call))
        }
        end = call + 1
      }
    } else if (isString(json, key, keyEnd, 'name')) name = value
    else if (isString(json, key, keyEnd, 'function_call')) hasFunctionCall = json[value] === OPEN_BRACE
    key = nextKey(json, end === -1 ? skipValue(json, value) : end)
  }
  const callCount = role !== 'assistant' ? 0 : listed > 0 || !hasFunctionCall ? listed : 1
  const hasId = id > 0 && json[id] !== LETTER_N
  const answers = role !== 'tool' ? 0 : hasId ? id : name
  return { start: at, end: key + 1, role, content, contentEnd, calls, callCount, answers }
}

const NO_CALLS: readonly ToolCall[] = []

/** Returns where the content of a message stands; `undefined` if it does not begin with the byte `first`. */
function contentOf({ json, items }: RequestIndex, at: number, first: number): Span | undefined {
  const item = items[at]
  if (!item || item.content === 0 || json[item.content] !== first) return undefined
  return { start: item.content, end: item.contentEnd }
}

/** Decodes the texts and the calls of a large message. */
function* prepare(
  index: RequestIndex,
  at: number,
  texts: Memo<readonly string[]>,
  calls: Memo<readonly ToolCall[]>,
): Generator<void> {
  const { json, items, work } = index
  const parts = contentOf(index, at, OPEN_BRACKET)
  if (parts) texts.values.set(at, textsOfParts(yield* decodeInTurns(json, parts, work)))
  const start = items[at]?.calls ?? 0
  if (start === 0) return
  calls.values.set(at, listedCalls(yield* decodeInTurns(json, { start, end: skipValue(json, start) }, work)))
}

function conversationOf(index: RequestIndex): Conversation {
  const { json, fields, items, work } = index
  /** The content of a message if it is a list. */
  const partsAt = (at: number): unknown => {
    const list = contentOf(index, at, OPEN_BRACKET)
    return list && decodeToCompare(json, list, work)
  }
  const textsAt = memoize((at): readonly string[] => {
    const text = contentOf(index, at, QUOTE)
    return text ? [decodeStringToCompare(json, text, work)] : textsOfParts(partsAt(at))
  })
  const callsAt = memoize((at): readonly ToolCall[] => {
    const item = items[at]
    if (!item) return NO_CALLS
    const { calls: start } = item
    const end = start > 0 ? skipValue(json, start) : 0
    const listed = end > 0 ? listedCalls(decodeToCompare(json, { start, end }, work)) : NO_CALLS
    return listed.length > 0 ? listed : callsOf((decodeToCompare(json, item, work) ?? {}) as Json)
  })
  /** The id of the call that a message answers; empty if it names none. */
  const callIdAt = (at: number): string => stringAt(json, items[at]?.answers || undefined)
  const callCount = (at: number): number => items[at]?.callCount ?? 0
  return {
    work,
    model: stringIn(json, fields, 'model'),
    streams: isTrue(json, fields, 'stream'),
    offersTools:
      holdsItems(json, member(fields, 'tools')?.value) || holdsItems(json, member(fields, 'functions')?.value),
    length: items.length,
    systemText() {
      const texts: string[] = []
      for (let at = 0; items[at]?.role === 'system'; at++) texts.push(...textsAt(at))
      return texts.join('\n')
    },
    role: (at) => items[at]?.role ?? 'system',
    texts: textsAt,
    pictures: (at) => attachmentHashes(partsAt(at)),
    calls: (at) => (callCount(at) > 0 ? callsAt(at) : NO_CALLS),
    results(at): ToolResult[] {
      if (items[at]?.role !== 'tool') return []
      const parts = partsAt(at)
      return [{ callId: callIdAt(at), text: parts === undefined ? (textsAt(at)[0] ?? '') : resultText(parts) }]
    },
    rawResult(at) {
      const text = items[at]?.role === 'tool' ? contentOf(index, at, QUOTE) : undefined
      return text && { callId: callIdAt(at), bytes: json.subarray(text.start, text.end) }
    },
    prepare(at) {
      const item = items[at]
      return item && item.end - item.start > PIECE ? prepare(index, at, textsAt, callsAt) : undefined
    },
    forget() {
      textsAt.values.clear()
      callsAt.values.clear()
    },
    callCount,
    resultCount: (at) => (items[at]?.role === 'tool' ? 1 : 0),
  }
}

const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'parallel_tool_calls', 'functions', 'function_call'])

function read({ body, known }: RequestInput): DialectRequest | undefined {
  const index = indexList(body, 'messages', readItem, known)
  if (!index) return undefined
  const { json, object, fields, list, items } = index
  const conversation = conversationOf(index)
  const add: AddText = (at, text) => {
    const message = items[at]
    if (!message) return undefined
    const own = members(json, message)
    const content = member(own, 'content')?.value
    return content ? addText(json, content, text) : setMember(message, own, 'content', JSON.stringify(text))
  }
  /** Asks for one choice: of several choices, none would be the final answer. */
  const oneChoice = () => {
    const count = member(fields, 'n')?.value
    return count && Number(json.toString('latin1', count.start, count.end)) > 1 ? [{ ...count, text: '1' }] : []
  }
  return {
    conversation,
    asksForUsage: () => propertyOf(fieldOf(index, 'stream_options'), 'include_usage') === true,
    notice: (text, channel) => noticeIn(index, text, channel, add),
    announce(text) {
      if (kindAt(json, list) !== 'array') return []
      const edit = items[0]?.role === 'system' ? add(0, text) : undefined
      return [edit ?? prependElement(json, list, JSON.stringify({ role: 'system', content: text }))]
    },
    banTools(ban) {
      if (ban === 'no_tools') return [...removeMembers(fields, TOOL_FIELDS), ...oneChoice()]
      const edits = oneChoice()
      // Providers refuse a tool_choice without tools.
      if (member(fields, 'tools')) edits.push(setMember(object, fields, 'tool_choice', '"none"'))
      if (member(fields, 'functions')) edits.push(setMember(object, fields, 'function_call', '"none"'))
      return edits
    },
    keepForced(name) {
      const choice = JSON.stringify({ type: 'function', function: { name } })
      const forced = name === undefined ? [] : [setMember(object, fields, 'tool_choice', choice)]
      return [...oneChoice(), ...forced]
    },
    continueAfterBlock: (blockedMessages, onlyStandardFields = false) =>
      blockedMessages
        .flatMap((blockedMessage) => messagesAfterBlock(blockedMessage, onlyStandardFields))
        .map((message) => appendElement(json, list, JSON.stringify(message))),
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, conversation, [['response_format']], add),
  }
}

/** The dialect of Chat Completions. */
export const chat: Dialect = {
  ...dialectMembers(chatStream),
  ...chatReplies,
  name: 'chat',
  api: openai,
  claims: (segments) => segments.at(-2) === 'chat' && segments.at(-1) === 'completions',
  read,
}
