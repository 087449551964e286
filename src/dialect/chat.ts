/** OpenAI's Chat Completions, as OpenAI and the many providers that took it over speak it. */
import type { Conversation, Role, ToolCall, ToolResult } from '../core/conversation.ts'
import {
  appendElement,
  appendParagraph,
  type Edit,
  prependElement,
  removeMembers,
  setMember,
} from '../json/edit.ts'
import { decode, elements, kindAt, type Member, member, members, root, type Span } from '../json/scan.ts'
import { readChatAnswer, replyInChat, writeChatAnswer } from './chat-answer.ts'
import { isObject } from './chat-shape.ts'
import { openChatStream } from './chat-stream.ts'
import type { Dialect, DialectRequest, ToolBan } from './dialect.ts'

const ROLES: Readonly<Record<string, Role>> = {
  system: 'system',
  developer: 'system',
  user: 'user',
  assistant: 'assistant',
  tool: 'tool',
  function: 'tool',
}

/** What is read of a message; every field may be missing or of another type, as clients send what they like. */
interface ChatMessage {
  readonly content?: unknown
  readonly name?: unknown
  readonly tool_calls?: unknown
  readonly tool_call_id?: unknown
  readonly function_call?: unknown
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/** The texts of a content: a string, or a list of parts of which those with a text count. */
function textsOf(content: unknown): string[] {
  if (typeof content === 'string') return [content]
  if (!Array.isArray(content)) return []
  return content.flatMap((part: unknown) => {
    if (typeof part === 'string') return [part]
    return isObject(part) && typeof part['text'] === 'string' ? [part['text']] : []
  })
}

function callOf(id: unknown, call: unknown): ToolCall[] {
  if (!isObject(call)) return []
  return [{ id: textOf(id), name: textOf(call['name']), arguments: textOf(call['arguments']) }]
}

function callsOf(message: ChatMessage): ToolCall[] {
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : []
  const modern = calls.flatMap((call: unknown) => {
    if (!isObject(call)) return []
    // Custom tools carry free text where functions carry JSON.
    const custom = call['custom']
    if (isObject(custom)) return callOf(call['id'], { name: custom['name'], arguments: custom['input'] })
    return callOf(call['id'], call['function'])
  })
  return modern.length > 0 ? modern : callOf(message.name, message.function_call)
}

interface Index {
  readonly json: Buffer
  readonly object: Span
  readonly fields: readonly Member[]
  readonly messages: Span
  readonly items: readonly Span[]
}

/** Finds the parts of a body; throws where it is not JSON, `undefined` where it is not a chat request. */
function index(json: Buffer): Index | undefined {
  const object = root(json)
  if (kindAt(json, object) !== 'object') return undefined
  const fields = members(json, object)
  const messages = member(fields, 'messages')?.value
  if (!messages || kindAt(json, messages) !== 'array') return undefined
  const items = elements(json, messages)
  if (items.some((item) => kindAt(json, item) !== 'object')) return undefined
  return { json, object, fields, messages, items }
}

/**
 * Reads the role alone: finding it costs a few bytes where decoding the message costs all of them. A role that is not
 * known is nobody's word: taken for a human's, it would start a run.
 */
function roleAt({ json, items }: Index, at: number): Role {
  const item = items[at]
  const role = item && member(members(json, item), 'role')
  return (role && ROLES[textOf(decode(json, role.value))]) ?? 'system'
}

/** Remembers what `compute` gave for each index. */
function remember<T>(compute: (at: number) => T): (at: number) => T {
  const known = new Map<number, T>()
  return (at) => {
    const before = known.get(at)
    if (before !== undefined) return before
    const value = compute(at)
    known.set(at, value)
    return value
  }
}

function conversationOf(index: Index, field: (name: string) => unknown): Conversation {
  const { json, items } = index
  const message = remember((at): ChatMessage => {
    const item = items[at]
    return item ? (decode(json, item) as ChatMessage) : {}
  })
  const role = remember((at) => roleAt(index, at))
  const texts = (at: number) => textsOf(message(at).content)
  const leading = items.findIndex((_, at) => role(at) !== 'system')
  const results = (at: number): ToolResult[] => {
    if (role(at) !== 'tool') return []
    const { tool_call_id: id, name } = message(at)
    return [{ callId: textOf(id ?? name), text: texts(at).join('\n') }]
  }
  return {
    model: textOf(field('model')),
    streams: field('stream') === true,
    offersTools: ['tools', 'functions'].some((name) => {
      const offered = field(name)
      return Array.isArray(offered) && offered.length > 0
    }),
    systemText: items
      .slice(0, leading === -1 ? items.length : leading)
      .flatMap((_, at) => texts(at))
      .join('\n'),
    length: items.length,
    role,
    texts,
    calls: (at) => (role(at) === 'assistant' ? callsOf(message(at)) : []),
    results,
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
  switch (kindAt(json, content)) {
    case 'string':
      return appendParagraph(content, text)
    case 'array':
      return addTextPart(json, content, text)
    case 'scalar':
      return decode(json, content) === null ? { ...content, text: JSON.stringify(text) } : undefined
    case 'object':
      return undefined
  }
}

function addTextPart(json: Buffer, parts: Span, text: string): Edit {
  const last = elements(json, parts).at(-1)
  const part = last && kindAt(json, last) === 'object' ? members(json, last) : []
  const lastText = member(part, 'text')?.value
  // A part that the provider is told to cache must be the same in the next request, which has no notice in it.
  const isCached = member(part, 'cache_control') !== undefined
  if (lastText && kindAt(json, lastText) === 'string' && !isCached) return appendParagraph(lastText, text)
  return appendElement(json, parts, JSON.stringify({ type: 'text', text }))
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

function read(body: Buffer): DialectRequest | undefined {
  const found = index(body)
  if (!found) return undefined
  const { json, fields, messages, items } = found
  const field = (name: string): unknown => {
    const value = member(fields, name)?.value
    return value && decode(json, value)
  }
  const conversation = conversationOf(found, field)
  return {
    conversation,
    field,
    notice(text, channel) {
      if (items.length === 0) return undefined
      if (channel === 'system' || channel === 'user') {
        return [appendElement(json, messages, messageJson(channel, text))]
      }
      const target = lastInput(found, conversation)
      const edit = target && addParagraph(json, target, text)
      return edit && [edit]
    },
    announce(text) {
      const first = items[0]
      const edit = first && conversation.role(0) === 'system' ? addParagraph(json, first, text) : undefined
      return [edit ?? prependElement(json, messages, messageJson('system', text))]
    },
    banTools: (ban) => banTools(found, ban),
  }
}

export const chat: Dialect = {
  name: 'chat',
  claims: (segments) => segments.at(-2) === 'chat' && segments.at(-1) === 'completions',
  read,
  readAnswer: readChatAnswer,
  writeAnswer: writeChatAnswer,
  openStream: openChatStream,
  reply: replyInChat,
}
