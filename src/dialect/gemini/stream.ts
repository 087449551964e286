/** Streamed Gemini responses for the stream engine: every event holds whole parts, and no event has a name. */
import { isObject, type Json, objectIn, parseObject } from '../../core/json-object.ts'
import { applyEdits } from '../../json/edit.ts'
import { root } from '../../json/scan.ts'
import { dataFrame, dataOf, type Frame, terminated, withData } from '../../sse/frames.ts'
import type { DialectState, Kept, Part, StreamDialect, StreamEnding } from '../shared/stream-engine.ts'
import {
  bufferedCallsOf,
  type ChunkChange,
  callsIn,
  candidatesOf,
  chunkEdits,
  isCutOff,
  partsOf,
  rawParts,
  reasonOf,
  textOfChunk,
  unsignedAfter,
} from './chunk.ts'
import { isCall } from './parts.ts'
import { envelopeOf, textChunk } from './reply.ts'

interface GeminiPart extends Part {
  /** The data of its event, which may be changed; empty if it has none. */
  readonly json: Buffer
  readonly chunk: Json
  readonly isChanged: boolean
  /** The place of its first call among `calls`, all calls of its response. */
  readonly firstCall: number
  readonly calls: readonly Json[]
}

class GeminiStream implements DialectState {
  hasBegun = false
  /** The current response has a candidate. */
  mayFollow = false
  /** It has several candidates, or calls whose arguments come in pieces. */
  isUnfilterable = false
  /** The parts (JSON texts) and the calls of the current response, in `filter`. */
  parts: string[] | undefined
  calls: Json[] = []
  envelope: Json | undefined
  lineEnd = '\n'
}

const isNothing = (part: Json): boolean => Object.keys(part).length === 1 && part['text'] === ''

function parse(frame: Frame, stream: GeminiStream, isLater: boolean): GeminiPart {
  const data = dataOf(frame)
  const chunk = data === undefined ? undefined : parseObject(data)
  const { calls } = stream
  const firstCall = calls.length
  const base = { frame, isLater, isChanged: false, firstCall, calls, text: '', isTruncated: false }
  if (!chunk) {
    const nothing = { json: Buffer.alloc(0), chunk: {}, usage: undefined, isEmpty: false, isOver: false }
    return { ...base, ...nothing, kind: 'comment' }
  }
  const json = Buffer.from(data ?? '')
  const candidates = candidatesOf(chunk)
  const called = callsIn(chunk)
  const reason = reasonOf(chunk)
  const text = textOfChunk(chunk)
  if (candidates.length > 0) {
    stream.envelope ??= envelopeOf(chunk)
    stream.hasBegun = true
    stream.mayFollow = true
  }
  const isSeveral = candidates.length > 1 || candidates.some(({ index = 0 }) => index !== 0)
  // On demand Vertex AI sends the arguments of a call in pieces.
  const isInPieces = called.some(
    ({ functionCall: call }) => isObject(call) && ('willContinue' in call || 'partialArgs' in call),
  )
  stream.isUnfilterable ||= !isLater && (isSeveral || isInPieces)
  stream.parts?.push(...rawParts(json, root(json)))
  calls.push(...called)
  const isOver = reason !== ''
  const isFailed = 'error' in chunk
  let kind: Part['kind'] = text === '' ? 'other' : 'text'
  if (called.length > 0) kind = 'call'
  if (isOver) kind = 'end'
  if (isFailed) kind = 'failed'
  const isEmpty = !isOver && !isFailed && partsOf(candidates[0]).every(isNothing)
  const usage = isObject(chunk['usageMetadata']) ? chunk['usageMetadata'] : undefined
  return { ...base, json, chunk, kind, text, isEmpty, isOver, isTruncated: isCutOff(reason), usage }
}

