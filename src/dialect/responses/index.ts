/** OpenAI's Responses, with the history in the request or stored by the provider. */
import type { Conversation, Role, ToolResult } from '../../core/conversation.ts'
import { isObject, type Json, textOf } from '../../core/json-object.ts'
import type { Work } from '../../core/work.ts'
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
import { indexList, type ListIndex } from '../../json/list.ts'
import {
  decode,
  firstKey,
  isString,
  kindAt,
  member,
  members,
  nextKey,
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
  type ListedItem,
  type Memo,
  memoize,
  noticeIn,
  stringAt,
  stringIn,
} from '../shared/request-list.ts'
import { requestMembers, toolLists } from '../shared/request-members.ts'
import { firstText } from '../shared/response-tail.ts'
import { continueAfterBlock, injectPendingResults, resultsIn, resultsOfBlocked } from './continue.ts'
import { responsesReplies } from './reply.ts'
import { responsesStream } from './stream.ts'
import { responsesCallsNothing, responsesMetadata } from './usage.ts'
import { CALL_ID, callOfItem, kindOfItem, roleOfItem, textOfOutput, textsOfContent } from './wire.ts'

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
    if (isString(json, key, keyEnd, 'type')) type = value
    else if (isString(json, key, keyEnd, 'role')) role = value
    else if (isString(json, key, keyEnd, 'execution')) execution = value
    else if (isString(json, key, keyEnd, 'id')) id = value
    else if (isString(json, key, keyEnd, 'tools')) list = value
    key = nextKey(json, skipValue(json, value))
  }
  const typeName = stringAt(json, type)
  const kind = kindOfItem(typeName, stringAt(json, execution))
  const isReference = typeName === 'item_reference'
  return {
    start: at,
    end: key + 1,
    role: roleOfItem(kind, stringAt(json, role)),
    isCall: kind === 'call' || (isReference && CALL_ID.test(stringAt(json, id))),
    isReference,
    isAside: kind === 'aside',
    tools:
      typeName === 'additional_tools' && list !== undefined ? { start: list, end: skipValue(json, list) } : undefined,
  }
}

/** Returns the item for an input that is a text. */
function readText({ start, end }: Span): InputItem {
  return { start, end, role: 'user', isCall: false, isReference: false, isAside: false }
}

function itemOf(value: unknown): Json {
  if (typeof value === 'string') return { content: value }
  return isObject(value) ? value : {}
}

/** Returns for each item whether it continues the response before it. */
function partsIn(items: readonly InputItem[]): boolean[] {
  let isOpen = false
  return items.map(({ role, isAside }) => {
    const continues = isOpen && (isAside || role === 'assistant')
    isOpen = role === 'assistant' || continues
    return continues
  })
}

/** Returns the texts of one item only, not of the whole response that it begins. */
function textsOfItem({ type, id, content }: Json, isCall: boolean | undefined): string[] {
  // The request contains only the id of what it refers to.
  if (type === 'item_reference') return isCall || /^rs_/.test(textOf(id)) ? [] : [textOf(id)]
  return type === 'reasoning' ? [] : textsOfContent(content)
}

/** Decodes a large item, or one of a response. */
function* prepare({ json, work }: RequestIndex, itemAt: Memo<Json>, at: number, item: Span): Generator<void> {
  itemAt.values.set(at, itemOf(yield* decodeInTurns(json, item, work)))
}

function conversationOf(index: RequestIndex, field: (name: string) => unknown): Conversation {
  const { json, items, fields, work } = index
  const isPart = partsIn(items)
  const itemAt = memoize((at): Json => {
    const span = items[at]
    return itemOf(span && decodeToCompare(json, span, work))
  })
  const roleAt = (at: number): Role => (isPart[at] ? 'part' : (items[at]?.role ?? 'system'))
  const textsAt = (at: number): string[] => textsOfItem(itemAt(at), items[at]?.isCall)
  /** The indexes of all items of the response that begins `at`; none if none begins there. */
  const partsFrom = (at: number): number[] => {
    if (roleAt(at) !== 'assistant') return []
    const all = [at]
    for (let next = at + 1; isPart[next]; next++) all.push(next)
    return all
  }
  const callsFrom = (at: number) => partsFrom(at).filter((part) => items[part]?.isCall)
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
      const prompt = field('prompt')
      const fixed = [field('instructions'), isObject(prompt) ? textOf(prompt['id']) : undefined]
      const texts = fixed.filter((text) => typeof text === 'string')
      for (let at = 0; items[at]?.role === 'system'; at++) texts.push(...textsAt(at))
      return texts.join('\n')
    },
    length: items.length,
    role: roleAt,
    texts(at) {
      const role = roleAt(at)
      if (role === 'tool') return [textOfOutput(itemAt(at)['output'])]
      if (role === 'assistant') return partsFrom(at).flatMap(textsAt)
      return role === 'part' ? [] : textsAt(at)
    },
    calls: (at) => callsFrom(at).map((part) => callOfItem(itemAt(part))),
    results(at): ToolResult[] {
      if (roleAt(at) !== 'tool') return []
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
    forget: () => itemAt.values.clear(),
    callCount: (at) => callsFrom(at).length,
    resultCount: (at) => (roleAt(at) === 'tool' ? 1 : 0),
  }
}

const PARAGRAPH_TYPES = new Set(['function_call_output', 'custom_tool_call_output'])

