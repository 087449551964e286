/** OpenAI's Responses, with the history in the request or stored by the provider. */

import type { Work } from '../../core/bounds/work.ts'
import type { ResultSize, ToolCall } from '../../core/conversation/conversation.ts'
import { isObject, type Json, propertyOf, textOf } from '../../core/json-object.ts'
import { decodeInTurns, decodeToCompare } from '../../json/compare.ts'
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
import { decode, kindAt, MemberWalk, member, members, type Span, skipValue } from '../../json/scan.ts'
import { type Dialect, STEERED, type StoredHistory, type ToolBan } from '../dialect.ts'
import { OPENAI_TOOLS, openai } from '../openai/api.ts'
import { dialectMembers } from '../shared/dialect-members.ts'
import {
  type AddText,
  addText,
  attachmentHashes,
  conversationOf,
  fieldOf,
  formatIn,
  isForProgram,
  type ListedItem,
  type Message,
  type MessageForm,
  messagesOf,
  noticeIn,
  offersTools,
  type RequestFields,
  requestMembers,
  resultsToKeep,
  SILENT,
  stringAt,
  stringIn,
} from '../shared/request.ts'
import { firstText } from '../shared/response-tail.ts'
import { continueAfterBlock, injectPendingResults, NAMING, resultsLeft, resultsOfBlocked } from './continue.ts'
import { responsesReplies } from './reply.ts'
import { CREATE, responsesSocket } from './socket.ts'
import { responsesStream } from './stream.ts'
import {
  broughtBy,
  CALL_ID,
  callOfItem,
  HOSTED_SHELL,
  kindOfItem,
  roleOfItem,
  textOfOutput,
  textsOfContent,
} from './wire.ts'

/** The byte offsets of an input item, and what it is. Its role is `assistant` if it continues a response. */
interface InputItem extends ListedItem {
  /** It only refers to an item that the provider stores. */
  readonly isReference: boolean
  /** It is a compaction, or something like it. */
  readonly isAside: boolean
  /** A shell of the provider runs it, and the provider sends its output with the same response. */
  readonly isHostedShell: boolean
}

type RequestIndex = ListIndex<InputItem>

const ITEM_KEYS = ['type', 'role', 'execution', 'call_id', 'environment', 'id', 'tools'] as const

/** Reads what an item is, without decoding its text and arguments. */
function readItem(json: Buffer, at: number, work: Work): InputItem {
  const starts = { type: 0, role: 0, execution: 0, call_id: 0, environment: 0, id: 0, tools: 0 }
  const field = new MemberWalk(json, at, work)
  while (field.next()) {
    const key = ITEM_KEYS.find((one) => field.is(one))
    if (key) starts[key] = field.value
  }
  const { type, role, execution, call_id: callId, environment, id, tools: list } = starts
  const typeName = stringAt(json, type)
  const shell = environment > 0 ? { start: environment, end: skipValue(json, environment) } : undefined
  const place = shell && kindAt(json, shell) === 'object' ? stringIn(json, members(json, shell), 'type') : ''
  const kind = kindOfItem(typeName, {
    execution: stringAt(json, execution),
    // The ids of nearly all items say nothing of this.
    callId: typeName === 'custom_tool_call' ? stringAt(json, callId) : '',
    environment: place,
  })
  const isReference = typeName === 'item_reference'
  const isCall = kind === 'call' || (isReference && CALL_ID.test(stringAt(json, id)))
  // Clients of "Responses Lite" have no field for their tools.
  const offersTools = typeName === 'additional_tools' && list > 0
  return {
    start: at,
    end: field.end,
    role: roleOfItem(kind, stringAt(json, role)),
    callCount: isCall ? 1 : 0,
    resultCount: kind === 'tool' ? 1 : 0,
    isReference,
    isAside: kind === 'aside',
    isHostedShell: place === HOSTED_SHELL,
    tools: offersTools ? { start: list, end: skipValue(json, list) } : undefined,
  }
}

