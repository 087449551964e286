/** Streamed Messages responses for the stream engine. The client gets their content blocks numbered without gaps. */
import { isObject, type Json, propertyOf, textOf } from '../../core/json-object.ts'
import { withMembers } from '../../json/edit.ts'
import { memberText } from '../../json/scan.ts'
import { dataOf, type Frame, terminated, withData } from '../../sse/frames.ts'
import type { KeptCalls, Part, StreamDialect, StreamEnding, StreamMode } from '../shared/stream-engine.ts'
import { type Assembly, addEvent, assembled, newAssembly } from './buffered-calls.ts'
import { event, eventIn, textEvents } from './events.ts'
import { isCall, isCutOff, laterUsage, stopWithoutCalls } from './wire.ts'

interface MessagesPart extends Part {
  readonly data: Json
  /** New values (JSON texts) for members of the event. */
  readonly changes: Readonly<Record<string, string>>
  /** The number of calls in the response so far, including the one that this part belongs to. */
  readonly calls: number
}

/** The state of one client's stream. */
interface MessagesStream {
  /** The client has received the beginning of a message. */
  hasBegun: boolean
  /** The index of the client's next block. */
  next: number
  /** The index of the client's open block. */
  open: number | undefined
  /** The client's open block contains text. */
  isTextOpen: boolean
  /** The client's indexes of the blocks of the current response, by the provider's indexes. */
  readonly indexes: Map<unknown, number>
  /** The places of the calls of the current response, by the provider's indexes of their blocks. */
  readonly callBlocks: Map<unknown, number>
  /** The number of calls of the current response. */
  calls: number
  id: string | undefined
  assembly: Assembly
  usage: unknown
  hasEnd: boolean
}

const start = (): MessagesStream => ({
  hasBegun: false,
  next: 0,
  open: undefined,
  isTextOpen: false,
  indexes: new Map(),
  callBlocks: new Map(),
  calls: 0,
  id: undefined,
  assembly: newAssembly(),
  usage: undefined,
  hasEnd: false,
})

/** Outside of filter mode the message stays, as its calls are read after its end. */
function nextResponse(stream: MessagesStream, mode: StreamMode): void {
  if (mode === 'filter') beginMessage(stream, undefined)
  stream.callBlocks.clear()
  stream.calls = 0
  stream.usage = undefined
  stream.hasEnd = false
}

function beginMessage(stream: MessagesStream, id: string | undefined): void {
  stream.id = id
  stream.assembly = newAssembly()
}

function addToMessage(data: Json, stream: MessagesStream): void {
  const { type, index, content_block: block } = data
  if (type === 'message_start') {
    const message = isObject(data['message']) ? data['message'] : {}
    beginMessage(stream, textOf(message['id']))
    stream.usage = message['usage']
  }
  if (type === 'message_delta') stream.usage = laterUsage(stream.usage, data['usage'])
  stream.hasEnd ||= type === 'message_delta' || type === 'message_stop'
  if (type === 'content_block_start') {
    stream.callBlocks.delete(index)
    if (isCall(block)) stream.callBlocks.set(index, stream.calls++)
  }
  addEvent(stream.assembly, data)
}

/** True for the beginning of a text block. */
function isText({ type, content_block: block }: Json): boolean {
  return type === 'content_block_start' && isObject(block) && block['type'] === 'text'
}

function kindOf(data: Json, stream: MessagesStream): Part['kind'] {
  const { type, index } = data
  switch (type) {
    case 'content_block_start':
    case 'content_block_delta':
    case 'content_block_stop':
      if (stream.callBlocks.has(index)) return 'call'
      return isText(data) ? 'text' : 'other'
    case 'message_start':
      return 'other'
    case 'message_delta':
    case 'message_stop':
      return 'end'
    case 'error':
      return 'failed'
    default:
      return 'comment'
  }
}

/** Returns the text that an event adds to a block. */
function addedText(data: Json): string {
  const { type, content_block: block, delta } = data
  if (isText(data)) return isObject(block) ? textOf(block['text']) : ''
  return type === 'content_block_delta' && isObject(delta) && delta['type'] === 'text_delta'
    ? textOf(delta['text'])
    : ''
}

function parse(frame: Frame, stream: MessagesStream, isLater: boolean): MessagesPart {
  const data = eventIn(frame)
  const base = { frame, isLater, changes: {}, text: '', usage: undefined, isOver: false }
  if (!data) return { ...base, kind: 'comment', isEmpty: false, data: {}, calls: stream.calls }
  addToMessage(data, stream)
  const { type, index } = data
  const kind = kindOf(data, stream)
  return {
    ...base,
    data,
    kind,
    text: addedText(data),
    isEmpty: type !== 'content_block_delta' && kind !== 'failed',
    isOver: type === 'message_stop',
    usage: stream.usage,
    calls: (stream.callBlocks.get(index) ?? stream.calls - 1) + 1,
  }
}

/** Writes an event of a block with the client's index; a message begins only once. */
function render(part: MessagesPart, stream: MessagesStream): Buffer[] {
  const { type, index } = part.data
  if (type === 'message_start') {
    if (stream.hasBegun) return []
    stream.hasBegun = true
  }
  if (type === 'content_block_start') {
    stream.open = stream.next
    stream.isTextOpen = isText(part.data)
    stream.indexes.set(index, stream.next++)
  }
  const number = index === undefined ? undefined : stream.indexes.get(index)
  if (type === 'content_block_stop' && number === stream.open) stream.open = undefined
  const changes =
    number === undefined || number === index ? part.changes : { ...part.changes, index: String(number) }
  if (Object.keys(changes).length === 0) return [terminated(part.frame)]
  const json = Buffer.from(dataOf(part.frame) ?? '')
  return [withData(part.frame, withMembers(json, changes).toString('utf8'))]
}

