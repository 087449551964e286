/** Streamed Responses for the stream engine. The client gets indexes and sequence numbers without gaps. */
import { isObject, type Json, objectIn, objectsOf, parseObject, textOf } from '../../core/json-object.ts'
import { withMembers } from '../../json/edit.ts'
import { memberText } from '../../json/scan.ts'
import { dataOf, type Frame, isWhole, terminated, withData } from '../../sse/frames.ts'
import { DONE } from '../openai/api.ts'
import type { DialectState, Kept, Part, StreamDialect, StreamEnding, StreamMode } from '../shared/stream-engine.ts'
import { eventFrame } from '../shared/whole-response.ts'
import { governorId, outputOf } from './reply.ts'
import {
  answeredBy,
  bufferedCallsOf,
  COMPLETED,
  clientCallsIn,
  isClientCall,
  itemsLeft,
  messageEvents,
  messageItem,
  textOfOutputItems,
  textPart,
  textsOfContent,
  withAddedText,
} from './wire.ts'

interface OutputItem {
  /** The newest state that the provider sent. */
  item: Json
  /** The newest state that the client received. */
  shown: Json
  /** The client has received the end of the item. */
  isDone: boolean
  /** The index of the item in the client's output; `undefined` until the client gets it. */
  index: number | undefined
  /** The text of a message so far. */
  text: string
}

interface ResponsesPart extends Part {
  readonly event: Json
  readonly isDone: boolean
  /** The items of the response that it belongs to, by the provider's indexes. */
  readonly items: ReadonlyMap<unknown, OutputItem>
  /** Set if the event ends a response and has to state the client's output, and this sum of all usage. */
  readonly total?: { readonly usage: unknown }
  /** Its event is not the one in its frame. */
  readonly isChanged?: true
}

class ResponsesStream implements DialectState {
  mode: StreamMode = 'filter'
  /** The items of the response with whose first event the client's stream began. */
  beganWith: ReadonlyMap<unknown, OutputItem> | undefined
  hasBegun = false
  lineEnd = '\n'
  /**
   * The id that the client's stream began with and keeps: clients refuse a change. Requests that name it are
   * redirected.
   */
  id: unknown
  /** The items in the client's output. */
  readonly output: OutputItem[] = []
  /** The items of the current response, by the provider's indexes. */
  items = new Map<unknown, OutputItem>()
  hasText = false
  /** The current response has its end. */
  mayFollow = false
  /** The calls of the newest response that were removed. */
  dropped: OutputItem[] = []
  /** The newest state of the current response that the provider sent. */
  latest: Json = {}
  /** The last state of the newest response that the client gets. */
  taken: Json = {}
  /** The client's output differs from the one that the provider states. */
  isChanged = false
  /** The provider numbers its events. */
  isNumbered = false
  /** The sequence number of the client's newest event. */
  number: number | undefined
  /** The end mark that some providers send after the last event. */
  done: Frame | undefined
}

/** Returns the newest states of items that the provider sent, or that the client received. */
function itemsOf(entries: Iterable<OutputItem>, state: 'item' | 'shown' = 'item'): Json[] {
  return Array.from(entries, (entry) => entry[state])
}

/** True for what the provider answered a call with that the client does not get. */
function answersDropped(item: Json, { dropped }: ResponsesStream): boolean {
  const id = dropped.length === 0 ? undefined : answeredBy(item)
  return id !== undefined && dropped.some((entry) => entry.item['call_id'] === id)
}

/** Updates the item of an event and returns the text that the event adds to a message. */
function addToItem(event: Json, stream: ResponsesStream): string {
  const { type, output_index: place, item } = event
  let entry = stream.items.get(place)
  if (isObject(item) && entry) entry.item = item
  else if (isObject(item)) {
    entry = { item, shown: item, isDone: false, index: undefined, text: '' }
    stream.items.set(place, entry)
    if (stream.mode === 'answer' && (isClientCall(item) || answersDropped(item, stream))) {
      stream.dropped.push(entry)
      stream.isChanged = true
    }
  }
  if (!entry) return ''
  const isDone = type === 'response.output_item.done'
  // Some providers do not stream text, but send all of it with the end of the item.
  const isLateText = isDone && entry.text === '' && entry.item['type'] === 'message'
  const isText = type === 'response.output_text.delta' || type === 'response.refusal.delta'
  const delta = isText ? textOf(event['delta']) : ''
  const text = isLateText ? textsOfContent(entry.item['content']).join('') : delta
  entry.text += text
  stream.hasText ||= text !== ''
  return text
}

