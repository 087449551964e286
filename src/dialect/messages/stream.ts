/** Streamed Messages responses for the stream engine. The client gets their content blocks numbered without gaps. */
import { isObject, type Json, propertyOf, textOf } from '../../core/json-object.ts'
import { withMembers } from '../../json/edit.ts'
import { memberText } from '../../json/scan.ts'
import { dataOf, type Frame, terminated, withData } from '../../sse/frames.ts'
import type { DialectState, Kept, Part, StreamDialect, StreamEnding } from '../shared/stream-engine.ts'
import { eventFrame } from '../shared/whole-response.ts'
import { Assembly, addEvent, assembled, eventIn, isCutOff, stopOfAnswer, textEvents } from './reply.ts'

interface MessagesPart extends Part {
  readonly data: Json
  /** New values (JSON texts) for members of the event. */
  readonly changes: Readonly<Record<string, string>>
  /** The place of its call among the calls of the response. */
  readonly call: number | undefined
}

class MessagesStream implements DialectState {
  hasBegun = false
  lineEnd = '\n'
  /** The index of the client's next block. */
  next = 0
  /** The index of the client's open block. */
  open: number | undefined
  isTextOpen = false
  /** The client's indexes of the blocks of the current response, by the provider's indexes. */
  readonly indexes = new Map<unknown, number>()
  assembly = new Assembly()
  /** The current response has its end. */
  mayFollow = false
}

const KINDS: ReadonlyMap<unknown, Part['kind']> = new Map([
  ['content_block_start', 'other'],
  ['content_block_delta', 'other'],
  ['content_block_stop', 'other'],
  ['message_start', 'other'],
  ['message_delta', 'end'],
  ['message_stop', 'end'],
  ['error', 'failed'],
] as const)

function isText({ type, content_block: block }: Json): boolean {
  return type === 'content_block_start' && propertyOf(block, 'type') === 'text'
}

