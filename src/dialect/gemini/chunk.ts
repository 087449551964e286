/**
 * A `GenerateContentResponse`: a whole response, one of a list of them, or the data of an event. Only the parts and
 * members that change are written again.
 */
import { isObject, type Json, objectIn, objectsOf, parseObject, textOf } from '../../core/json-object.ts'
import type { Terminal } from '../../core/terminal.ts'
import { type Edit, setMember, withMembers } from '../../json/edit.ts'
import { decode, elements, kindAt, member, members, root, rootStart, type Span } from '../../json/scan.ts'
import type { BufferedCalls } from '../dialect.ts'
import { drained } from '../shared/request.ts'
import { isCall, messageOfParts, partsAt, textOfParts } from './parts.ts'

export interface ChunkChange {
  /** Returns true if a part stays. `call`: its place among the calls of the response. */
  keeps?(part: Json, call: number): boolean
  /** Parts (JSON texts) to put before and after its own. */
  readonly before?: readonly string[]
  readonly after?: readonly string[]
  /** The place of the call that needs a signature, as the one with the signature was removed. */
  readonly unsigned?: number | undefined
  /** Text to add at the end of its last text. */
  readonly footer?: string | undefined
  /** It becomes a part of a last answer, which is not cut off for the client: SDKs and gemini-cli may throw on one. */
  readonly isAnswer?: boolean
  readonly usage?: unknown
  readonly governor?: Terminal | undefined
}

/**
 * What the API accepts as the signature of a call that it did not make itself. Source:
 * ai.google.dev/gemini-api/docs/thought-signatures
 */
const NO_SIGNATURE = 'skip_thought_signature_validator'
/** A chunk without parts makes the SDK forget the whole answer; the provider sends this as well. */
const EMPTY_PART = '{"text":""}'

/** Returns the JSON text of a part with a text. */
export function textPart(text: string): string {
  return JSON.stringify({ text })
}

/** Returns the candidates of a decoded chunk: the first is the one that clients read. */
export function candidatesOf(chunk: Json): Json[] {
  return objectsOf(chunk['candidates'])
}

export function partsOf(candidate: Json | undefined): Json[] {
  return objectsOf(objectIn(candidate, 'content')['parts'])
}

/** Returns the reason with which a chunk ends its response; empty if it does not end it. */
export function reasonOf(chunk: Json): string {
  const reason = textOf(candidatesOf(chunk)[0]?.['finishReason'])
  return reason || textOf(objectIn(chunk, 'promptFeedback')['blockReason'])
}

/** True if the reason is another one than that the model has finished. */
export function isCutOff(reason: string): boolean {
  return reason !== '' && reason !== 'STOP'
}

export function callsIn(chunk: Json): Json[] {
  return partsOf(candidatesOf(chunk)[0]).filter(isCall)
}

export function textOfChunk(chunk: Json): string {
  return textOfParts(partsOf(candidatesOf(chunk)[0]))
}

/** Returns where the first call that is left needs a signature: the provider signs only the first of all calls. */
export function unsignedAfter(calls: readonly Json[], removed: ReadonlySet<number>): number | undefined {
  const first = calls.findIndex((_, at) => !removed.has(at))
  const isSigned = (call: Json | undefined) => typeof call?.['thoughtSignature'] === 'string'
  return first > 0 && !isSigned(calls[first]) && calls.slice(0, first).some(isSigned) ? first : undefined
}

/**
 * Returns where the chunks of a whole body are: the object itself, or the elements of a list. @throws {JsonScanError}
 */
export function chunksAt(body: Buffer): readonly Span[] {
  const whole = root(body)
  return kindAt(body, whole) === 'array' ? elements(body, whole) : [whole]
}

/** Decodes the chunks of a whole body, also after a byte order mark; an empty list if it is not JSON. */
export function chunksOf(body: Buffer): Json[] {
  const chunks = parseObject(`{"all":${body.toString('utf8', rootStart(body))}}`)?.['all']
  return isObject(chunks) ? [chunks] : objectsOf(chunks)
}