/** How a response ends, as its status or the type of its last event says. */
const ENDS = /completed|incomplete|failed|done$/

const BEGINNINGS = new Set<unknown>(['response.created', 'response.queued', 'response.in_progress'])

function parse(frame: Frame, stream: ResponsesStream, isLater: boolean): ResponsesPart {
  const { items, mode } = stream
  const data = dataOf(frame)
  const isDone = data?.trim() === DONE
  if (isDone) stream.done = frame
  const event = data === undefined || isDone ? undefined : parseObject(data)
  const base = { frame, isLater, items, isDone, text: '', isEmpty: false, isOver: false, isTruncated: false }
  if (!event) {
    const kind = isDone ? 'end' : 'comment'
    return { ...base, event: {}, usage: undefined, kind, isEmpty: mode === 'filter' }
  }
  stream.isNumbered ||= typeof event['sequence_number'] === 'number'
  const { type } = event
  const stated = objectIn(event, 'response')
  const read = { ...base, event, usage: isObject(stated['usage']) ? stated['usage'] : undefined }
  if (BEGINNINGS.has(type)) {
    stream.latest = stated
    stream.dropped = []
    return { ...read, kind: 'other', isEmpty: true }
  }
  // Gateways name the last event in other ways, as `response.done`; the status says how the response ended.
  const end = 'response' in event ? ENDS.exec(textOf(stated['status']) || textOf(type))?.[0] : undefined
  if (type === 'response.failed' || type === 'error' || end === 'failed') return { ...read, kind: 'failed' }
  if (end !== undefined) {
    stream.latest = stated
    stream.mayFollow = true
    const text = stream.hasText ? '' : textOfOutputItems(objectsOf(stated['output']))
    return { ...read, kind: 'end', text, isOver: true, isTruncated: end === 'incomplete' }
  }
  if (!('output_index' in event)) return { ...read, kind: 'lead', isEmpty: true }
  const text = addToItem(event, stream)
  const item = items.get(event['output_index'])?.item
  // An incomplete last event must reach the client without a blank line, so it is held like an end.
  if (mode === 'filter' && !isWhole(frame)) return { ...read, text, kind: 'end' }
  if (!item || item['type'] === 'reasoning') return { ...read, text, kind: 'lead' }
  if (isClientCall(item) || answersDropped(item, stream)) return { ...read, text, kind: 'call' }
  return { ...read, text, kind: item['type'] === 'message' ? 'text' : 'other' }
}

function numbered(event: Json, stream: ResponsesStream): Json {
  stream.number = stream.number === undefined ? Number(event['sequence_number'] ?? 0) : stream.number + 1
  return event['sequence_number'] === stream.number ? event : { ...event, sequence_number: stream.number }
}

function governorEvents(events: readonly Json[], stream: ResponsesStream): Buffer[] {
  return events.map((event) => eventFrame(stream.isNumbered ? numbered(event, stream) : event, stream.lineEnd))
}

/** Writes an event with the index of its item in the client's output, and the next sequence number. */
function render(part: ResponsesPart, stream: ResponsesStream): Buffer[] {
  const { frame, event, kind, total } = part
  if (part.isDone || (kind === 'failed' && !stream.isChanged)) return [terminated(frame)]
  if (BEGINNINGS.has(event['type'])) {
    stream.id ??= objectIn(event, 'response')['id']
    stream.beganWith ??= part.items
    stream.hasBegun = true
    if (stream.beganWith !== part.items) return []
  }
  let next = event
  if (total) {
    const usage = isObject(total.usage) ? { usage: total.usage } : {}
    const output = itemsOf(stream.output, 'shown')
    const response = objectIn(event, 'response')
    next = { ...event, response: { ...response, id: stream.id ?? response['id'], output, ...usage } }
  }
  const entry = part.items.get(event['output_index'])
  if (entry) {
    if (isObject(event['item'])) entry.shown = event['item']
    entry.isDone ||= event['type'] === 'response.output_item.done'
    entry.index ??= stream.output.push(entry) - 1
    if (entry.index !== event['output_index']) {
      stream.isChanged = true
      next = { ...next, output_index: entry.index }
    }
  }
  if (typeof event['sequence_number'] === 'number') next = numbered(next, stream)
  const isAsCame = next === event && !part.isChanged
  return [isAsCame ? terminated(frame) : withData(frame, JSON.stringify(next))]
}