function parse(frame: Frame, stream: MessagesStream, isLater: boolean): MessagesPart {
  const data = eventIn(frame)
  const base = { frame, isLater, changes: {}, text: '', usage: undefined, isOver: false, isTruncated: false }
  if (!data) return { ...base, kind: 'comment', isEmpty: false, data: {}, call: undefined }
  stream.assembly = addEvent(stream.assembly, data)
  stream.mayFollow = stream.assembly.hasEnd
  const { type, index, message, content_block: block, delta, usage } = data
  const { call } = stream.assembly.byIndex.get(index) ?? {}
  const isDelta = type === 'content_block_delta'
  const isTextDelta = isDelta && propertyOf(delta, 'type') === 'text_delta'
  let kind = KINDS.get(type) ?? 'comment'
  if (kind === 'other' && call !== undefined) kind = 'call'
  else if (isText(data)) kind = 'text'
  return {
    ...base,
    data,
    kind,
    text: textOf(propertyOf(isText(data) ? block : isTextDelta ? delta : undefined, 'text')),
    isEmpty: !isDelta && kind !== 'failed',
    isOver: type === 'message_stop',
    isTruncated: type === 'message_delta' && isCutOff(propertyOf(delta, 'stop_reason')),
    usage: type === 'message_start' ? propertyOf(message, 'usage') : usage,
    call: kind === 'call' ? call : undefined,
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
  const changes = number === undefined || number === index ? part.changes : { ...part.changes, index: String(number) }
  if (Object.keys(changes).length === 0) return [terminated(part.frame)]
  const json = Buffer.from(dataOf(part.frame) ?? '')
  return [withData(part.frame, withMembers(json, changes).toString('utf8'))]
}

function closeOpen(stream: MessagesStream): Buffer[] {
  stream.indexes.clear()
  if (stream.open === undefined) return []
  const index = stream.open
  stream.open = undefined
  return [eventFrame({ type: 'content_block_stop', index }, stream.lineEnd)]
}

/** Returns changes to the `message_delta` of a last answer. */
function stopChanges({ frame, data }: MessagesPart): Record<string, string> {
  const { delta } = data
  const reason = propertyOf(delta, 'stop_reason')
  const changed = stopOfAnswer(reason)
  const text = memberText(Buffer.from(dataOf(frame) ?? ''), 'delta')
  if (changed === reason || text === undefined) return {}
  return { delta: withMembers(Buffer.from(text), { stop_reason: JSON.stringify(changed) }).toString() }
}

const usageChange = (usage: unknown) => (isObject(usage) ? { usage: JSON.stringify(usage) } : {})

function withParts(part: MessagesPart, { blocked, hasRest, hasEnd, usage }: Kept): MessagesPart | undefined {
  const { call, kind } = part
  const isEnd = kind === 'end' || kind === 'failed'
  const isLeft = isEnd ? hasEnd : call === undefined ? hasRest : blocked !== 'all' && !blocked.has(call)
  if (!isLeft) return undefined
  return part.data['type'] === 'message_delta' ? { ...part, changes: usageChange(usage) } : part
}

/** Returns the footer at the end of the client's open text, as some clients show the last block alone. */
function footerEvents(footer: string, textEnd: readonly MessagesPart[], stream: MessagesStream): Buffer[] {
  if (stream.open === undefined || !stream.isTextOpen)
    return [...closeOpen(stream), ...textEvents(stream.next++, footer, stream.lineEnd)]
  const delta = { type: 'text_delta', text: footer }
  return [
    eventFrame({ type: 'content_block_delta', index: stream.open, delta }, stream.lineEnd),
    ...textEnd.flatMap((part) => render(part, stream)),
  ]
}

/** Returns Governor's own end after the fallback, or the provider's with the terminal state and all usage. */
function ending(end: StreamEnding<MessagesPart>, stream: MessagesStream): Buffer[] {
  const { parts, mode, usage, responses, metadata, fallback, footer, textEnd } = end
  const isAnswer = mode === 'answer'
  const bytes: Buffer[] = []
  if (isAnswer && !stream.hasBegun) {
    const message = { id: 'msg_governor', type: 'message', role: 'assistant', model: '', content: [] }
    const noEnd = { stop_reason: null, stop_sequence: null, usage: { input_tokens: 0, output_tokens: 0 } }
    bytes.push(eventFrame({ type: 'message_start', message: { ...message, ...noEnd } }, stream.lineEnd))
  }
  if (footer !== undefined) bytes.push(...footerEvents(footer, textEnd, stream))
  if (isAnswer) bytes.push(...closeOpen(stream))
  if (fallback !== undefined) bytes.push(...textEvents(stream.next++, fallback, stream.lineEnd))
  const last = fallback === undefined ? parts.findLast(({ data }) => data['type'] === 'message_delta') : undefined
  if (fallback !== undefined || (!last && isAnswer)) {
    const delta = { stop_reason: 'end_turn', stop_sequence: null }
    const total = isObject(usage) ? usage : { output_tokens: 0 }
    bytes.push(eventFrame({ type: 'message_delta', delta, usage: total, governor: metadata }, stream.lineEnd))
    return [...bytes, eventFrame({ type: 'message_stop' }, stream.lineEnd)]
  }
  for (const part of parts) {
    if (part !== last) {
      bytes.push(terminated(part.frame))
      continue
    }
    const changes = {
      ...(isAnswer ? stopChanges(part) : {}),
      ...(responses > 1 ? usageChange(usage) : {}),
      governor: JSON.stringify(metadata),
    }
    bytes.push(...render({ ...part, changes }, stream))
  }
  return bytes
}

export const messagesStream: StreamDialect<MessagesPart, MessagesStream> = {
  keepsOrder: true,
  start: () => new MessagesStream(),
  nextResponse(stream, mode) {
    // Outside of filter mode the response stays, as its calls are read after its end.
    if (mode === 'filter') stream.assembly = new Assembly()
    stream.mayFollow = false
  },
  parse,
  render,
  withParts,
  // The end of the text block that the client has open.
  endsText: ({ data: { type, index } }, { open, isTextOpen, indexes }) =>
    type === 'content_block_stop' && isTextOpen && open !== undefined && indexes.get(index) === open,
  closeOpen,
  assemble: ({ assembly }) => assembled(assembly),
  ending,
}
