/** Streamed Responses for the stream engine: output items, which the client gets without gaps in places and numbers. */
import { applyEdits, setMember } from '../../json/edit.ts'
import { member, members, root } from '../../json/scan.ts'
import { dataOf, type Frame, isWhole, terminated, withData } from '../../sse/frames.ts'
import type { BufferedCalls } from '../dialect.ts'
import { isObject, type Json, objectsOf, parseObject, textOf } from '../shared/json-object.ts'
import type { KeptCalls, Part, StreamDialect, StreamEnding, StreamMode } from '../shared/stream-engine.ts'
import { closingEvents, eventFrame, messageEvents } from './events.ts'
import { governorId } from './reply.ts'
import {
  bufferedCallsOf,
  COMPLETED,
  isClientCall,
  messageItem,
  placesWithoutBlocked,
  textOfOutputItems,
  textsOfContent,
} from './wire.ts'

const DONE = '[DONE]'

/** An item of the output. */
interface OutputItem {
  /** As the provider told it last. */
  item: Json
  /** As the client got it last, whether it was done then, and its place in the client's output. */
  shown: Json
  isDone: boolean
  index: number | undefined
  /** What a message says so far. */
  text: string
}

interface ResponsesPart extends Part {
  readonly event: Json
  readonly isDone: boolean
  /** Which of the responses it belongs to, and the items of that by the places that the provider gives them. */
  readonly response: number
  readonly items: ReadonlyMap<unknown, OutputItem>
  /** It ends a response, and has to say what the client has of it, and this usage of all responses together. */
  readonly total?: { readonly usage: unknown }
}

/** What is remembered of one client's stream. */
interface ResponsesStream {
  mode: StreamMode
  /** The number of the current response, and of the one by whose beginning the client's stream began. */
  response: number
  beganWith: number | undefined
  /** What the client's output consists of. */
  readonly output: OutputItem[]
  /** Of the current response. */
  items: Map<unknown, OutputItem>
  hasText: boolean
  isOver: boolean
  /** Of the newest response: its calls that were taken out. */
  dropped: OutputItem[]
  /** The newest state of the response as its provider told it, and that of the last one that was taken. */
  told: Json
  taken: Json
  /** The client's output is not what the provider says of it. */
  isChanged: boolean
  /** Events have sequence numbers, and the newest that the client got. */
  isNumbered: boolean
  number: number | undefined
  /** What stands behind the last event, at some providers. */
  done: Frame | undefined
}

const start = (mode: StreamMode): ResponsesStream => ({
  mode,
  response: 0,
  beganWith: undefined,
  output: [],
  items: new Map(),
  hasText: false,
  isOver: false,
  dropped: [],
  told: {},
  taken: {},
  isChanged: false,
  isNumbered: false,
  number: undefined,
  done: undefined,
})

function nextResponse(stream: ResponsesStream, mode: StreamMode, isTaken: boolean): void {
  if (isTaken) stream.taken = stream.told
  else stream.told = stream.taken
  stream.isChanged ||= stream.mode !== mode
  stream.mode = mode
  stream.response++
  stream.items = new Map()
  stream.hasText = false
  stream.isOver = false
}

function responseOf(event: Json): Json {
  return isObject(event['response']) ? event['response'] : {}
}

/** Takes in what an event says of its item; returns the text that it adds to a message. */
function addToItem(event: Json, stream: ResponsesStream): string {
  const { type, output_index: place, item } = event
  const known = stream.items.get(place)
  if (isObject(item) && known) known.item = item
  if (isObject(item) && !known) {
    const added: OutputItem = { item, shown: item, isDone: false, index: undefined, text: '' }
    stream.items.set(place, added)
    if (stream.mode === 'answer' && isClientCall(item)) {
      stream.dropped.push(added)
      stream.isChanged = true
    }
  }
  const entry = stream.items.get(place)
  if (!entry) return ''
  const isDone = type === 'response.output_item.done'
  // Providers that do not stream text tell it all at the end.
  const isLateText = isDone && entry.text === '' && entry.item['type'] === 'message'
  const isText = type === 'response.output_text.delta' || type === 'response.refusal.delta'
  const text = isLateText
    ? textsOfContent(entry.item['content']).join('')
    : isText
      ? textOf(event['delta'])
      : ''
  entry.text += text
  stream.hasText ||= text !== ''
  return text
}

type Reading = Pick<ResponsesPart, 'kind' | 'text' | 'isEmpty' | 'isOver'>