/** True if an item other than a call stays in a response without its calls; reasoning stays before another item. */
function isRest(item: Json, output: readonly Json[]): boolean {
  const left = itemsLeft(output, 'all')
  const last = left.findLastIndex(({ type }) => type !== 'reasoning')
  return left.indexOf(item) <= last && left.includes(item)
}

function withParts(part: ResponsesPart, { blocked, hasEnd, usage }: Kept): ResponsesPart | undefined {
  const { event, items, isOver, kind } = part
  if (blocked === 'all') {
    if (hasEnd) return kind !== 'call' ? part : undefined
    const item = items.get(event['output_index'])?.item
    return item && isRest(item, itemsOf(items.values())) ? part : undefined
  }
  if (isOver) return { ...part, total: { usage } }
  if (!('output_index' in event)) return part
  const entry = items.get(event['output_index'])
  const left = itemsLeft(itemsOf(items.values()), blocked)
  return entry && left.includes(entry.item) ? part : undefined
}

const endIn = (parts: readonly ResponsesPart[]): ResponsesPart | undefined => parts.findLast(({ isOver }) => isOver)

/** Returns the end: the provider's bytes with the terminal state, or its members with the client's output. */
function endEvent(ending: StreamEnding<ResponsesPart>, stream: ResponsesStream): Buffer[] {
  const { parts, mode, usage, responses, metadata, footer } = ending
  const end = endIn(parts)
  if (!end && mode !== 'answer') return []
  const last = objectIn(end?.event, 'response')
  // A last answer is whole for the client, which may throw on one that was cut off; the terminal state says so.
  const isCutOff = mode !== 'answer' && end?.isTruncated === true
  const isNext = stream.number === undefined || end?.event['sequence_number'] === stream.number + 1
  const isAnswer = last['status'] === 'completed' && clientCallsIn(objectsOf(last['output'])).length === 0
  const isAsCame = !stream.isChanged && responses === 1 && (isCutOff || isAnswer)
  const isNamed = last['id'] === (stream.id ?? last['id'])
  if (end && isNext && isNamed && (isAsCame || (mode !== 'answer' && footer === undefined))) {
    const data = Buffer.from(dataOf(end.frame) ?? '')
    const text = memberText(data, 'response')
    const response = text && withMembers(Buffer.from(text), { governor: JSON.stringify(metadata) }).toString()
    return [withData(end.frame, withMembers(data, response ? { response } : {}).toString())]
  }
  const total = responses > 1 ? usage : (last['usage'] ?? usage)
  const response: Json = {
    ...stream.latest,
    ...last,
    ...(stream.id === undefined ? {} : { id: stream.id }),
    ...(isCutOff ? {} : COMPLETED),
    ...outputOf(last, itemsOf(stream.output, 'shown')),
    ...(total === undefined ? {} : { usage: total }),
    governor: metadata,
  }
  return governorEvents([{ type: isCutOff ? 'response.incomplete' : 'response.completed', response }], stream)
}

/** Ends unfinished items, which a provider that fails leaves behind. */
function closeItems(stream: ResponsesStream): Buffer[] {
  const bytes: Buffer[] = []
  for (const [index, entry] of stream.output.entries()) {
    const { shown, text, isDone } = entry
    if (isDone) continue
    const isText = shown['type'] === 'message' && text !== ''
    const item = { ...shown, status: 'completed', ...(isText ? { content: [textPart(text)] } : {}) }
    entry.shown = item
    entry.isDone = true
    stream.isChanged = true
    bytes.push(...governorEvents(messageEvents(item, text, index).slice(isText ? 3 : -1), stream))
  }
  return bytes
}

/** Events that end a text or its message. */
const TEXT_ENDS = new Set<unknown>([
  'response.output_text.done',
  'response.content_part.done',
  'response.output_item.done',
])