/** Returns the item for an input that is a text. */
function readText({ start, end }: Span): InputItem {
  const message = { role: 'user', callCount: 0, resultCount: 0 } as const
  return { start, end, ...message, isReference: false, isAside: false, isHostedShell: false }
}

/** Returns the index in which the outputs of the provider's own shell are part of the response that ran it. */
function withHostedOutputs(index: RequestIndex): RequestIndex {
  const { json, items } = index
  if (!items.some(({ isHostedShell }) => isHostedShell)) return index
  const callIdOf = (item: Span) => stringIn(json, members(json, item), 'call_id')
  const hosted = new Set<string>()
  const all = items.map((item): InputItem => {
    if (item.isHostedShell) hosted.add(callIdOf(item))
    if (item.role !== 'tool' || !hosted.has(callIdOf(item))) return item
    return { ...item, role: 'assistant', resultCount: 0 }
  })
  return { ...index, items: all }
}

/** Decodes a message, which may be a response of several items, or with -1 the fields with system text. */
function* messageOf(index: RequestIndex, at: number, messages: readonly MessageForm[]): Generator<void, Message> {
  const { json, items, work } = index
  const texts: string[] = []
  const calls: ToolCall[] = []
  const brought: string[] = []
  if (at === -1) {
    const instructions = fieldOf(index, 'instructions')
    if (typeof instructions === 'string') texts.push(instructions)
    const prompt = fieldOf(index, 'prompt')
    if (isObject(prompt)) texts.push(textOf(prompt['id']))
  }
  if (messages[at]?.role === 'part') return SILENT
  let next = at
  for (let item = items[next]; item; item = messages[next]?.role === 'part' ? items[next] : undefined) {
    const value = yield* decodeInTurns(json, item, work)
    const object: Json = isObject(value) ? value : { content: value }
    const { type, id, content, call_id: call, approval_request_id: approval, output, approve } = object
    if (item.role === 'tool') {
      const text = textOfOutput(output ?? approve)
      return { texts: [text], calls, results: [{ callId: textOf(call ?? approval ?? id), text }] }
    }
    const result = broughtBy(object)
    if (result !== undefined) brought.push(result)
    if (item.callCount > 0) calls.push(callOfItem(object, brought))
    // The request contains only the id of what it refers to.
    if (type !== 'item_reference') texts.push(...(type === 'reasoning' ? [] : textsOfContent(content)))
    else if (item.callCount === 0 && !/^rs_/.test(textOf(id))) texts.push(textOf(id))
    next++
  }
  return { texts, calls }
}

const PARAGRAPH_TYPES = new Set(['function_call_output', 'custom_tool_call_output'])

/** True if the results that end the items before `end` are for a program of the provider, which reads nothing else. */
function endsForProgram({ json, items }: RequestIndex, end: number): boolean {
  const ids = new Set<string>()
  for (const item of items.slice(0, end).reverse()) {
    const fields = item.resultCount + item.callCount > 0 ? members(json, item) : []
    const id = stringIn(json, fields, 'call_id')
    const caller = member(fields, 'caller')?.value
    if (item.role === 'tool') ids.add(id)
    else if (ids.delete(id) && caller && isForProgram(decode(json, caller))) return true
    if (item.role === 'user' || ids.size === 0) return false
  }
  return false
}

/** Appends a paragraph to an item; `undefined` if the item has no text for the model. */
function addParagraph(json: Buffer, item: Span, text: string): Edit | undefined {
  if (kindAt(json, item) === 'string') return appendParagraph(item, text)
  const fields = members(json, item)
  const type = stringIn(json, fields, 'type')
  // Programs of the provider read the outputs of other tools.
  const isMessage = type === '' || type === 'message'
  const key = isMessage ? 'content' : PARAGRAPH_TYPES.has(type) ? 'output' : undefined
  const content = key && member(fields, key)?.value
  return content && kindAt(json, content) !== 'scalar'
    ? addText(json, content, text, { type: 'input_text' })
    : undefined
}

