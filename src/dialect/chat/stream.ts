/** Streamed Chat Completions responses for the stream engine. One chunk can contain text, calls and the end. */
import { isObject, type Json, parseObject } from '../../core/json-object.ts'
import { dataFrame, dataOf, type Frame, terminated, withData } from '../../sse/frames.ts'
import { DONE } from '../openai/api.ts'
import type { KeptCalls, Part, StreamDialect, StreamEnding, StreamMode } from '../shared/stream-engine.ts'
import {
  type Assembly,
  addDelta,
  assembledMessage,
  callPieces,
  hasCallPieces,
  newAssembly,
} from './assembly.ts'
import { bufferedCallsOf } from './buffered-calls.ts'
import {
  addedText,
  deltaOf,
  envelopeOf,
  finishes,
  isWithoutContent,
  namesRole,
  withDeltas,
  withoutRole,
} from './chunk.ts'
import { choicesOf, finishWithoutCalls, isCutOff, isFailure, withAddedText, withoutCalls } from './wire.ts'

interface ChatPart extends Part {
  readonly chunk: Json
  readonly isChanged: boolean
  /** It is the end mark of the stream, `[DONE]`, and no chunk. */
  readonly isDone: boolean
  /** For each piece of a call in this chunk, the place of its call in the response. */
  readonly places: readonly number[]
}

/** The state of one client's stream. */
interface ChatStream {
  /** The fields that all chunks of the client's stream share. */
  envelope: Json | undefined
  /** The client has received the role of the message. */
  hasRole: boolean
  /** The message of the current response; only set while its calls are held. */
  assembly: Assembly | undefined
  /** The current response contains a chunk. */
  hasChunk: boolean
  /** The current response contains a choice. */
  hasChoices: boolean
  /** The first response has several choices, whose calls are not held. */
  hasSeveralChoices: boolean
}

const start = (mode: StreamMode): ChatStream => ({
  envelope: undefined,
  hasRole: false,
  assembly: mode === 'filter' ? newAssembly() : undefined,
  hasChunk: false,
  hasChoices: false,
  hasSeveralChoices: false,
})

function nextResponse(stream: ChatStream, mode: StreamMode): void {
  stream.assembly = mode === 'filter' ? newAssembly() : undefined
  stream.hasChunk = false
  stream.hasChoices = false
}

/** True for a chunk without content for the user, as one with only the role; usage beside a choice is no content. */
function isEmptyChunk({ usage, ...chunk }: Json): boolean {
  const rest = choicesOf(chunk).length > 0 ? chunk : { ...chunk, usage }
  return isWithoutContent(withDeltas(rest, withoutRole))
}

function parse(frame: Frame, stream: ChatStream, isLater: boolean): ChatPart {
  const data = dataOf(frame)
  const isDone = data?.trim() === DONE
  const chunk = data === undefined || isDone ? undefined : parseObject(data)
  const base = { frame, isLater, isChanged: false, text: '', places: [], chunk: {}, usage: undefined, isDone }
  if (!chunk)
    return { ...base, kind: isDone ? 'end' : 'comment', isEmpty: false, isOver: isDone && stream.hasChunk }
  stream.hasChunk = true
  const choices = choicesOf(chunk)
  // Errors, and Azure's first chunk with its content filter results, have no choice and may lack these fields.
  if (choices.length > 0) stream.envelope ??= envelopeOf(chunk)
  stream.hasChoices ||= choices.length > 0
  stream.hasSeveralChoices ||= !isLater && choices.some((choice) => (choice['index'] ?? 0) !== 0)
  const deltas = choices.map(deltaOf)
  const text = addedText(chunk)
  let kind: Part['kind'] = text === '' ? 'other' : 'text'
  if (deltas.some(hasCallPieces)) kind = 'call'
  if (finishes(chunk)) kind = 'end'
  if (isFailure(chunk)) kind = 'failed'
  return {
    ...base,
    chunk,
    kind,
    text,
    isEmpty: isEmptyChunk(chunk),
    isOver: finishes(chunk),
    usage: isObject(chunk['usage']) ? chunk['usage'] : undefined,
    places: deltas.flatMap((delta) => (stream.assembly ? addDelta(stream.assembly, delta) : [])),
  }
}

