/** OpenAI's Responses, with the history in the request or stored by the provider. */
import type { Conversation, Role, ToolCall, ToolResult } from '../../core/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import { isObject, type Json, parseObject, textOf } from '../../core/json-object.ts'
import { Work } from '../../core/work.ts'
import { decodeInTurns, decodeToCompare, PIECE } from '../../json/compare.ts'
import {
  addToText,
  appendElement,
  appendParagraph,
  type Edit,
  prependElement,
  removeItems,
  removeMembers,
  setMember,
} from '../../json/edit.ts'
import type { KnownItems, ListIndex } from '../../json/list.ts'
import {
  decode,
  firstKey,
  isKey,
  kindAt,
  member,
  members,
  nextKey,
  root,
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
  addTextPart,
  attachmentHashes,
  fieldOf,
  holdsItems,
  indexRequest,
  type ListedItem,
  lastInput,
  type Memo,
  memoize,
  stringAt,
} from '../shared/request-list.ts'
import { requestMembers, toolLists } from '../shared/request-members.ts'
import { responseFacts, textsUnder } from '../shared/response-facts.ts'
import { firstText } from '../shared/usage-text.ts'
import { continueAfterBlock, injectPendingResults, resultsIn, resultsOfBlocked } from './continue.ts'
import { readResponse, replyInResponses, withoutResponseCalls, writeResponse } from './reply.ts'
import { responsesStream } from './stream.ts'
import { responsesCallsNothing, responsesMetadata } from './usage.ts'
import { callOfItem, isCallReference, kindOfItem, roleOfItem, textOfOutput, textsOfContent } from './wire.ts'

const QUOTE = 0x22
const OPEN_BRACE = 0x7b

/** The byte offsets of an input item, and what it is. Its role is `assistant` if it continues a response. */
interface InputItem extends ListedItem {
  readonly isCall: boolean
  /** It only refers to an item that the provider stores. */
  readonly isReference: boolean
  /** It may stand in the middle of a response, as a compaction does. */
  readonly isAside: boolean
  /** Where the list of tools stands that it offers: clients of "Responses Lite" have no field for them. */
  readonly tools?: Span | undefined
}

type RequestIndex = ListIndex<InputItem>

/** Reads what an item is, without decoding its text and arguments. */
function readItem(json: Buffer, at: number, work: Work): InputItem {
  let type: number | undefined
  let role: number | undefined
  let execution: number | undefined
  let id: number | undefined
  let list: number | undefined
  let key = firstKey(json, at)
  while (json[key] === QUOTE) {
    work.spend(1)
    const keyEnd = skipString(json, key)
    const value = valueAfter(json, keyEnd)
    if (isKey(json, key, keyEnd, 'type')) type = value
    else if (isKey(json, key, keyEnd, 'role')) role = value
    else if (isKey(json, key, keyEnd, 'execution')) execution = value
    else if (isKey(json, key, keyEnd, 'id')) id = value
    else if (isKey(json, key, keyEnd, 'tools')) list = value
    key = nextKey(json, skipValue(json, value))
  }
  const typeName = stringAt(json, type)
  const kind = kindOfItem(typeName, stringAt(json, execution))
  const isReference = typeName === 'item_reference'
  return {
    start: at,
    end: key + 1,
    role: roleOfItem(kind, stringAt(json, role)),
    isCall: kind === 'call' || (isReference && isCallReference(stringAt(json, id))),
    isReference,
    isAside: kind === 'aside',
    tools:
      typeName === 'additional_tools' && list !== undefined ? { start: list, end: skipValue(json, list) } : undefined,
  }
}

/** Indexes a body whose input is a text, as one user message. */
function indexText(json: Buffer): RequestIndex | undefined {
  const object = root(json)
  if (json[object.start] !== OPEN_BRACE) return undefined
  const work = new Work(json.length)
  const fields = members(json, object, work)
  const input = member(fields, 'input')?.value
  if (!input || json[input.start] !== QUOTE) return undefined
  const { start, end } = input
  const item: InputItem = { start, end, role: 'user', isCall: false, isReference: false, isAside: false }
  return { json, work, object, fields, list: input, items: [item] }
}