const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'parallel_tool_calls', 'max_tool_calls'])

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

const FIELDS: RequestFields = {
  ...OPENAI_TOOLS,
  // A prompt that the provider stores has system text too.
  system: ['instructions', 'prompt'],
  formatIn: (index) => formatIn(index, ['text', 'format']),
}

/** What a request and its provider keep of the conversation. */
function storageOf(index: RequestIndex, isMessage: boolean) {
  const { json, items } = index
  const response = textOf(fieldOf(index, 'previous_response_id'))
  const stated = fieldOf(index, 'conversation') ?? null
  const conversation = response === '' ? textOf(isObject(stated) ? stated['id'] : stated) : ''
  const isConversation = conversation !== ''
  const previous = response || conversation || undefined
  const first = items.find(({ role }) => role === 'assistant')
  // A connection keeps its newest responses, also those that the provider does not store.
  const isForgotten = fieldOf(index, 'store') === false
  const storesAnswers = isMessage || !isForgotten
  // The provider stores the input and shows it to the model whenever the conversation continues. Not so if nothing is
  // stored, or if the client sends answers of the model: it keeps the history itself and sends all of it each time.
  const storesInput = isMessage || response !== '' || stated !== null || (storesAnswers && !first)
  const isStored = storesInput && storesAnswers
  const stored: StoredHistory = {
    previous,
    isConversation,
    hasOneEnd: isConversation,
    skippedResults(unique) {
      // A client that has sent its history, or whose connection alone keeps it, sends it again for an unknown answer.
      if (!isStored || (previous === undefined && (isForgotten || first))) return undefined
      const results = items.filter(({ role }) => role === 'tool')
      // The outputs of some tools have other forms only.
      const pendingResults = resultsToKeep(json, results, 'output', ['string'])
      const id = `resp_${unique}`
      return isConversation ? { id, pendingResults } : { id, pendingResults, redirectTo: previous ?? '' }
    },
    injectPendingResults(pendingResults, redirectTo) {
      const own = pendingResults.length > 0 ? items.filter(({ role }) => role === 'tool') : []
      const ids = new Set<string>()
      for (const item of own) {
        const fields = members(json, item)
        ids.add(NAMING.map((name) => stringIn(json, fields, name)).find((id) => id !== '') ?? '')
      }
      return injectPendingResults(index, resultsLeft(pendingResults, ids), redirectTo)
    },
  }
  const firstItem = first?.isReference ? stringIn(json, members(json, first), 'id') || undefined : undefined
  return { isStored, storesInput, storesAnswers, stored, firstItem }
}

/** The path of a compaction: its answer is the history in fewer tokens, and no step of a run. */
const COMPACTION = /\/responses\/compact\/?$/

/** How many items may stand before a compaction. */
const MAX_KEPT = 8

function isOfType(json: Buffer, item: InputItem, type: string): boolean {
  return stringIn(json, members(json, item), 'type') === type
}

function sizesAt({ json, items }: RequestIndex, at: number): ResultSize[] {
  const item = items[at]
  if (item?.role !== 'tool') return []
  return [{ callId: stringIn(json, members(json, item), 'call_id'), bytes: item.end - item.start }]
}

function picturesAt({ json, items, work }: RequestIndex, at: number): string[] {
  const item = items[at]
  const value = item?.role === 'user' ? decodeToCompare(json, item, work) : undefined
  return attachmentHashes(propertyOf(value, 'content'))
}

/** Returns edits that forbid calls of tools, or all but those of one tool. */
function bannedTools({ json, object, fields, items }: RequestIndex, ban: ToolBan, forced: string | undefined): Edit[] {
  const edits: Edit[] = []
  if (ban === 'choice_none') edits.push(setMember(object, fields, 'tool_choice', '"none"'))
  if (ban === 'no_tools') {
    const offers = new Set(items.filter(({ tools }) => tools))
    edits.push(...removeMembers(fields, TOOL_FIELDS))
    if (offers.size < items.length) edits.push(...removeItems(items, offers))
  }
  const choice = JSON.stringify({ type: 'function', name: forced })
  if (forced !== undefined) edits.push(setMember(object, fields, 'tool_choice', choice))
  // No call may be in an answer that the client fetches later.
  return [...edits, ...answerAtOnce({ json, fields })]
}

