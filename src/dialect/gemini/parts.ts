/** The parts of a content, in requests and responses: texts, calls, results. They are decoded on demand. */

import type { Work } from '../../core/bounds/work.ts'
import type { ResultSize, ToolCall, ToolResult } from '../../core/conversation/conversation.ts'
import { isObject, type Json, objectsOf, propertyOf, textOf } from '../../core/json-object.ts'
import { decodeStringToCompare, decodeToCompare } from '../../json/compare.ts'
import {
  elementsBy,
  type Member,
  MemberWalk,
  member,
  members,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  type Span,
  skipValue,
} from '../../json/scan.ts'
import { attachmentHashes, callAt, type Message, stringIn } from '../shared/request.ts'

/** The byte offsets of a part, and what it holds: `value` is its text, its call or its result. */
export interface PartSpan extends Span {
  readonly kind: 'text' | 'thought' | 'call' | 'result' | 'other'
  readonly value: Span
}

/** The API takes names in both of its spellings; the second is that of its definitions. */
const KINDS = [
  ['text', 'text'],
  ['functionCall', 'call'],
  ['functionResponse', 'result'],
  ['function_call', 'call'],
  ['function_response', 'result'],
] as const

const LETTER_T = 0x74
/** Steps to read what a part holds. */
const STEPS_PER_PART = 2

function partAt(json: Buffer, at: number, work: Work | undefined): PartSpan {
  work?.spend(STEPS_PER_PART)
  let kind: PartSpan['kind'] = 'other'
  let value: Span = { start: at, end: at }
  if (json[at] !== OPEN_BRACE) return { start: at, end: skipValue(json, at), kind, value }
  let isThought = false
  const field = new MemberWalk(json, at, work)
  while (field.next()) {
    const start = field.value
    const end = field.skip()
    const found = KINDS.find(([name]) => field.is(name))
    if (found && json[start] === (found[1] === 'text' ? QUOTE : OPEN_BRACE)) {
      kind = found[1]
      value = { start, end }
    } else if (field.is('thought')) isThought = json[start] === LETTER_T
  }
  return { start: at, end: field.end, kind: isThought && kind === 'text' ? 'thought' : kind, value }
}

/** Indexes the parts that start at `start`, a list or one part without a list. @throws {JsonScanError} */
export function partsAt(
  json: Buffer,
  start: number,
  work?: Work,
): { readonly parts: PartSpan[]; readonly end: number } {
  if (json[start] === OPEN_BRACKET) {
    const { elements: parts, end } = elementsBy(json, start, (at) => partAt(json, at, work))
    return { parts, end }
  }
  const only = partAt(json, start, work)
  return { parts: [only], end: only.end }
}

/** Returns a field of the API in either spelling; `undefined` if there is none. */
export function fieldIn(fields: readonly Member[], name: string): Member | undefined {
  return member(fields, name) ?? member(fields, inSnakeCase(name))
}

export function inSnakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

/** Returns a result. Its text is that of the only member of its response, as SDKs write it, or the whole in JSON. */
function resultOf(json: Buffer, value: Span, work: Work | undefined): ToolResult {
  const fields = members(json, value, work)
  const stated = member(fields, 'response')?.value
  const response = stated && decodeToCompare(json, stated, work)
  const values = isObject(response) ? Object.values(response) : []
  const [only] = values
  const text = values.length === 1 && typeof only === 'string' ? only : JSON.stringify(response ?? '')
  const attached = member(fields, 'parts')?.value
  const hashes = attached ? attachmentHashes(decodeToCompare(json, attached, work)) : []
  const callId = stringIn(json, fields, 'id')
  return { callId, name: stringIn(json, fields, 'name'), text: [text, ...hashes].join('\n') }
}

export function sizesOf(json: Buffer, parts: readonly PartSpan[]): ResultSize[] {
  const results = parts.filter(({ kind }) => kind === 'result')
  return results.map(({ start, end, value }) => {
    const fields = members(json, value)
    return { callId: stringIn(json, fields, 'id'), name: stringIn(json, fields, 'name'), bytes: end - start }
  })
}

/** Decodes texts for the user, calls and results; yields where others should have their turn. */
export function* messageOfParts(json: Buffer, parts: readonly PartSpan[], work?: Work): Generator<void, Message> {
  const texts: string[] = []
  const calls: ToolCall[] = []
  const results: ToolResult[] = []
  for (const { kind, value } of parts) {
    if (work?.isDue) yield
    if (kind === 'text') texts.push(decodeStringToCompare(json, value, work))
    else if (kind === 'call') calls.push(callAt(json, value, 'args', '{}', work))
    else if (kind === 'result') results.push(resultOf(json, value, work))
  }
  return { texts, calls, results }
}

export function picturesOf(json: Buffer, parts: readonly PartSpan[], work?: Work): string[] {
  const attachments = parts.filter(({ kind }) => kind === 'other')
  return attachmentHashes(attachments.map((part) => decodeToCompare(json, part, work)))
}

/** True if a decoded part is a call that the client has to make. */
export function isCall(part: Json): boolean {
  return isObject(part['functionCall'])
}

/** Returns the text that the user reads of decoded parts, without thoughts. */
export function textOfParts(parts: unknown): string {
  let all = ''
  for (const part of objectsOf(parts)) if (part['thought'] !== true) all += textOf(propertyOf(part, 'text'))
  return all
}