function itemOf(value: unknown): Json {
  if (typeof value === 'string') return { content: value }
  return isObject(value) ? value : {}
}

/** Returns functions that read items, each decoded when it is read and once. */
function inputOf({ json, items, work }: RequestIndex) {
  let isOpen = false
  /** Whether each item continues the response before it. */
  const isPart = items.map(({ role, isAside }) => {
    const continues = isOpen && (isAside || role === 'assistant')
    isOpen = role === 'assistant' || continues
    return continues
  })
  const itemAt = memoize((at): Json => {
    const span = items[at]
    return itemOf(span && decodeToCompare(json, span, work))
  })
  const roleAt = (at: number): Role => (isPart[at] ? 'part' : (items[at]?.role ?? 'system'))
  /** The indexes of all items of the response that begins `at`; none if none begins there. */
  const partsFrom = (at: number): number[] => {
    if (roleAt(at) !== 'assistant') return []
    const all = [at]
    for (let next = at + 1; isPart[next]; next++) all.push(next)
    return all
  }
  /** The texts of one item only, not of the whole response that it begins. */
  const textsOfItem = (at: number): string[] => {
    const { type, id, content } = itemAt(at)
    // The request contains only the id of what it refers to.
    if (type === 'item_reference') return items[at]?.isCall || /^rs_/.test(textOf(id)) ? [] : [textOf(id)]
    return type === 'reasoning' ? [] : textsOfContent(content)
  }
  return { itemAt, roleAt, partsFrom, textsOfItem }
}

/** Decodes a large item, or one of a response. */
function* prepare({ json, work }: RequestIndex, itemAt: Memo<Json>, at: number, item: Span): Generator<void> {
  itemAt.set(at, itemOf(yield* decodeInTurns(json, item, work)))
}

function conversationOf(index: RequestIndex, field: (name: string) => unknown): Conversation {
  const { json, items, fields, work } = index
  const { itemAt, roleAt, partsFrom, textsOfItem } = inputOf(index)
  const callsFrom = (at: number) => partsFrom(at).filter((part) => items[part]?.isCall)
  const isResult = (at: number) => items[at]?.role === 'tool'
  return {
    work,
    hasParts: true,
    model: textOf(field('model')),
    streams: field('stream') === true,
    // A prompt that the provider stores may have tools.
    offersTools:
      toolLists(index).some((tools) => holdsItems(json, tools)) ||
      (!member(fields, 'tools') && isObject(field('prompt'))),
    isCompaction: items.at(-1)?.isAside === true && itemAt(items.length - 1)['type'] === 'compaction_trigger',
    systemText() {
      const end = items.findIndex(({ role }) => role !== 'system')
      const leading = items.slice(0, end === -1 ? items.length : end).flatMap((_, at) => textsOfItem(at))
      const prompt = field('prompt')
      const fixed = [field('instructions'), isObject(prompt) ? textOf(prompt['id']) : undefined]
      return [...fixed.filter((text) => typeof text === 'string'), ...leading].join('\n')
    },
    length: items.length,
    role: roleAt,
    texts(at) {
      if (isResult(at)) return [textOfOutput(itemAt(at)['output'])]
      if (roleAt(at) === 'part') return []
      return roleAt(at) === 'assistant' ? partsFrom(at).flatMap(textsOfItem) : textsOfItem(at)
    },
    calls: (at) =>
      callsFrom(at).map((part): ToolCall => {
        const call = itemAt(part)
        const id = textOf(call['id'])
        return call['type'] === 'item_reference' ? { id, item: id, name: '', arguments: '' } : callOfItem(call)
      }),
    results(at): ToolResult[] {
      if (!isResult(at)) return []
      const { call_id: call, approval_request_id: approval, id, output, approve } = itemAt(at)
      return [{ callId: textOf(call ?? approval ?? id), text: textOfOutput(output ?? approve) }]
    },
    pictures: (at) => (roleAt(at) === 'user' ? attachmentHashes(itemAt(at)['content']) : []),
    prepare(at) {
      const item = items[at]
      // A response may consist of thousands of small items.
      const isLong = item && (item.role === 'assistant' || item.end - item.start > PIECE)
      return isLong ? prepare(index, itemAt, at, item) : undefined
    },
    forget: itemAt.forget,
    callCount: (at) => callsFrom(at).length,
    resultCount: (at) => (isResult(at) ? 1 : 0),
  }
}