function answerAtOnce({ json, fields }: Pick<RequestIndex, 'json' | 'fields'>): Edit[] {
  const background = member(fields, 'background')?.value
  return background && decode(json, background) === true ? [{ ...background, text: 'false' }] : []
}

const read: Dialect['read'] = ({ path, body, known }) => {
  const indexed = indexList(body, 'input', readItem, known, readText)
  if (!indexed) return undefined
  const index = withHostedOutputs(indexed)
  const { json, object, fields, items } = index
  const isSteered = path.endsWith(STEERED)
  // It is a message of a WebSocket.
  const isMessage = stringIn(json, fields, 'type') === CREATE
  const { isStored, storesInput, storesAnswers, stored, firstItem } = storageOf(index, isMessage)
  const messages = messagesOf(items)
  const last = items.at(-1)
  const compaction = items.slice(0, MAX_KEPT).findLast((item) => item.isAside && isOfType(json, item, 'compaction'))
  const conversation = conversationOf(
    index,
    messageOf,
    {
      hasParts: true,
      ...(isMessage ? { streams: true, isWarmUp: fieldOf(index, 'generate') === false } : {}),
      // A prompt that the provider stores may have tools.
      offersTools: offersTools(index, FIELDS) || (!member(fields, 'tools') && isObject(fieldOf(index, 'prompt'))),
      isCompaction: COMPACTION.test(path) || (last?.isAside === true && isOfType(json, last, 'compaction_trigger')),
      // User messages may stay before it.
      isCompacted: compaction !== undefined,
      resultSizes: (at) => sizesAt(index, at),
      pictures: (at) => picturesAt(index, at),
    },
    messages,
  )
  const add: AddText = (at, text) => {
    const item = items[at]
    return item && !endsForProgram(index, at + 1) ? addParagraph(json, item, text) : undefined
  }
  return {
    conversation,
    storesAnswer: storesAnswers,
    isFetchedLater: fieldOf(index, 'background') === true,
    answerAtOnce: () => answerAtOnce(index),
    resultsOf: (blockedMessage) => (storesAnswers ? resultsOfBlocked(blockedMessage) : []),
    stored: storesInput || items.some(({ isReference }) => isReference) ? stored : undefined,
    firstItem: compaction ? stringIn(json, members(json, compaction), 'id') || undefined : firstItem,
    notice(text, channel) {
      if (isSteered) return undefined
      if (!storesInput) return endsForProgram(index, items.length) ? undefined : noticeIn(index, text, channel, add)
      const edit = channel === 'user' ? undefined : addToText(json, object, fields, 'instructions', text)
      return edit && [edit]
    },
    announce: (text) => (isSteered ? [] : announceIn(index, text)),
    banTools: (ban, forced) => bannedTools(index, ban, forced),
    continueAfterBlock: (blockedMessages) =>
      continueAfterBlock(index, blockedMessages, isStored, stored.isConversation),
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, conversation, FIELDS, add),
    ...(isSteered ? { dropTools: () => [] } : {}),
  }
}

export const responses: Dialect = {
  ...dialectMembers(responsesStream),
  ...responsesReplies,
  name: 'responses',
  api: openai,
  claims(segments) {
    const length = segments.at(-1) === 'compact' ? 2 : 1
    return segments.at(-length) === 'responses' ? length : 0
  },
  laterResponse(method, segments) {
    const after = segments.slice(segments.lastIndexOf('responses') + 1)
    const isLater = method === 'GET' ? after.length === 1 : method === 'POST' && after[1] === 'cancel' && !after[2]
    return isLater && after.length < segments.length ? after[0] : undefined
  },
  read,
  responseId: (head) => firstText(head, 'id'),
  socket: responsesSocket,
}