function closeOpen(stream: MessagesStream): Buffer[] {
  stream.indexes.clear()
  if (stream.open === undefined) return []
  const index = stream.open
  stream.open = undefined
  return [event({ type: 'content_block_stop', index })]
}

/** Returns changes to a `message_delta` whose response has no more calls. */
function stopChanges({ frame, data }: MessagesPart): Record<string, string> {
  const { delta } = data
  const reason = isObject(delta) ? delta['stop_reason'] : undefined
  const changed = stopWithoutCalls(reason)
  const text = memberText(Buffer.from(dataOf(frame) ?? ''), 'delta')
  if (changed === reason || text === undefined) return {}
  return { delta: withMembers(Buffer.from(text), { stop_reason: JSON.stringify(changed) }).toString() }
}

const usageChange = (usage: unknown): Record<string, string> =>
  isObject(usage) ? { usage: JSON.stringify(usage) } : {}

function keepCalls(part: MessagesPart, { blocked, usage }: KeptCalls): MessagesPart | undefined {
  if (part.kind === 'call') return blocked.has(part.calls - 1) ? undefined : part
  const isUnchanged = blocked.size === 0 && usage === undefined
  if (part.data['type'] !== 'message_delta' || isUnchanged) return part
  const hasCalls = part.calls > blocked.size
  return { ...part, changes: { ...(hasCalls ? {} : stopChanges(part)), ...usageChange(usage) } }
}

const lastDelta = (parts: readonly MessagesPart[]): MessagesPart | undefined =>
  parts.findLast(({ data }) => data['type'] === 'message_delta')

function governorEnd({ usage, metadata }: StreamEnding<MessagesPart>): Buffer[] {
  return [
    event({
      type: 'message_delta',
      delta: { stop_reason: 'end_turn', stop_sequence: null },
      usage: isObject(usage) ? usage : { output_tokens: 0 },
      governor: metadata,
    }),
    event({ type: 'message_stop' }),
  ]
}

/** Returns the provider's own end, with the terminal state and the usage of all responses in its `message_delta`. */
function providersEnd(ending: StreamEnding<MessagesPart>, stream: MessagesStream): Buffer[] {
  const { parts, mode, usage, responses, metadata } = ending
  const last = lastDelta(parts)
  if (!last && mode === 'answer') return governorEnd(ending)
  return parts.flatMap((part) => {
    if (part !== last) return [terminated(part.frame)]
    const changes = {
      ...(mode === 'answer' ? stopChanges(part) : {}),
      ...(responses > 1 ? usageChange(usage) : {}),
      governor: JSON.stringify(metadata),
    }
    return render({ ...part, changes }, stream)
  })
}

/** Returns the footer at the end of the client's open text, as some clients show the last block alone. */
function footerEvents(footer: string, textEnd: readonly MessagesPart[], stream: MessagesStream): Buffer[] {
  if (stream.open === undefined || !stream.isTextOpen)
    return [...closeOpen(stream), ...textEvents(stream.next++, footer)]
  const delta = { type: 'text_delta', text: footer }
  return [
    event({ type: 'content_block_delta', index: stream.open, delta }),
    ...textEnd.flatMap((part) => render(part, stream)),
  ]
}

function ending(end: StreamEnding<MessagesPart>, stream: MessagesStream): Buffer[] {
  const { mode, fallback, footer, textEnd } = end
  const isAnswer = mode === 'answer'
  const message = { id: 'msg_governor', type: 'message', role: 'assistant', model: '', content: [] }
  const noEnd = { stop_reason: null, stop_sequence: null, usage: { input_tokens: 0, output_tokens: 0 } }
  const before = [
    ...(isAnswer && !stream.hasBegun
      ? [event({ type: 'message_start', message: { ...message, ...noEnd } })]
      : []),
    ...(footer === undefined ? [] : footerEvents(footer, textEnd, stream)),
    ...(isAnswer ? closeOpen(stream) : []),
  ]
  if (fallback === undefined) return [...before, ...providersEnd(end, stream)]
  return [...before, ...textEvents(stream.next++, fallback), ...governorEnd(end)]
}

const assemble = ({ id, assembly }: MessagesStream) => assembled(id, assembly)

/** How the stream engine reads and writes Messages. */
export const messagesStream: StreamDialect<MessagesPart, MessagesStream> = {
  keepsOrder: true,
  start,
  nextResponse,
  parse,
  render,
  withoutAllCalls: (part) => (part.kind === 'call' ? undefined : part),
  withoutBlocked: keepCalls,
  // The end of the text block that the client has open.
  endsText: ({ data: { type, index } }, { open, isTextOpen, indexes }) =>
    type === 'content_block_stop' && isTextOpen && open !== undefined && indexes.get(index) === open,
  closeOpen,
  assemble,
  newest: assemble,
  mayFollow: ({ hasEnd }) => hasEnd,
  hasBegun: ({ hasBegun }) => hasBegun,
  isTruncated: (parts) => isCutOff(propertyOf(lastDelta(parts)?.data['delta'], 'stop_reason')),
  ending,
}