/** Returns the part with another chunk, which has content. */
function changed(part: ChatPart, chunk: Json): ChatPart {
  return chunk === part.chunk
    ? part
    : { ...part, chunk, isChanged: true, isEmpty: false, text: addedText(chunk) }
}

function render(part: ChatPart, stream: ChatStream): Buffer[] {
  const { frame, chunk, isLater, isChanged, isEmpty, kind } = part
  // The client has received such a beginning with the first response.
  if (isLater && isEmpty && stream.assembly) return []
  if (isLater && kind !== 'failed' && Array.isArray(chunk['choices'])) {
    // It gets the fields of the first response, and the role only once.
    const role = stream.hasRole ? {} : { role: 'assistant' }
    stream.hasRole ||= choicesOf(chunk).length > 0
    const merged = withDeltas(chunk, (delta) => ({ ...role, ...withoutRole(delta) }))
    return [withData(frame, JSON.stringify({ ...merged, ...stream.envelope }))]
  }
  stream.hasRole ||= namesRole(chunk)
  return [isChanged ? withData(frame, JSON.stringify(chunk)) : terminated(frame)]
}

/** Returns the chunk without calls; the same object if it has none. */
function withoutChunkCalls(chunk: Json): Json {
  let isChanged = false
  const choices = choicesOf(chunk).map((choice) => {
    const delta = deltaOf(choice)
    const reason = finishWithoutCalls(choice['finish_reason'])
    const hasCalls = 'tool_calls' in delta || 'function_call' in delta
    if (!hasCalls && reason === choice['finish_reason']) return choice
    isChanged = true
    return { ...choice, delta: withoutCalls(delta), finish_reason: reason }
  })
  return isChanged ? { ...chunk, choices } : chunk
}

function withoutAllCalls(part: ChatPart): ChatPart | undefined {
  const chunk = withoutChunkCalls(part.chunk)
  if (chunk === part.chunk) return part
  if (isWithoutContent(chunk)) return undefined
  return { ...changed(part, chunk), kind: part.text === '' ? 'other' : 'text', isEmpty: isEmptyChunk(chunk) }
}

/** Returns the part without calls, finish reason, error and usage; `undefined` if nothing is left. */
function besideCalls(part: ChatPart): ChatPart | undefined {
  const { usage: _usage, error: _error, ...chunk } = part.chunk
  const choices = choicesOf(chunk).map((choice) => ({
    ...choice,
    delta: withoutRole(withoutCalls(deltaOf(choice))),
    finish_reason: null,
  }))
  const rest = { ...chunk, choices }
  return choices.length === 0 || isWithoutContent(rest)
    ? undefined
    : { ...changed(part, rest), isLater: true }
}

/** Returns the chunk without the calls in `blocked`; those that are left are numbered from 0. */
function withoutBlocked(chunk: Json, places: readonly number[], blocked: ReadonlySet<number>): Json {
  return withDeltas(chunk, (delta) => {
    if (!Array.isArray(delta['tool_calls'])) return delta
    const { tool_calls: _calls, ...rest } = delta
    const kept = callPieces(delta).flatMap((piece, at) => {
      const place = places[at] ?? 0
      if (blocked.has(place)) return []
      return [{ ...piece, index: place - [...blocked].filter((blockedPlace) => blockedPlace < place).length }]
    })
    return kept.length > 0 ? { ...rest, tool_calls: kept } : rest
  })
}