/**
 * True if the provider stores the input and shows it to the model whenever the conversation continues. False if nothing
 * is stored, or if the client sends answers of the model: it keeps the history itself and sends all of it each time.
 */
function isKept({ items }: RequestIndex, field: (name: string) => unknown): boolean {
  if (textOf(field('previous_response_id')) !== '' || (field('conversation') ?? null) !== null) return true
  return field('store') !== false && !items.some(({ role }) => role === 'assistant')
}

const PARAGRAPH_TYPES = new Set(['function_call_output', 'custom_tool_call_output'])

/** Appends a paragraph to an item; `undefined` if the item has no text for the model. */
function addParagraph(json: Buffer, item: Span, text: string): Edit | undefined {
  if (kindAt(json, item) === 'string') return appendParagraph(item, text)
  const fields = members(json, item)
  const type = stringAt(json, member(fields, 'type')?.value.start)
  // Programs of the provider read the outputs of other tools.
  const isMessage = type === '' || type === 'message'
  const key = isMessage ? 'content' : PARAGRAPH_TYPES.has(type) ? 'output' : undefined
  const content = key && member(fields, key)?.value
  if (!content) return undefined
  switch (kindAt(json, content)) {
    case 'string':
      return appendParagraph(content, text)
    case 'array':
      return addTextPart(json, content, 'input_text', text)
    default:
      return undefined
  }
}

/** Appends a message to the input; an input that is a text becomes a list. */
function addMessage({ json, list }: RequestIndex, role: string, content: string): Edit[] {
  const message = JSON.stringify({ role, content })
  if (kindAt(json, list) === 'array') return [appendElement(json, list, message)]
  const text = json.toString('utf8', list.start, list.end)
  return [{ ...list, text: `[{"role":"user","content":${text}},${message}]` }]
}

const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'parallel_tool_calls', 'max_tool_calls'])

/** Turns background mode off: Governor would not see an answer that the client fetches later. */
function withoutBackground({ json, fields }: RequestIndex): Edit[] {
  const background = member(fields, 'background')?.value
  return background && decode(json, background) === true ? [{ ...background, text: 'false' }] : []
}

function banTools(index: RequestIndex, ban: ToolBan): Edit[] {
  const { object, fields, items } = index
  if (ban === 'no_tools') {
    const offers = items.every(({ tools }) => tools) ? [] : removeItems(items, ({ tools }) => tools !== undefined)
    return [...removeMembers(fields, TOOL_FIELDS), ...offers, ...withoutBackground(index)]
  }
  return [setMember(object, fields, 'tool_choice', '"none"'), ...withoutBackground(index)]
}

/** Returns the id of the response or conversation that the request continues without sending it. */
function previousOf(field: (name: string) => unknown): Pick<DialectRequest, 'previous' | 'isConversation'> {
  const response = textOf(field('previous_response_id'))
  if (response !== '') return { previous: response }
  const conversation = field('conversation')
  const id = textOf(isObject(conversation) ? conversation['id'] : conversation)
  return id === '' ? {} : { previous: id, isConversation: true }
}

function noticeIn(index: RequestIndex, text: string, channel: Channel): Edit[] | undefined {
  const { json, items } = index
  if (items.length === 0) return undefined
  if (channel === 'system' || channel === 'user') return addMessage(index, channel, text)
  const target = lastInput(index)
  const edit = target && addParagraph(json, target, text)
  return edit && [edit]
}

function instruct({ json, object, fields }: RequestIndex, text: string): Edit | undefined {
  return addToText(json, object, fields, 'instructions', text)
}