/** Appends a paragraph to an item; `undefined` if the item has no text for the model. */
function addParagraph(json: Buffer, item: Span, text: string): Edit | undefined {
  if (kindAt(json, item) === 'string') return appendParagraph(item, text)
  const fields = members(json, item)
  const type = stringIn(json, fields, 'type')
  // Programs of the provider read the outputs of other tools.
  const isMessage = type === '' || type === 'message'
  const key = isMessage ? 'content' : PARAGRAPH_TYPES.has(type) ? 'output' : undefined
  const content = key && member(fields, key)?.value
  return content && kindAt(json, content) !== 'scalar' ? addText(json, content, text, 'input_text') : undefined
}

const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'parallel_tool_calls', 'max_tool_calls'])

/** Turns background mode off: Governor would not see an answer that the client fetches later. */
function withoutBackground({ json, fields }: RequestIndex): Edit[] {
  const background = member(fields, 'background')?.value
  return background && decode(json, background) === true ? [{ ...background, text: 'false' }] : []
}

function announceIn({ json, object, fields, list, items }: RequestIndex, text: string): Edit[] {
  const message = JSON.stringify({ role: 'developer', content: text })
  if (items.some(({ tools }) => tools)) {
    // "Responses Lite" has no instructions: the system text are the messages that begin the input.
    const first = items.find(({ role }) => role !== 'system')
    return [first ? { start: first.start, end: first.start, text: `${message},` } : appendElement(json, list, message)]
  }
  const edit = addToText(json, object, fields, 'instructions', text)
  if (edit) return [edit]
  return kindAt(json, list) === 'array' ? [prependElement(json, list, message)] : []
}

/** What a request and its provider keep of the conversation. */
function storageOf({ json, items }: RequestIndex, field: (name: string) => unknown) {
  const response = textOf(field('previous_response_id'))
  const stated = field('conversation') ?? null
  const conversation = response === '' ? textOf(isObject(stated) ? stated['id'] : stated) : ''
  const isStored = field('store') !== false
  const first = items.find(({ role }) => role === 'assistant')
  const hasReferences = items.some(({ isReference }) => isReference)
  return {
    previous: response || conversation || undefined,
    isConversation: conversation === '' ? undefined : true,
    /**
     * The provider stores the input and shows it to the model whenever the conversation continues. False if nothing is
     * stored, or if the client sends answers of the model: it keeps the history itself and sends all of it each time.
     */
    keepsInput: response !== '' || stated !== null || (isStored && !first),
    isStored,
    hasReferences,
    firstItem: first?.isReference ? stringIn(json, members(json, first), 'id') || undefined : undefined,
  }
}

function read({ body, known }: RequestInput): DialectRequest | undefined {
  const index = indexList(body, 'input', readItem, known, readText)
  if (!index) return undefined
  const { json, object, fields, items } = index
  const field = (name: string): unknown => fieldOf(index, name)
  const { previous, isConversation, keepsInput, hasReferences, firstItem, ...storage } = storageOf(index, field)
  const isStored = keepsInput && storage.isStored
  const conversation = conversationOf(index, field)
  const add: AddText = (at, text) => {
    const item = items[at]
    return item && addParagraph(json, item, text)
  }
  return {
    conversation,
    previous,
    isConversation,
    firstItem,
    isKept: keepsInput || hasReferences,
    hasOneEnd: isConversation,
    notice(text, channel) {
      if (!keepsInput) return noticeIn(index, text, channel, add)
      const edit = channel === 'user' ? undefined : addToText(json, object, fields, 'instructions', text)
      return edit && [edit]
    },
    announce: (text) => announceIn(index, text),
    banTools(ban) {
      const background = withoutBackground(index)
      if (ban === 'choice_none') return [setMember(object, fields, 'tool_choice', '"none"'), ...background]
      const offers = new Set(items.filter(({ tools }) => tools))
      const emptied = offers.size === items.length ? [] : removeItems(items, offers)
      return [...removeMembers(fields, TOOL_FIELDS), ...emptied, ...background]
    },
    keepForced(name) {
      const choice = JSON.stringify({ type: 'function', name })
      const forced = name === undefined ? [] : [setMember(object, fields, 'tool_choice', choice)]
      return [...forced, ...withoutBackground(index)]
    },
    continueAfterBlock: (blockedMessages) =>
      continueAfterBlock(index, blockedMessages, isStored, isConversation === true),
    pendingResults: (blockedMessage, blocked) => (isStored ? resultsOfBlocked(blockedMessage, blocked) : []),
    skippedResults(unique) {
      if (!isStored || previous === undefined) return undefined
      const pendingResults = resultsIn(index)
      const id = `resp_${unique}`
      return isConversation ? { id, pendingResults } : { id, pendingResults, redirectTo: previous }
    },
    injectPendingResults: (pendingResults, redirectTo) => injectPendingResults(index, pendingResults, redirectTo),
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, conversation, [['text', 'format']], add),
  }
}

/** The dialect of Responses. */
export const responses: Dialect = {
  ...dialectMembers(responsesStream),
  ...responsesReplies,
  name: 'responses',
  api: openai,
  claims: (segments) => segments.at(-1) === 'responses',
  read,
  responseId: (head) => firstText(head, 'id'),
  metadata: responsesMetadata,
  callsNothing: responsesCallsNothing,
}