/** True for the end of the newest message that the client has, or of its text; a refusal is none. */
function endsText({ event, items }: ResponsesPart, stream: ResponsesStream): boolean {
  const { type, part, item } = event
  const entry = items.get(event['output_index'])
  if (!TEXT_ENDS.has(type) || !entry || !isOpenMessage(entry, stream)) return false
  const ended = isObject(item) ? objectsOf(item['content']).at(-1) : part
  return !isObject(ended) ? type === 'response.output_text.done' : ended['type'] === 'output_text'
}

/** True if a message is the last item of the client's output, and not ended there. */
function isOpenMessage(entry: OutputItem, { output }: ResponsesStream): boolean {
  const isLast = entry.index === undefined || entry === output.at(-1)
  return entry.item['type'] === 'message' && !entry.isDone && isLast
}

/** Adds the footer to the client's last message, or in a message of its own if other content came after that. */
function addFooter(footer: string, textEnd: readonly ResponsesPart[], stream: ResponsesStream): Buffer[] {
  const [first] = textEnd
  const entry = first ? first.items.get(first.event['output_index']) : stream.output.at(-1)
  if (!entry || !isOpenMessage(entry, stream)) return addMessage(footer, stream)
  stream.isChanged = true
  entry.text += footer
  // Some providers do not stream text, but send all of it with the end of the item.
  const isStreamed = textEnd.every(({ text }) => text === '')
  const place = textEnd.find(({ event }) => 'content_index' in event)?.event['content_index'] ?? 0
  const delta = {
    type: 'response.output_text.delta',
    item_id: entry.item['id'],
    output_index: entry.index,
    content_index: place,
    delta: footer,
    logprobs: [],
  }
  const bytes = isStreamed ? governorEvents([delta], stream) : []
  for (const end of textEnd) {
    const { text, part, item } = end.event
    const isTextPart = isObject(part) && typeof part['text'] === 'string'
    const event = {
      ...end.event,
      ...(typeof text === 'string' ? { text: text + footer } : {}),
      ...(isTextPart ? { part: { ...part, text: textOf(part['text']) + footer } } : {}),
      ...(isObject(item) ? { item: withAddedText(item, footer) } : {}),
    }
    bytes.push(...render({ ...end, event, isChanged: true }, stream))
  }
  return bytes
}

function addMessage(text: string, stream: ResponsesStream): Buffer[] {
  const item = messageItem(governorId(stream.latest['id']), text)
  const index = stream.output.push({ item, shown: item, isDone: true, index: undefined, text }) - 1
  stream.isChanged = true
  return governorEvents(messageEvents(item, text, index), stream)
}

function ending(end: StreamEnding<ResponsesPart>, stream: ResponsesStream): Buffer[] {
  const { parts, mode, fallback, footer = '', textEnd } = end
  const text = fallback ?? endIn(parts)?.text ?? ''
  // Some providers do not stream text, but send all of it with the end of the response.
  const isLateText = mode === 'answer' && text !== ''
  const added = isLateText || footer === '' ? [] : addFooter(footer, textEnd, stream)
  if (mode === 'answer') {
    added.push(...closeItems(stream))
    if (isLateText) added.push(...addMessage(text + footer, stream))
  }
  return [...added, ...endEvent(end, stream), ...(stream.done ? [terminated(stream.done)] : [])]
}

export const responsesStream: StreamDialect<ResponsesPart, ResponsesStream> = {
  keepsOrder: true,
  isNamedByLast: true,
  start: (mode) => Object.assign(new ResponsesStream(), { mode }),
  nextResponse(stream, mode, isTaken) {
    if (isTaken) stream.taken = stream.latest
    else stream.latest = stream.taken
    stream.isChanged ||= stream.mode !== mode
    stream.mode = mode
    stream.items = new Map()
    stream.hasText = false
    stream.mayFollow = false
  },
  parse,
  render,
  withParts,
  endsText,
  closeOpen: closeItems,
  // A response without its end may have whole calls, which some clients make as soon as they come.
  assemble({ mode, latest, items, dropped }) {
    return bufferedCallsOf(latest['id'], itemsOf(mode === 'filter' ? items.values() : dropped))
  },
  ending,
}