function keepCalls(part: ChatPart, { blocked, hasShownRest, usage }: KeptCalls): ChatPart | undefined {
  if (part.isDone) return part
  // The client has all but the calls and the end.
  const rest = !hasShownRest
    ? part.chunk
    : withDeltas(part.chunk, ({ tool_calls: calls, function_call: call }) => ({
        ...(calls === undefined ? {} : { tool_calls: calls }),
        ...(call === undefined ? {} : { function_call: call }),
      }))
  const kept = blocked.size > 0 ? withoutBlocked(rest, part.places, blocked) : rest
  if (kept !== part.chunk && isWithoutContent(kept)) return undefined
  const isSummed = usage !== undefined && isObject(kept['usage'])
  return { ...changed(part, isSummed ? { ...kept, usage } : kept), isEmpty: false }
}

function governorChunk({ envelope }: ChatStream, fields: Json): Buffer {
  return dataFrame(JSON.stringify({ object: 'chat.completion.chunk', ...envelope, ...fields }))
}

function textChunk(stream: ChatStream, delta: Json): Buffer {
  return governorChunk(stream, { choices: [{ index: 0, delta, finish_reason: null }] })
}

function finishChunk(stream: ChatStream, governor: unknown): Buffer {
  return governorChunk(stream, { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], governor })
}

/**
 * Returns the provider's own end, with the terminal state beside its last finish reason, the footer after the text of
 * its first choice, and the usage of all responses.
 */
function providersEnd(ending: StreamEnding<ChatPart>, stream: ChatStream): Buffer[] {
  const { mode, metadata, usage, responses, footer } = ending
  const parts = ending.parts.filter(({ isDone }) => !isDone)
  const last = parts.findLast(({ chunk }) => finishes(chunk))
  // Some providers send text beside the finish reason.
  const lastText = parts.findLast(({ text }) => text !== '')
  const bytes = footer === undefined || lastText ? [] : [textChunk(stream, { content: footer })]
  for (const part of parts) {
    const kept = mode === 'answer' ? withoutChunkCalls(part.chunk) : part.chunk
    const choices = choicesOf(kept).map((choice) =>
      (choice['index'] ?? 0) === 0 && footer !== undefined
        ? { ...choice, delta: withAddedText(deltaOf(choice), footer) }
        : choice,
    )
    const said = part === lastText && footer !== undefined ? { ...kept, choices } : kept
    const summed = responses > 1 && isObject(said['usage']) ? { ...said, usage } : said
    const chunk = part === last ? { ...summed, governor: metadata } : summed
    bytes.push(...render(changed(part, chunk), stream))
  }
  // Some providers send no finish reason. The client needs one, and the terminal state beside it.
  return last || mode !== 'answer' ? bytes : [...bytes, finishChunk(stream, metadata)]
}

function ending(end: StreamEnding<ChatPart>, stream: ChatStream): Buffer[] {
  const { parts, mode, metadata, fallback, usage } = end
  const out =
    fallback === undefined
      ? providersEnd(end, stream)
      : [
          textChunk(stream, { role: 'assistant', content: fallback }),
          finishChunk(stream, metadata),
          ...(isObject(usage) ? [governorChunk(stream, { choices: [], usage })] : []),
        ]
  const done = parts.find(({ isDone }) => isDone)
  if (done) return [...out, terminated(done.frame)]
  return mode === 'answer' ? [...out, dataFrame(DONE)] : out
}

/** How the stream engine reads and writes Chat Completions. */
export const chatStream: StreamDialect<ChatPart, ChatStream> = {
  start,
  nextResponse,
  parse,
  render,
  withoutAllCalls,
  withoutBlocked: keepCalls,
  besideCalls,
  separator: (stream) => [textChunk(stream, { content: '\n\n' })],
  assemble: ({ assembly }) => assembly && bufferedCallsOf(assembledMessage(assembly)),
  isUnfilterable: ({ hasSeveralChoices }) => hasSeveralChoices,
  mayFollow: ({ hasChoices }) => hasChoices,
  hasBegun: ({ envelope }) => envelope !== undefined,
  isTruncated: (parts) => parts.some(({ chunk }) => isCutOff(chunk)),
  ending,
}