/** Where the candidates of a chunk have their members and their parts. */
function* candidatesAt(json: Buffer, chunk: Span) {
  const list = member(members(json, chunk), 'candidates')?.value
  for (const object of list && kindAt(json, list) === 'array' ? elements(json, list) : []) {
    const fields = members(json, object)
    const content = member(fields, 'content')?.value
    const inner = content && kindAt(json, content) === 'object' ? members(json, content) : []
    const parts = member(inner, 'parts')?.value
    yield { object, fields, content, inner, parts: parts && kindAt(json, parts) === 'array' ? parts : undefined }
  }
}

/** Returns the parts (JSON texts) of the first candidate in a chunk. */
export function rawParts(json: Buffer, chunk: Span): string[] {
  for (const { parts } of candidatesAt(json, chunk))
    return parts ? elements(json, parts).map(({ start, end }) => json.toString('utf8', start, end)) : []
  return []
}

/**
 * Returns the calls and the text of a response, made of its parts (JSON texts), which keep every digit and signature.
 */
export function bufferedCallsOf(parts: readonly string[]): BufferedCalls {
  // The API refuses a part with an empty text.
  const content = `[${parts.filter((part) => part !== EMPTY_PART).join(',')}]`
  const json = Buffer.from(content)
  const { texts, calls } = drained(messageOfParts(json, partsAt(json, 0).parts))
  return { calls, text: texts.join(''), message: content }
}

/** Returns the parts (JSON texts) of a candidate that are left after a change; `undefined` if they are its own. */
function changedParts(json: Buffer, list: Span | undefined, firstCall: number, change: ChunkChange) {
  const { keeps, before = [], after = [], unsigned, footer } = change
  const kept: string[] = []
  let call = firstCall
  let lastText = -1
  let isChanged = before.length + after.length > 0
  for (const span of list ? elements(json, list) : []) {
    const value = decode(json, span)
    const part = isObject(value) ? value : {}
    const place = isCall(part) ? call++ : -1
    if (keeps && !keeps(part, place)) {
      isChanged = true
      continue
    }
    let text = json.toString('utf8', span.start, span.end)
    if (place === unsigned) {
      isChanged = true
      text = withMembers(Buffer.from(text), { thoughtSignature: JSON.stringify(NO_SIGNATURE) }).toString()
    }
    if (textOfParts([part]) !== '') lastText = kept.length
    kept.push(text)
  }
  const parts = [...before, ...kept, ...after]
  if (after.length > 0) lastText = kept.length
  if (footer !== undefined) {
    isChanged = true
    const at = before.length + lastText
    const shown = lastText === -1 ? '' : textOf(parseObject(parts[at] ?? '')?.['text'])
    if (lastText === -1) parts.push(textPart(footer))
    else parts[at] = withMembers(Buffer.from(parts[at] ?? ''), { text: JSON.stringify(shown + footer) }).toString()
  }
  return isChanged ? parts : undefined
}

/** Returns the edits for a change of the chunk at `chunk`. @throws {JsonScanError} */
export function chunkEdits(json: Buffer, chunk: Span, change: ChunkChange, firstCall = 0): Edit[] {
  const edits: Edit[] = []
  let isFirst = true
  for (const { object, fields, content, inner, parts: list } of candidatesAt(json, chunk)) {
    const { keeps } = change
    const parts = changedParts(json, list, firstCall, isFirst ? change : keeps ? { keeps } : {})
    if (parts) {
      const text = `[${(parts.length > 0 ? parts : [EMPTY_PART]).join(',')}]`
      if (list) edits.push({ ...list, text })
      else if (content) edits.push(setMember(content, inner, 'parts', text))
      else edits.push(setMember(object, fields, 'content', `{"parts":${text},"role":"model"}`))
    }
    const reason = member(fields, 'finishReason')?.value
    if (change.isAnswer && reason && isCutOff(textOf(decode(json, reason)))) edits.push({ ...reason, text: '"STOP"' })
    isFirst = false
  }
  const fields = members(json, chunk)
  const set = (key: string, value: unknown) => edits.push(setMember(chunk, fields, key, JSON.stringify(value)))
  if (change.usage !== undefined) set('usageMetadata', change.usage)
  if (change.governor) set('governor', change.governor)
  return edits
}