function announceIn(index: RequestIndex, text: string): Edit[] {
  const { json, list, items } = index
  const message = JSON.stringify({ role: 'developer', content: text })
  if (items.some(({ tools }) => tools)) {
    // "Responses Lite" has no instructions: the system text are the messages that begin the input.
    const first = items.find(({ role }) => role !== 'system')
    return [first ? { start: first.start, end: first.start, text: `${message},` } : appendElement(json, list, message)]
  }
  const edit = instruct(index, text)
  if (edit) return [edit]
  return kindAt(json, list) === 'array' ? [prependElement(json, list, message)] : []
}

/**
 * Indexes a body by its input items; `undefined` if its input is neither a list nor a text, nor missing. `known`: what
 * was read of a body that begins with the same bytes.
 * @throws {JsonScanError}
 * @throws {TooMuchToRead}
 */
export function indexInput(body: Buffer, known?: KnownItems): RequestIndex | undefined {
  return indexRequest(body, 'input', readItem, known) ?? indexText(body)
}

function read({ body, known }: RequestInput): DialectRequest | undefined {
  const index = indexInput(body, known)
  if (!index) return undefined
  const field = (name: string): unknown => fieldOf(index, name)
  const { previous, isConversation } = previousOf(field)
  const keepsInput = isKept(index, field)
  const isStored = keepsInput && field('store') !== false
  const hasReferences = index.items.some(({ isReference }) => isReference)
  const first = hasReferences ? index.items.find(({ role }) => role === 'assistant') : undefined
  const firstId = first?.isReference ? member(members(index.json, first), 'id')?.value : undefined
  const conversation = conversationOf(index, field)
  return {
    conversation,
    previous,
    isConversation,
    firstItem: firstId && stringAt(index.json, firstId.start),
    isKept: keepsInput || hasReferences,
    hasOneEnd: isConversation,
    notice(text, channel) {
      if (!keepsInput) return noticeIn(index, text, channel)
      const edit = channel === 'user' ? undefined : instruct(index, text)
      return edit && [edit]
    },
    collapseRepeats: () =>
      collapseRepeats(index, conversation, (at, text) => {
        const item = index.items[at]
        return item && addParagraph(index.json, item, text)
      }),
    announce: (text) => announceIn(index, text),
    banTools: (ban) => banTools(index, ban),
    keepForced(name) {
      const choice = JSON.stringify({ type: 'function', name })
      const forced = name === undefined ? [] : [setMember(index.object, index.fields, 'tool_choice', choice)]
      return [...forced, ...withoutBackground(index)]
    },
    continueAfterBlock: (blockedMessages) =>
      continueAfterBlock(index, blockedMessages, {
        isKept: isStored,
        isConversation: isConversation === true,
      }),
    pendingResults: (blockedMessage, blocked) => (isStored ? resultsOfBlocked(blockedMessage, blocked) : []),
    skippedResults(unique) {
      if (!isStored || previous === undefined) return undefined
      const pendingResults = resultsIn(index)
      const id = `resp_${unique}`
      return isConversation ? { id, pendingResults } : { id, pendingResults, redirectTo: previous }
    },
    injectPendingResults: (pendingResults, redirectTo) => injectPendingResults(index, pendingResults, redirectTo),
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, [['text', 'format']]),
  }
}

/** The dialect of Responses. */
export const responses: Dialect = {
  ...dialectMembers(responsesStream),
  name: 'responses',
  api: openai,
  claims: (segments) => segments.at(-1) === 'responses',
  read,
  responseId: (head) => firstText(head, 'id'),
  metadata: responsesMetadata,
  callsNothing: responsesCallsNothing,
  responseFacts(response) {
    // The end of a response has its status at the top; that of a stream is the type of its last event.
    const { tail, whole, streams } = response
    const status = streams
      ? textsUnder(tail, 'type').findLast((type) => /^response\.(?:completed|incomplete|failed)$/.test(type))
      : textOf(parseObject(whole?.toString('utf8') ?? '')?.['status'])
    return responseFacts(response, 'response', status ? [status.replace('response.', '')] : [])
  },
  readAnswer: readResponse,
  writeAnswer: writeResponse,
  withoutCalls: withoutResponseCalls,
  reply: replyInResponses,
}