function readEvent(event: Json, frame: Frame, stream: ResponsesStream): Reading {
  const empty = { text: '', isEmpty: true, isOver: false }
  switch (event['type']) {
    case 'response.created':
    case 'response.queued':
    case 'response.in_progress':
      stream.told = responseOf(event)
      stream.dropped = []
      return { ...empty, kind: 'other' }
    case 'response.completed':
    case 'response.incomplete': {
      stream.told = responseOf(event)
      stream.isOver = true
      const text = stream.hasText ? '' : textOfOutputItems(objectsOf(stream.told['output']))
      return { kind: 'end', text, isEmpty: false, isOver: true }
    }
    case 'response.failed':
    case 'error':
      return { ...empty, kind: 'failed', isEmpty: false }
    default:
  }
  if (!('output_index' in event)) return { ...empty, kind: 'lead' }
  const text = addToItem(event, stream)
  const item = stream.items.get(event['output_index'])?.item
  const base = { text, isEmpty: false, isOver: false }
  // The last event of a stream that broke off may lack its end, which it must not get where nothing follows.
  if (stream.mode === 'filter' && !isWhole(frame)) return { ...base, kind: 'end' }
  if (!item || item['type'] === 'reasoning') return { ...base, kind: 'lead' }
  if (isClientCall(item)) return { ...base, kind: 'call' }
  return { ...base, kind: item['type'] === 'message' ? 'text' : 'other' }
}

function parse(frame: Frame, stream: ResponsesStream, isLater: boolean): ResponsesPart {
  const { response, items } = stream
  const data = dataOf(frame)
  const isDone = data?.trim() === DONE
  if (isDone) stream.done = frame
  const event = data === undefined || isDone ? undefined : parseObject(data)
  const base = { frame, isLater, response, items, isDone, usage: undefined }
  if (!event) {
    const isEmpty = stream.mode === 'filter'
    return { ...base, event: {}, kind: isDone ? 'end' : 'comment', text: '', isEmpty, isOver: false }
  }
  stream.isNumbered ||= typeof event['sequence_number'] === 'number'
  const { usage } = responseOf(event)
  return { ...base, event, ...readEvent(event, frame, stream), usage: isObject(usage) ? usage : undefined }
}

function numbered(event: Json, stream: ResponsesStream): Json {
  stream.number = stream.number === undefined ? Number(event['sequence_number'] ?? 0) : stream.number + 1
  return event['sequence_number'] === stream.number ? event : { ...event, sequence_number: stream.number }
}

function governorEvents(events: readonly Json[], stream: ResponsesStream): Buffer[] {
  return events.map((event) => eventFrame(stream.isNumbered ? numbered(event, stream) : event))
}

/** An event of an item at its place in the client's output. */
function placed(event: Json, entry: OutputItem | undefined, stream: ResponsesStream): Json {
  if (!entry) return event
  if (isObject(event['item'])) entry.shown = event['item']
  entry.isDone ||= event['type'] === 'response.output_item.done'
  entry.index ??= stream.output.push(entry) - 1
  if (entry.index === event['output_index']) return event
  stream.isChanged = true
  return { ...event, output_index: entry.index }
}

/** The end of a response, with all that the client has of it and all that it took. */
function totalled(event: Json, usage: unknown, stream: ResponsesStream): Json {
  const output = stream.output.map(({ shown }) => shown)
  const stated = isObject(usage) ? { usage } : {}
  return { ...event, response: { ...responseOf(event), output, ...stated } }
}

const BEGINNINGS = new Set<unknown>(['response.created', 'response.queued', 'response.in_progress'])

function render(part: ResponsesPart, stream: ResponsesStream): Buffer[] {
  const { frame, event, kind, total } = part
  if (part.isDone || (kind === 'failed' && !stream.isChanged)) return [terminated(frame)]
  if (BEGINNINGS.has(event['type'])) {
    stream.beganWith ??= part.response
    if (stream.beganWith !== part.response) return []
  }
  const whole = total ? totalled(event, total.usage, stream) : event
  const next = placed(whole, part.items.get(event['output_index']), stream)
  const changed = typeof event['sequence_number'] === 'number' ? numbered(next, stream) : next
  return [changed === event ? terminated(frame) : withData(frame, JSON.stringify(changed))]
}

