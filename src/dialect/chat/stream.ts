/** Streamed Chat Completions responses: messages are put together from deltas however a provider splits them. */
import { isObject, type Json, objectIn, objectsOf, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { dataFrame, dataOf, type Frame, terminated, withData } from '../../sse/frames.ts'
import { DONE } from '../openai/api.ts'
import type { DialectState, Kept, Part, StreamDialect, StreamEnding } from '../shared/stream-engine.ts'
import {
  bufferedCallsOf,
  choicesOf,
  finishOfAnswer,
  hasCalls,
  isCutOff,
  isFailure,
  textOfMessage,
  withAddedText,
} from './reply.ts'

const CALL_KEYS: ReadonlySet<string> = new Set(['tool_calls', 'function_call'])

/** Fields whose value comes whole. Some providers repeat them in every piece; others leave them empty later. */
const WHOLE = new Set(['id', 'type', 'role', 'index'])

function grow(target: Map<string, unknown>, piece: Json, except: readonly string[] = []): void {
  for (const [key, value] of Object.entries(piece)) {
    if (except.includes(key)) continue
    const before = target.get(key)
    const isText = typeof before === 'string' && typeof value === 'string'
    let grown = value
    if (WHOLE.has(key)) grown = before || value
    else if (value === null || value === undefined) grown = before ?? value
    // A name comes whole; some providers repeat it with every piece of the arguments.
    else if (isText && !(key === 'name' && before === value)) grown = before + value
    else if (Array.isArray(before) && Array.isArray(value)) grown = [...before, ...value]
    target.set(key, grown)
  }
}

interface AssembledCall {
  readonly call: Map<string, unknown>
  /** The object under the call's kind: name and arguments. */
  readonly called: Map<string, unknown>
  kind: 'function' | 'custom'
}

/** The part of a message that has arrived. */
class Assembly {
  readonly fields = new Map<string, unknown>([['role', 'assistant']])
  readonly calls: AssembledCall[] = []
  /** Places in `calls`, by the indexes that the provider sends. */
  readonly places = new Map<unknown, number>()
  readonly functionCall = new Map<string, unknown>()
}

/** Returns the call that a piece belongs to: the newest, if it has no index; another id and name begin one. */
function placeOf({ calls, places }: Assembly, piece: Json): number {
  const { index, id, custom, function: called } = piece
  const hasIndex = typeof index === 'number'
  const known = hasIndex ? (places.get(index) ?? -1) : calls.length - 1
  const knownId = textOf(calls[known]?.call.get('id'))
  const isOther =
    textOf(id) !== '' &&
    knownId !== '' &&
    id !== knownId &&
    textOf(propertyOf(isObject(custom) ? custom : called, 'name')) !== ''
  if (calls[known] && !isOther) return known
  const place = calls.push({ call: new Map(), called: new Map(), kind: 'function' }) - 1
  if (hasIndex) places.set(index, place)
  return place
}

/** Adds a delta and returns, for each of its pieces of calls, the place of the call that it belongs to. */
function addDelta(assembly: Assembly, delta: Json): number[] {
  grow(assembly.fields, delta, ['tool_calls', 'function_call'])
  grow(assembly.functionCall, objectIn(delta, 'function_call'))
  const places: number[] = []
  for (const piece of objectsOf(delta['tool_calls'])) {
    const place = placeOf(assembly, piece)
    places.push(place)
    const entry = assembly.calls[place]
    if (!entry) continue
    if (isObject(piece['custom'])) entry.kind = 'custom'
    grow(entry.call, piece, ['index', 'function', 'custom'])
    grow(entry.called, objectIn(piece, entry.kind))
  }
  return places
}

/** Returns the message in the form of a response that is not streamed. */
function assembledMessage({ fields, calls, functionCall }: Assembly): Json {
  const listed = calls.map((one) => Object.fromEntries([...one.call, [one.kind, Object.fromEntries(one.called)]]))
  return {
    content: null,
    ...Object.fromEntries(fields),
    ...(listed.length > 0 ? { tool_calls: listed } : {}),
    ...(functionCall.size > 0 ? { function_call: Object.fromEntries(functionCall) } : {}),
  }
}

interface ChatPart extends Part {
  readonly chunk: Json
  readonly isChanged: boolean
  /** It is the end mark of the stream, `[DONE]`, and no chunk. */
  readonly isDone: boolean
  /** For each piece of a call in this chunk, the place of its call in the response. */
  readonly places: readonly number[]
}

class ChatStream implements DialectState {
  /** The fields that all chunks of the client's stream share. */
  envelope: Json | undefined
  /** The client has received the role of the message. */
  hasRole = false
  /** The message of the current response; only set while its calls are held. */
  assembly: Assembly | undefined
  hasChunk = false
  hasBegun = false
  /** The current response has a choice. */
  mayFollow = false
  /** The first response has several choices, whose calls are not held. */
  isUnfilterable = false
  lineEnd = '\n'
}

/** True for the choice that clients read. */
const isFirst = ({ index }: Json) => (index ?? 0) === 0

/** Returns the chunk with changed choices; the same object if it has none, or none changes. */
function withChoices(chunk: Json, change: (choice: Json, delta: Json) => Json): Json {
  const before = choicesOf(chunk)
  const choices = before.map((choice) => change(choice, objectIn(choice, 'delta')))
  return choices.every((choice, at) => choice === before[at]) ? chunk : { ...chunk, choices }
}

function finishes(chunk: Json): boolean {
  return choicesOf(chunk).some(({ finish_reason: reason }) => textOf(reason) !== '')
}

function addedText(chunk: Json): string {
  const choices = choicesOf(chunk).filter(isFirst)
  return choices.map((choice) => textOfMessage(objectIn(choice, 'delta'))).join('')
}

/** True if a chunk has no error, usage, finish reason or delta; a role may stand in one that `isOpening`. */
function isWithoutContent(chunk: Json, isOpening = false): boolean {
  const choices = choicesOf(chunk)
  const statesUsage = isObject(chunk['usage']) && !(isOpening && choices.length > 0)
  if (chunk['error'] || statesUsage || finishes(chunk)) return false
  const stated = choices.flatMap((choice) => Object.entries(objectIn(choice, 'delta')))
  return stated.every(([key, value]) => {
    const isNothing = value === null || value === '' || (Array.isArray(value) && value.length === 0)
    return isNothing || (isOpening && key === 'role')
  })
}

function parse(frame: Frame, stream: ChatStream, isLater: boolean): ChatPart {
  const data = dataOf(frame)
  const isDone = data?.trim() === DONE
  const chunk = data === undefined || isDone ? undefined : parseObject(data)
  const nothing = { text: '', places: [], chunk: {}, usage: undefined, isEmpty: false, isTruncated: false }
  const base = { ...nothing, frame, isLater, isChanged: false, isDone }
  if (!chunk) return { ...base, kind: isDone ? 'end' : 'comment', isOver: isDone && stream.hasChunk }
  stream.hasChunk = true
  const choices = choicesOf(chunk)
  const { id, object, created, model, usage } = chunk
  // Errors, and Azure's first chunk with its content filter results, have no choice and may lack these fields.
  if (choices.length > 0) {
    stream.envelope ??= { id, object, created, model }
    stream.hasBegun = true
    stream.mayFollow = true
  }
  stream.isUnfilterable ||= !isLater && !choices.every(isFirst)
  const text = addedText(chunk)
  const isOver = finishes(chunk)
  let kind: Part['kind'] = text === '' ? 'other' : 'text'
  const places: number[] = []
  for (const choice of choices) {
    const delta = objectIn(choice, 'delta')
    if (hasCalls(delta)) kind = 'call'
    if (stream.assembly) places.push(...addDelta(stream.assembly, delta))
  }
  if (isOver) kind = 'end'
  if (isFailure(chunk)) kind = 'failed'
  return {
    ...base,
    chunk,
    kind,
    text,
    isEmpty: isWithoutContent(chunk, true),
    isOver,
    isTruncated: isOver && isCutOff(chunk),
    usage: isObject(usage) ? usage : undefined,
    places,
  }
}

function render(part: ChatPart, stream: ChatStream): Buffer[] {
  const { frame, chunk, isLater, isChanged, isEmpty, kind } = part
  // The client has received such a beginning with the first response.
  if (isLater && isEmpty && stream.assembly) return []
  if (isLater && kind !== 'failed' && Array.isArray(chunk['choices'])) {
    // It gets the fields of the first response, and the role only once.
    const role = stream.hasRole ? {} : { role: 'assistant' }
    stream.hasRole ||= choicesOf(chunk).length > 0
    const merged = withChoices(chunk, (choice, { role: _role, ...delta }) => ({
      ...choice,
      delta: { ...role, ...delta },
    }))
    return [withData(frame, JSON.stringify({ ...merged, ...stream.envelope }))]
  }
  stream.hasRole ||= choicesOf(chunk).some((choice) => objectIn(choice, 'delta')['role'])
  return [isChanged ? withData(frame, JSON.stringify(chunk)) : terminated(frame)]
}

/** Returns the pieces of calls without those in `blocked`; those that are left are numbered from 0. */
function callsLeft(calls: readonly Json[], places: readonly number[], blocked: ReadonlySet<number>): Json[] {
  return calls.flatMap((piece, at) => {
    const place = places[at] ?? 0
    let index = place
    for (const other of blocked) if (other < place) index--
    return blocked.has(place) ? [] : { ...piece, index }
  })
}

function withParts(part: ChatPart, { blocked, hasRest, hasEnd, usage }: Kept): ChatPart | undefined {
  const { usage: _usage, error: _error, ...noEnd } = part.chunk
  const isAnswer = blocked === 'all'
  let chunk = withChoices(hasEnd ? part.chunk : noEnd, (choice, delta) => {
    const stated = choice['finish_reason']
    const reason = !hasEnd ? null : isAnswer ? finishOfAnswer(stated) : stated
    const isKept = ([key]: [string, unknown]) => (CALL_KEYS.has(key) ? !isAnswer : hasRest)
    const all = Object.entries(delta)
    const kept = Object.fromEntries(all.filter(isKept))
    const calls = kept['tool_calls']
    const isLess = !isAnswer && blocked.size > 0 && Array.isArray(calls)
    const left = isLess ? callsLeft(objectsOf(calls), part.places, blocked) : []
    if (left.length > 0) kept['tool_calls'] = left
    else if (isLess) delete kept['tool_calls']
    const isSame = !isLess && Object.keys(kept).length === all.length && reason === stated
    return isSame ? choice : { ...choice, delta: kept, finish_reason: reason }
  })
  if (usage !== undefined && isObject(chunk['usage'])) chunk = { ...chunk, usage }
  if (chunk === part.chunk) return part
  if (isWithoutContent(chunk, !hasEnd)) return undefined
  const text = addedText(chunk)
  const kind = text === '' ? 'other' : 'text'
  const isEmpty = isWithoutContent(chunk, true)
  return { ...part, chunk, kind, text, isEmpty, isChanged: true, isLater: part.isLater || !hasEnd }
}

function governorChunk({ envelope, lineEnd }: ChatStream, fields: Json): Buffer {
  return dataFrame(JSON.stringify({ object: 'chat.completion.chunk', ...envelope, ...fields }), undefined, lineEnd)
}

function textChunk(stream: ChatStream, delta: Json): Buffer {
  return governorChunk(stream, { choices: [{ index: 0, delta, finish_reason: null }] })
}

/** Returns the fallback, or the provider's own end with terminal state, footer and the usage of all responses. */
function ending(end: StreamEnding<ChatPart>, stream: ChatStream): Buffer[] {
  const { parts, mode, metadata, fallback, usage, responses, footer } = end
  const bytes: Buffer[] = []
  const kept = fallback === undefined ? parts.filter(({ isDone }) => !isDone) : []
  const last = kept.findLast(({ isOver }) => isOver)
  // Some providers send text beside the finish reason.
  const lastText = kept.findLast(({ text }) => text !== '')
  const done = parts.find(({ isDone }) => isDone)
  if (fallback !== undefined) bytes.push(textChunk(stream, { role: 'assistant', content: fallback }))
  else if (footer !== undefined && !lastText) bytes.push(textChunk(stream, { content: footer }))
  for (const part of kept) {
    let { chunk } = part
    if (part === lastText && footer !== undefined) {
      chunk = withChoices(chunk, (choice, delta) =>
        isFirst(choice) ? { ...choice, delta: withAddedText(delta, footer) } : choice,
      )
    }
    if (responses > 1 && isObject(chunk['usage'])) chunk = { ...chunk, usage }
    if (part === last) chunk = { ...chunk, governor: metadata }
    const isChanged = part.isChanged || chunk !== part.chunk
    bytes.push(...render({ ...part, chunk, isChanged }, stream))
  }
  // Some providers send no finish reason. The client needs one, and the terminal state beside it.
  if (fallback !== undefined || (!last && mode === 'answer')) {
    const choices = [{ index: 0, delta: {}, finish_reason: 'stop' }]
    bytes.push(governorChunk(stream, { choices, governor: metadata }))
  }
  if (fallback !== undefined && isObject(usage)) bytes.push(governorChunk(stream, { choices: [], usage }))
  if (done) bytes.push(terminated(done.frame))
  else if (mode === 'answer') bytes.push(dataFrame(DONE, undefined, stream.lineEnd))
  return bytes
}

export const chatStream: StreamDialect<ChatPart, ChatStream> = {
  start: (mode) => Object.assign(new ChatStream(), { assembly: mode === 'filter' ? new Assembly() : undefined }),
  nextResponse(stream, mode) {
    stream.assembly = mode === 'filter' ? new Assembly() : undefined
    stream.hasChunk = false
    stream.mayFollow = false
  },
  parse,
  render,
  withParts,
  separator: (stream) => [textChunk(stream, { content: '\n\n' })],
  assemble: ({ assembly }) => assembly && bufferedCallsOf(assembledMessage(assembly)),
  ending,
}
