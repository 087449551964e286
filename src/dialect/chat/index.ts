/** OpenAI's Chat Completions, as OpenAI and the many providers with the same API implement it. */

import type { Work } from '../../core/bounds/work.ts'
import type { Role } from '../../core/conversation/conversation.ts'
import { type Json, propertyOf } from '../../core/json-object.ts'
import { decodeInTurns, decodeStringToCompare, decodeToCompare } from '../../json/compare.ts'
import { appendElement, prependElement, removeMembers, setMember } from '../../json/edit.ts'
import { indexList, type ListIndex } from '../../json/list.ts'
import {
  CLOSE_BRACKET,
  firstElement,
  kindAt,
  MemberWalk,
  member,
  members,
  nextElement,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  skipValue,
} from '../../json/scan.ts'
import type { Dialect } from '../dialect.ts'
import { OPENAI_TOOLS, openai } from '../openai/api.ts'
import { dialectMembers } from '../shared/dialect-members.ts'
import {
  type AddText,
  addText,
  attachmentHashes,
  conversationOf,
  fieldOf,
  formatIn,
  type ListedItem,
  type Message,
  type NamedRole,
  noticeIn,
  offersTools,
  type RequestFields,
  requestMembers,
  resultText,
  roleOf,
  SILENT,
  stringAt,
  textsOfParts,
} from '../shared/request.ts'
import { callsOf, chatReplies, listedCalls, messagesAfterBlock } from './reply.ts'
import { chatStream } from './stream.ts'

const ROLES: readonly NamedRole[] = [
  ['tool', 'tool'],
  ['assistant', 'assistant'],
  ['user', 'user'],
  ['function', 'tool'],
]

const LETTER_N = 0x6e

/** The byte offsets of a message and of its fields; 0 if it lacks the field. */
interface ChatItem extends ListedItem {
  readonly content: number
  readonly contentEnd: number
  /** Where the list of its tool calls starts. */
  readonly calls: number
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
  const field = new MemberWalk(json, at, work)
  while (field.next()) {
    const { value } = field
    if (field.is('role')) role = roleOf(json, value, field.skip(), ROLES)
    else if (field.is('content')) {
      content = value
      contentEnd = field.skip()
    } else if (field.is('tool_call_id')) id = value
    else if (field.is('tool_calls')) {
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
        field.end = call + 1
      }
    } else if (field.is('name')) name = value
    else if (field.is('function_call')) hasFunctionCall = json[value] === OPEN_BRACE
  }
  // The deprecated form has a single call.
  const callCount = role !== 'assistant' ? 0 : listed > 0 || !hasFunctionCall ? listed : 1
  const hasId = id > 0 && json[id] !== LETTER_N
  const answers = role !== 'tool' ? 0 : hasId ? id : name
  const resultCount = role === 'tool' ? 1 : 0
  return { start: at, end: field.end, role, callCount, resultCount, content, contentEnd, calls, answers }
}

const FIELDS: RequestFields = {
  ...OPENAI_TOOLS,
  system: [],
  formatIn: (index) => formatIn(index, ['response_format']),
}

/** Decodes a message. Only a tool message has results. */
function* messageOf({ json, items, work }: RequestIndex, at: number): Generator<void, Message> {
  const item = items[at]
  if (!item) return SILENT
  const { role, content: start, contentEnd: end, callCount, calls: list, answers } = item
  let content: unknown
  if (json[start] === QUOTE) content = decodeStringToCompare(json, { start, end }, work)
  else if (json[start] === OPEN_BRACKET) content = yield* decodeInTurns(json, { start, end }, work)
  const texts = textsOfParts(content)
  if (role === 'tool') {
    const result = { callId: stringAt(json, answers), text: resultText(content) }
    return { texts, calls: SILENT.calls, results: [result] }
  }
  if (callCount === 0) return { texts, calls: SILENT.calls }
  const place = list > 0 && { start: list, end: skipValue(json, list) }
  const calls = place ? listedCalls(yield* decodeInTurns(json, place, work)) : []
  return { texts, calls: calls.length > 0 ? calls : callsOf((decodeToCompare(json, item, work) ?? {}) as Json) }
}

const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'parallel_tool_calls', 'functions', 'function_call'])

const read: Dialect['read'] = ({ body, known }) => {
  const index = indexList(body, 'messages', readItem, known)
  if (!index) return undefined
  const { json, object, fields, list, items } = index
  const conversation = conversationOf(index, messageOf, {
    offersTools: offersTools(index, FIELDS),
    pictures(at) {
      const { content: start = 0, contentEnd: end = 0 } = items[at] ?? {}
      return json[start] === OPEN_BRACKET ? attachmentHashes(decodeToCompare(json, { start, end }, index.work)) : []
    },
    resultSizes(at) {
      const { role, start = 0, end = 0, answers = 0 } = items[at] ?? {}
      return role === 'tool' ? [{ callId: stringAt(json, answers), bytes: end - start }] : []
    },
    rawResult(at) {
      const { role, content: start = 0, contentEnd: end, answers = 0 } = items[at] ?? {}
      if (role !== 'tool' || json[start] !== QUOTE) return undefined
      return { callId: stringAt(json, answers), bytes: json.subarray(start, end) }
    },
  })
  const add: AddText = (at, text) => {
    const message = items[at]
    if (!message) return undefined
    const messageFields = members(json, message)
    const content = member(messageFields, 'content')?.value
    return content ? addText(json, content, text) : setMember(message, messageFields, 'content', JSON.stringify(text))
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
    banTools(ban, forced) {
      const edits = ban === 'no_tools' ? removeMembers(fields, TOOL_FIELDS) : []
      // Of several choices, none would be the final answer.
      const count = member(fields, 'n')?.value
      if (count && Number(json.toString('latin1', count.start, count.end)) > 1) edits.push({ ...count, text: '1' })
      const choice = JSON.stringify({ type: 'function', function: { name: forced } })
      if (forced !== undefined) edits.push(setMember(object, fields, 'tool_choice', choice))
      if (ban !== 'choice_none') return edits
      // Providers refuse a tool_choice without tools.
      if (member(fields, 'tools')) edits.push(setMember(object, fields, 'tool_choice', '"none"'))
      if (member(fields, 'functions')) edits.push(setMember(object, fields, 'function_call', '"none"'))
      return edits
    },
    continueAfterBlock: (blockedMessages, onlyStandardFields = false) =>
      blockedMessages
        .flatMap((blockedMessage) => messagesAfterBlock(blockedMessage, onlyStandardFields))
        .map((message) => appendElement(json, list, JSON.stringify(message))),
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, conversation, FIELDS, add),
  }
}

export const chat: Dialect = {
  ...dialectMembers(chatStream),
  ...chatReplies,
  name: 'chat',
  api: openai,
  claims: (segments) => (segments.at(-2) === 'chat' && segments.at(-1) === 'completions' ? 2 : 0),
  read,
}
