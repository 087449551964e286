/** Reads and edits requests that are an object with a list of messages or items. */

import { TooMuchToRead, type Work } from '../../core/bounds/work.ts'
import type { Conversation, Role, ToolCall, ToolResult } from '../../core/conversation/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import { hashOfBytes, nameOf } from '../../core/hash.ts'
import { isObject, type Json, MAX_LENGTH, objectsOf, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { decodeToCompare, PIECE } from '../../json/compare.ts'
import { appendElement, appendParagraph, type Edit, removeItems } from '../../json/edit.ts'
import type { ListIndex } from '../../json/list.ts'
import {
  CLOSE_BRACKET,
  decode,
  decodeStringIn,
  elements,
  isString,
  kindAt,
  type Member,
  member,
  members,
  OPEN_BRACKET,
  QUOTE,
  type Span,
  skipSpace,
  skipString,
} from '../../json/scan.ts'
import type { DialectRequest, ForcedTools, IndexedItem, IndexedList } from '../dialect.ts'
import { collapseRepeats } from './repeats.ts'

/** What is known of a message before it is decoded. */
export interface MessageForm {
  readonly role: Role
  readonly callCount: number
  readonly resultCount: number
}

/** The byte offsets of one item of the list, and what it holds. */
export interface ListedItem extends IndexedItem, MessageForm {}

const PART: MessageForm = { role: 'part', callCount: 0, resultCount: 0 }

/**
 * Returns what each item is as a message, for an API with responses of several items: the first counts the calls of
 * all.
 * `isAside`: it may stand in the middle of a response.
 */
export function messagesOf(items: readonly (MessageForm & { readonly isAside?: boolean })[]): readonly MessageForm[] {
  let response: { role: Role; callCount: number; resultCount: number } | undefined
  return items.map(({ role, callCount, resultCount, isAside = false }) => {
    const isInResponse = role === 'assistant' || (isAside && response !== undefined)
    if (response && isInResponse) {
      response.callCount += callCount
      return PART
    }
    const message = { role, callCount, resultCount }
    response = isInResponse ? message : undefined
    return message
  })
}

/** The name of a role in a dialect. Lists are searched in order, so frequent roles come first. */
export type NamedRole = readonly [name: string, role: Role]

/** Returns the role that the value between two offsets names. An unknown role is `system`: `user` would start a run. */
export function roleOf(json: Buffer, start: number, end: number, roles: readonly NamedRole[]): Role {
  if (json[start] !== QUOTE) return 'system'
  for (const [name, role] of roles) if (isString(json, start, end, name)) return role
  return 'system'
}

/** Returns the string that starts at `at`; empty if there is no string, or one longer than any name or id. */
export function stringAt(json: Buffer, at: number): string {
  if (json[at] !== QUOTE) return ''
  const end = skipString(json, at)
  return end - at > MAX_LENGTH ? '' : decodeStringIn(json, { start: at, end })
}

/** Returns the string under `key`; empty if there is no string, or one longer than any name or id. */
export function stringIn(json: Buffer, fields: readonly Member[], key: string): string {
  const value = member(fields, key)?.value
  return value ? stringAt(json, value.start) : ''
}

/** Reads a call whose arguments stand under `key`; `none`: what they are if nothing does. */
export function callAt(json: Buffer, span: Span, key: string, none: string, work: Work | undefined): ToolCall {
  const fields = members(json, span, work)
  // The JSON text itself: decoding would lose digits.
  const args = member(fields, key)?.value
  if (args) work?.decode(args.end - args.start)
  const text = args ? json.toString('utf8', args.start, args.end) : none
  return { id: stringIn(json, fields, 'id'), name: stringIn(json, fields, 'name'), arguments: text }
}

/** Decodes a top-level field; `undefined` if it is missing, or larger than any API accepts. */
export function fieldOf({ json, work, fields }: ListIndex<Span>, name: string): unknown {
  const value = member(fields, name)?.value
  try {
    return value && decodeToCompare(json, value, work)
  } catch (error) {
    if (error instanceof TooMuchToRead) return undefined
    throw error
  }
}

export interface Message {
  readonly texts: readonly string[]
  readonly calls: readonly ToolCall[]
  readonly results?: readonly ToolResult[]
}

export const SILENT: Message = { texts: [], calls: [] }
const NO_RESULTS: readonly ToolResult[] = []
const LETTER_T = 0x74

/** Runs a generator to its end without a pause. */
export function drained<T>(steps: Generator<void, T>): T {
  let step = steps.next()
  while (!step.done) step = steps.next()
  return step.value
}

function* prepare(decoded: Map<number, Message>, at: number, steps: Generator<void, Message>): Generator<void> {
  decoded.set(at, yield* steps)
}

/**
 * Returns the conversation of a request, whose messages are decoded once. `decode`: decodes a message, or with -1 the
 * fields with system text; it yields wherever other requests should have their turn. `others`: what only this API has.
 * `messages`: what is known of the message at each item. `contents`: what else to drop with the decoded messages.
 */
export function conversationOf<Item extends ListedItem>(
  index: ListIndex<Item>,
  decode: (index: ListIndex<Item>, at: number, messages: readonly MessageForm[]) => Generator<void, Message>,
  others: Pick<Conversation, 'offersTools'> & Partial<Conversation>,
  messages: readonly MessageForm[] = index.items,
  contents?: Map<number, unknown>,
): Conversation {
  const { json, fields, items, work } = index
  const decoded = new Map<number, Message>()
  const messageAt = (at: number): Message => {
    const known = decoded.get(at)
    if (known) return known
    const message = drained(decode(index, at, messages))
    decoded.set(at, message)
    return message
  }
  const streams = member(fields, 'stream')?.value
  return {
    work,
    model: stringIn(json, fields, 'model'),
    streams: streams !== undefined && json[streams.start] === LETTER_T,
    length: items.length,
    systemText() {
      const texts = [...messageAt(-1).texts]
      for (let at = 0; messages[at]?.role === 'system'; at++) texts.push(...messageAt(at).texts)
      return texts.join('\n')
    },
    role: (at) => messages[at]?.role ?? 'system',
    callCount: (at) => messages[at]?.callCount ?? 0,
    resultCount: (at) => messages[at]?.resultCount ?? 0,
    texts: (at) => messageAt(at).texts,
    calls: (at) => (messages[at]?.callCount ? messageAt(at).calls : SILENT.calls),
    results: (at) => (messages[at]?.resultCount ? messageAt(at).results : undefined) ?? NO_RESULTS,
    prepare(at) {
      const item = items[at]
      if (decoded.has(at) || messages[at]?.role === 'part') return undefined
      // A response in parts may consist of thousands of small items.
      const mayBeLong = others.hasParts && messages[at]?.role === 'assistant'
      if (item && !mayBeLong && item.end - item.start <= PIECE) return undefined
      return prepare(decoded, at, decode(index, at, messages))
    },
    forget() {
      decoded.clear()
      contents?.clear()
    },
    ...others,
  }
}

/** What a tool choice forces; without `names` the model must call any of the offered tools. */
type Forced = Pick<ForcedTools, 'isNamed'> & Partial<ForcedTools>

/** Where the requests of an API state what they demand and offer. */
export interface RequestFields {
  /** Returns where the output format stands that a request demands; `undefined` if it asks for plain text. */
  formatIn(index: ListIndex<Span>): Span | undefined
  /** The fields with system text, apart from messages. */
  readonly system: readonly string[]
  readonly tools: readonly string[]
  readonly choices: readonly string[]
  /** The keys of lists of tools within a tool. */
  readonly nested: readonly string[]
  /** Returns the name of a tool; empty if it has none. */
  nameOf(tool: unknown): string
  /** Returns what a tool choice forces; `undefined` if the model may answer without a call. */
  forcedBy(choice: unknown): Forced | undefined
}

/** Fields of requests in all APIs, by the names that OpenTelemetry has for them. */
const PARAMETERS = {
  max_tokens: ['max_completion_tokens', 'max_output_tokens', 'max_tokens', 'maxOutputTokens'],
  temperature: ['temperature'],
  top_p: ['top_p', 'topP'],
  top_k: ['top_k', 'topK'],
  frequency_penalty: ['frequency_penalty', 'frequencyPenalty'],
  presence_penalty: ['presence_penalty', 'presencePenalty'],
  seed: ['seed'],
  'choice.count': ['n', 'candidateCount', 'candidate_count'],
}

/** Fields whose object holds such fields, in some APIs. */
export const SETTINGS = ['generationConfig', 'generation_config']

function choiceIn(index: IndexedList, api: RequestFields): { place?: Span; forced?: Forced | undefined } {
  for (const name of api.choices) {
    const place = member(index.fields, name)?.value
    const choice = place && (fieldOf(index, name) ?? undefined)
    if (place && choice !== undefined) return { place, forced: api.forcedBy(choice) }
  }
  return {}
}

/** The id of a session of Kimi Code. */
export const KIMI_SESSION = /^session_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

function sessionIdIn(index: IndexedList, path: readonly string[]): string | undefined {
  const value = path.slice(1).reduce<unknown>(propertyOf, fieldOf(index, path[0] ?? ''))
  // An object with an id stands for its id: {"conversation": {"id": "conv_1"}}.
  const id = typeof value === 'string' ? value : propertyOf(value, 'id')
  if (typeof id !== 'string' || id.trim() === '') return undefined
  if (path.at(-1) !== 'user_id') return id.trim()
  // A user has many sessions. Kimi Code names one there, and Claude Code: in a JSON text, or after `_session_` once.
  if (KIMI_SESSION.test(id)) return id
  const session = textOf(parseObject(id, index.work)?.['session_id'])
  return session === '' ? /_session_([0-9a-f-]{36})$/.exec(id)?.[1] : session
}

/** The members of a request that read what it demands and offers. `addText` appends a text to the item at an index. */
export function requestMembers(index: IndexedList, conversation: Conversation, api: RequestFields, addText: AddText) {
  const { json, work } = index
  return {
    index,
    systemFields: api.system,
    sessionIdAt: (path) => sessionIdIn(index, path),
    demands() {
      const format = api.formatIn(index)
      const { place, forced } = choiceIn(index, api)
      const spans = format ? [format] : []
      if (place && forced?.names) spans.push(place)
      // If any tool will do, the lists of tools are what is demanded.
      else if (forced) spans.push(...toolLists(index, api))
      const hashes = spans.map(({ start, end }) => {
        work.hash(end - start)
        return hashOfBytes(json.subarray(start, end))
      })
      return { hashes, hasFormat: format !== undefined }
    },
    forcedTools() {
      const { forced } = choiceIn(index, api)
      if (!forced) return { isNamed: false, names: [] }
      const offered = () => toolLists(index, api).flatMap((list) => readTools(json, list, api).names)
      return { isNamed: forced.isNamed, names: forced.names ?? offered() }
    },
    dropTools(drop, instead) {
      const named = new Set(api.choices.flatMap((field) => namesIn(fieldOf(index, field))))
      const isUnwanted = (name: string) => !named.has(name) && drop(name)
      const left = toolLists(index, api).map((list) => readTools(json, list, api, isUnwanted))
      const edits = left.flatMap((list) => list.edits)
      // Providers refuse an empty list, and a history with calls of unknown tools.
      return edits.length > 0 && left.every(({ isEmptied }) => isEmptied) ? instead : edits
    },
    collapseRepeats: () => collapseRepeats(index, conversation, addText),
    parameters() {
      const stated: Record<string, number> = {}
      const settings = SETTINGS.map((field) => fieldOf(index, field))
      for (const [name, names] of Object.entries(PARAMETERS)) {
        for (const field of names) {
          for (const value of [fieldOf(index, field), ...settings.map((object) => propertyOf(object, field))])
            if (typeof value === 'number') stated[name] ??= value
        }
      }
      return stated
    },
  } as const satisfies Partial<DialectRequest>
}

/**
 * Returns where the first output format stands that is not plain text: a field, or a member of the object in a field.
 * An object that is longer than any name of a format holds a schema, and is not read.
 */
export function formatIn(
  { json, fields }: ListIndex<Span>,
  ...formats: readonly (readonly [outer: string, inner?: string])[]
): Span | undefined {
  for (const [outer, inner] of formats) {
    const object = member(fields, outer)?.value
    if (!object || kindAt(json, object) !== 'object') continue
    if (object.end - object.start > MAX_LENGTH) return object
    const format = inner === undefined ? object : member(members(json, object), inner)?.value
    if (!format || kindAt(json, format) !== 'object') continue
    if (stringIn(json, members(json, format), 'type') !== 'text') return format
  }
  return undefined
}

/**
 * Returns the name of a tool, which one of these objects in it may hold. A provider's built-in tool has only a type.
 */
export function toolName(tool: unknown, ...objects: readonly string[]): string {
  let name = ''
  for (const key of objects) name ||= textOf(propertyOf(propertyOf(tool, key), 'name'))
  return name || textOf(propertyOf(tool, 'name')) || textOf(propertyOf(tool, 'type'))
}

/** How deep a tool choice may nest the names of tools. */
const MAX_DEPTH = 4

/** Returns every name in a tool choice: providers refuse a request that names a tool which it does not offer. */
export function namesIn(choice: unknown, depth = 0): string[] {
  if (depth > MAX_DEPTH || typeof choice !== 'object' || choice === null) return []
  const names = isObject(choice) ? [textOf(choice['name']), textOf(choice['type'])] : []
  if (Array.isArray(choice)) names.push(...choice.map(textOf))
  for (const value of Object.values(choice)) names.push(...namesIn(value, depth + 1))
  return names
}

function toolLists({ json, fields, items }: IndexedList, api: RequestFields): Span[] {
  const lists: Span[] = []
  for (const name of api.tools) {
    const list = member(fields, name)?.value
    if (list && json[list.start] === OPEN_BRACKET) lists.push(list)
  }
  for (const { tools } of items) if (tools && json[tools.start] === OPEN_BRACKET) lists.push(tools)
  return lists
}

export function offersTools(index: IndexedList, api: RequestFields): boolean {
  const { json } = index
  return toolLists(index, api).some(({ start }) => json[skipSpace(json, start + 1)] !== CLOSE_BRACKET)
}

/** A list of tools: their names, and what removing some of them takes and leaves. */
interface ToolList {
  readonly names: string[]
  readonly edits: Edit[]
  readonly isEmptied: boolean
}

/**
 * Reads a list of tools. A tool that holds a list itself is a namespace: names and edits include those in it, and it is
 * removed if nothing is left in it.
 */
function readTools(
  json: Buffer,
  list: Span,
  api: RequestFields,
  isUnwanted?: (name: string) => boolean,
  depth = 0,
): ToolList {
  const tools = depth > MAX_DEPTH ? [] : elements(json, list)
  const removed = new Set<Span>()
  const names: string[] = []
  const edits: Edit[] = []
  for (const tool of tools) {
    const value = decode(json, tool)
    const name = api.nameOf(value)
    const key = api.nested.find((one) => Array.isArray(propertyOf(value, one)))
    const nested = key === undefined ? undefined : member(members(json, tool), key)?.value
    const inner = nested && readTools(json, nested, api, isUnwanted, depth + 1)
    const isSpace = inner !== undefined && inner.names.length > 0
    names.push(...(isSpace ? inner.names : [name]))
    if ((name !== '' && isUnwanted?.(name)) || (isSpace && inner.isEmptied)) removed.add(tool)
    else if (inner) edits.push(...inner.edits)
  }
  edits.push(...removeItems(tools, removed))
  return { names, edits, isEmptied: removed.size === tools.length }
}

/** True if the `caller` of a call is a program of the provider: that program reads the result, and not the model. */
export function isForProgram(caller: unknown): boolean {
  const type = textOf(propertyOf(caller, 'type'))
  return type !== '' && type !== 'direct'
}

/** Appends a text to the item at an index; `undefined` if it can't. */
export type AddText = (at: number, text: string) => Edit | undefined

/**
 * Returns edits for a notice: a message of its own in the `system` or `user` channel, for which an input that is a text
 * becomes a list; otherwise at the end of the newest tool result or user message, whichever is later. `undefined` if
 * that can't hold it. `newMessage`: the form of a message in this API.
 */
export function noticeIn(
  { json, list, items }: ListIndex<ListedItem>,
  text: string,
  channel: Channel,
  addText: AddText,
  newMessage = (role: string, content: string): Json => ({ role, content }),
): Edit[] | undefined {
  if (items.length === 0) return undefined
  if (channel === 'system' || channel === 'user') {
    const message = JSON.stringify(newMessage(channel, text))
    if (kindAt(json, list) === 'array') return [appendElement(json, list, message)]
    const input = json.toString('utf8', list.start, list.end)
    return [{ ...list, text: `[{"role":"user","content":${input}},${message}]` }]
  }
  const newest = items.findLastIndex(({ role }) => role === 'tool' || role === 'user')
  const edit = addText(newest, text)
  return edit && [edit]
}

/**
 * Appends a text to a content that is a string, null, or a list: as a paragraph of its last part if that has a text,
 * else as a new part with the members of `typed`. `undefined` if the content is anything else.
 */
export function addText(json: Buffer, content: Span, text: string, typed: Json = { type: 'text' }): Edit | undefined {
  const kind = kindAt(json, content)
  if (kind === 'string') return appendParagraph(content, text)
  if (kind === 'scalar') return decode(json, content) === null ? { ...content, text: JSON.stringify(text) } : undefined
  if (kind === 'object') return undefined
  const last = elements(json, content).at(-1)
  const part = last && kindAt(json, last) === 'object' ? members(json, last) : []
  const lastText = member(part, 'text')?.value
  // A part that the provider caches must be the same in the next request, which contains no notice.
  const isCached = member(part, 'cache_control') !== undefined
  if (lastText && kindAt(json, lastText) === 'string' && !isCached) return appendParagraph(lastText, text)
  return appendElement(json, content, JSON.stringify({ ...typed, text }))
}

/** Returns the texts of a content: a text, or a list with parts that may have one. */
export function textsOfParts(parts: unknown): string[] {
  if (typeof parts === 'string') return [parts]
  const texts: string[] = []
  if (!Array.isArray(parts)) return texts
  for (const part of parts) {
    if (typeof part === 'string') texts.push(part)
    else if (isObject(part) && typeof part['text'] === 'string') texts.push(part['text'])
  }
  return texts
}

/** Returns a text that is equal for equal attachments. Its letters are not those of ids, which comparisons mask. */
export function attachmentHash({ cache_control: _cacheControl, ...part }: Json): string {
  let letters = ''
  for (const digit of nameOf(JSON.stringify(part))) letters += 'ghijklmnopqrstuv'[Number.parseInt(digit, 16)]
  return `[${textOf(part['type'])} ${letters}]`
}

export function attachmentHashes(parts: unknown): string[] {
  return objectsOf(parts).flatMap((part) => (typeof part['text'] === 'string' ? [] : attachmentHash(part)))
}

/** Returns a decoded tool result as one text, with hashes for its attachments. */
export function resultText(content: unknown): string {
  if (typeof content === 'string') return content
  return [...textsOfParts(content), ...attachmentHashes(content)].join('\n')
}

const LOST = JSON.stringify('(This result is not available any more.)')

/** Characters of the results of one request that are kept for the next one. */
const MAX_KEPT_RESULTS = 65_536

/**
 * Returns results as JSON texts that are kept until the next request. If they are too long for that, a text that says
 * so takes the place of each value under `key` that has one of the `kinds`.
 */
export function resultsToKeep(
  json: Buffer,
  results: readonly Span[],
  key: string,
  kinds: readonly ReturnType<typeof kindAt>[],
): readonly string[] {
  let length = 0
  for (const { start, end } of results) length += end - start
  return results.map((result) => {
    const { start, end } = result
    const value = length > MAX_KEPT_RESULTS ? member(members(json, result), key)?.value : undefined
    if (!value || !kinds.includes(kindAt(json, value))) return json.toString('utf8', start, end)
    return json.toString('utf8', start, value.start) + LOST + json.toString('utf8', value.end, end)
  })
}