function keepCalls(part: ResponsesPart, { blocked, usage }: KeptCalls): ResponsesPart | undefined {
  const { event, items, isOver } = part
  if (isOver) return { ...part, total: { usage } }
  if (!('output_index' in event)) return part
  const places = [...items.keys()]
  const output = [...items.values()].map(({ item }) => item)
  const isLeft = placesWithoutBlocked(output, blocked).some((at) => places[at] === event['output_index'])
  return isLeft ? part : undefined
}

function isTruncated(parts: readonly ResponsesPart[]): boolean {
  return endIn(parts)?.event['type'] === 'response.incomplete'
}

const endIn = (parts: readonly ResponsesPart[]): ResponsesPart | undefined =>
  parts.findLast(({ isOver }) => isOver)

/** The end of Governor's: what the client has, under the name that the provider gave. */
function governorEnd(of: StreamEnding<ResponsesPart>, stream: ResponsesStream): Buffer[] {
  const { parts, usage, responses, metadata } = of
  const last = responseOf(endIn(parts)?.event ?? {})
  const total = responses > 1 ? usage : (last['usage'] ?? usage)
  const isCutOff = isTruncated(parts)
  const response: Json = {
    ...stream.told,
    ...last,
    ...(isCutOff ? {} : COMPLETED),
    output: stream.output.map(({ shown }) => shown),
    ...(total === undefined ? {} : { usage: total }),
    governor: metadata,
  }
  return governorEvents([{ type: isCutOff ? 'response.incomplete' : 'response.completed', response }], stream)
}

/** The end in the provider's own bytes where nothing but the metadata is new. */
function providersEnd(of: StreamEnding<ResponsesPart>, stream: ResponsesStream): Buffer[] {
  const { parts, mode, responses, metadata } = of
  const end = endIn(parts)
  if (!end) return mode === 'answer' ? governorEnd(of, stream) : []
  const { frame, event } = end
  const isNext = stream.number === undefined || event['sequence_number'] === stream.number + 1
  const isComplete = isTruncated(parts) || responseOf(event)['status'] === 'completed'
  const isAsCame = !stream.isChanged && responses === 1 && isComplete
  if (!isNext || (mode === 'answer' && !isAsCame)) return governorEnd(of, stream)
  const data = Buffer.from(dataOf(frame) ?? '')
  const span = member(members(data, root(data)), 'response')?.value
  const governor = span && setMember(span, members(data, span), 'governor', JSON.stringify(metadata))
  return [withData(frame, applyEdits(data, governor ? [governor] : []).toString('utf8'))]
}

/** Ends items that were begun and not done, as a provider that fails leaves them. */
function closeItems(stream: ResponsesStream): Buffer[] {
  return stream.output.flatMap((entry, index) => {
    if (entry.isDone) return []
    const { item, events } = closingEvents(entry.shown, entry.text, index)
    entry.shown = item
    entry.isDone = true
    stream.isChanged = true
    return governorEvents(events, stream)
  })
}

function say(text: string, stream: ResponsesStream): Buffer[] {
  if (text === '') return []
  const item = messageItem(governorId('msg', stream.told['id']), text)
  const index = stream.output.push({ item, shown: item, isDone: true, index: undefined, text }) - 1
  stream.isChanged = true
  return governorEvents(messageEvents(item, text, index), stream)
}

function ending(of: StreamEnding<ResponsesPart>, stream: ResponsesStream): Buffer[] {
  const { parts, mode, fallback } = of
  const text = fallback ?? endIn(parts)?.text ?? ''
  const said = mode === 'answer' ? [...closeItems(stream), ...say(text, stream)] : []
  return [...said, ...providersEnd(of, stream), ...(stream.done ? [terminated(stream.done)] : [])]
}

function assemble({ isOver, told, items }: ResponsesStream): BufferedCalls | undefined {
  const output = [...items.values()].map(({ item }) => item)
  return isOver ? bufferedCallsOf(told['id'], output) : undefined
}

export const responsesStream: StreamDialect<ResponsesPart, ResponsesStream> = {
  keepsOrder: true,
  isNamedByLast: true,
  start,
  nextResponse,
  parse,
  render,
  withoutCalls: (part) => (part.kind === 'call' ? undefined : part),
  keepCalls,
  assemble,
  newest: ({ told, dropped }) =>
    bufferedCallsOf(
      told['id'],
      dropped.map(({ item }) => item),
    ),
  mayFollow: ({ isOver }) => isOver,
  hasBegun: ({ beganWith }) => beganWith !== undefined,
  isTruncated,
  ending,
}