/** Returns the part after a change; the same part if nothing in it changes. */
function changed(part: GeminiPart, change: ChunkChange): GeminiPart {
  const edits = chunkEdits(part.json, root(part.json), change, part.firstCall)
  if (edits.length === 0) return part
  const json = applyEdits(part.json, edits)
  const chunk = parseObject(json.toString('utf8')) ?? {}
  return { ...part, json, chunk, isChanged: true, text: textOfChunk(chunk) }
}

/** Returns the part without the end, usage and errors of its response. */
function contentAlone(part: GeminiPart): GeminiPart {
  const candidates = [{ content: objectIn(candidatesOf(part.chunk)[0], 'content'), index: 0 }]
  const json = Buffer.from(JSON.stringify({ ...envelopeOf(part.chunk), candidates }))
  return { ...part, json, kind: 'other', isOver: false, isLater: true, isChanged: true }
}

function withParts(part: GeminiPart, { blocked, hasRest, hasEnd, usage }: Kept): GeminiPart | undefined {
  const isAnswer = blocked === 'all'
  const rest = changed(hasEnd ? part : contentAlone(part), {
    isAnswer,
    keeps: (one, call) => (isCall(one) ? !isAnswer && !blocked.has(call) : hasRest),
    unsigned: isAnswer ? undefined : unsignedAfter(part.calls, blocked),
    usage: part.isOver ? usage : undefined,
  })
  if (rest === part) return part
  const isLeft = rest.isOver || rest.kind === 'failed' || !partsOf(candidatesOf(rest.chunk)[0]).every(isNothing)
  return isLeft ? { ...rest, kind: rest.text === '' ? 'other' : 'text' } : undefined
}

function render({ frame, json, isChanged, isLater, isEmpty }: GeminiPart, { parts }: GeminiStream): Buffer[] {
  // The client has received the beginning of a response already.
  if (isLater && isEmpty && parts) return []
  return [isChanged ? withData(frame, json.toString('utf8')) : terminated(frame)]
}

function governorFrame({ envelope, lineEnd }: GeminiStream, chunk: Json): Buffer {
  return dataFrame(JSON.stringify({ ...chunk, ...envelope }), undefined, lineEnd)
}

/** Returns the fallback, or the provider's own end with terminal state, footer and the usage of all responses. */
function ending(end: StreamEnding<GeminiPart>, stream: GeminiStream): Buffer[] {
  const { parts, mode, metadata: governor, fallback, usage, responses, footer } = end
  const isAnswer = mode === 'answer'
  const own = { usageMetadata: usage, governor }
  if (fallback !== undefined) return [governorFrame(stream, { ...textChunk(fallback, true), ...own })]
  const last = parts.findLast(({ isOver }) => isOver)
  const lastText = parts.findLast(({ text }) => text !== '')
  const bytes = footer === undefined || lastText ? [] : [governorFrame(stream, textChunk(footer, false))]
  for (const part of parts) {
    const isLast = part === last
    const change: ChunkChange = {
      footer: part === lastText ? footer : undefined,
      usage: isLast && responses > 1 ? usage : undefined,
      governor: isLast ? governor : undefined,
    }
    bytes.push(...render(part.kind === 'comment' ? part : changed(part, change), stream))
  }
  // Some servers send no reason. The client needs one, and the terminal state beside it.
  if (!last && isAnswer) bytes.push(governorFrame(stream, { ...textChunk('', true), ...own }))
  return bytes
}

export const geminiStream: StreamDialect<GeminiPart, GeminiStream> = {
  start: (mode) => Object.assign(new GeminiStream(), { parts: mode === 'filter' ? [] : undefined }),
  nextResponse(stream, mode) {
    stream.parts = mode === 'filter' ? [] : undefined
    stream.calls = []
    stream.mayFollow = false
  },
  parse,
  // The last chunk counts.
  joinUsage: (before, stated) => stated ?? before,
  render,
  withParts,
  separator: (stream) => [governorFrame(stream, textChunk('\n\n', false))],
  assemble: ({ parts }) => parts && bufferedCallsOf(parts),
  ending,
}
