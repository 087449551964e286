/** Reads and edits requests that are an object with a list of messages or items. */
import type { Role } from '../../core/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import { nameOf } from '../../core/hash.ts'
import { isObject, type Json, MAX_LENGTH, objectsOf, textOf } from '../../core/json-object.ts'
import { TooMuchToRead } from '../../core/work.ts'
import { decodeToCompare } from '../../json/compare.ts'
import { appendElement, appendParagraph, type Edit } from '../../json/edit.ts'
import type { ListIndex } from '../../json/list.ts'
import {
  CLOSE_BRACKET,
  decode,
  decodeStringIn,
  elements,
  isString,
  kindAt,
  type Member,
  member,
  members,
  OPEN_BRACKET,
  QUOTE,
  type Span,
  skipSpace,
  skipString,
} from '../../json/scan.ts'

const LETTER_T = 0x74

/** The byte offsets of one item of the list, and its role. */
export interface ListedItem extends Span {
  readonly role: Role
}

/** The name of a role in a dialect. Lists are searched in order, so frequent roles come first. */
export type NamedRole = readonly [name: string, role: Role]

/** Returns the role that the value between two offsets names. An unknown role is `system`: `user` would start a run. */
export function roleOf(json: Buffer, start: number, end: number, roles: readonly NamedRole[]): Role {
  if (json[start] !== QUOTE) return 'system'
  for (const [name, role] of roles) if (isString(json, start, end, name)) return role
  return 'system'
}

/** A function that computes the value of each index once, and the values so far. */
export type Memo<T> = ((at: number) => T) & { readonly values: Map<number, T> }

/** Returns a function that computes the value of each index once. */
export function memoize<T>(compute: (at: number) => T): Memo<T> {
  const values = new Map<number, T>()
  const valueAt = (at: number): T => {
    const cached = values.get(at)
    if (cached !== undefined) return cached
    const value = compute(at)
    values.set(at, value)
    return value
  }
  return Object.assign(valueAt, { values })
}

/** True if the value is a list with at least one item. */
export function holdsItems(json: Buffer, value: Span | undefined): boolean {
  if (value === undefined || json[value.start] !== OPEN_BRACKET) return false
  return json[skipSpace(json, value.start + 1)] !== CLOSE_BRACKET
}

/** Returns the string that starts at `at`; empty if there is no string, or one longer than any name or id. */
export function stringAt(json: Buffer, at: number | undefined): string {
  if (at === undefined || json[at] !== QUOTE) return ''
  const end = skipString(json, at)
  return end - at > MAX_LENGTH ? '' : decodeStringIn(json, { start: at, end })
}

/** Returns the string under `key`; empty if there is no string, or one longer than any name or id. */
export function stringIn(json: Buffer, fields: readonly Member[], key: string): string {
  return stringAt(json, member(fields, key)?.value.start)
}

/** True if the value under `key` is `true`. */
export function isTrue(json: Buffer, fields: readonly Member[], key: string): boolean {
  const value = member(fields, key)?.value
  return value !== undefined && json[value.start] === LETTER_T
}

/** Decodes a top-level field; `undefined` if it is missing, or larger than any API accepts. */
export function fieldOf({ json, work, fields }: ListIndex<Span>, name: string): unknown {
  const value = member(fields, name)?.value
  try {
    return value && decodeToCompare(json, value, work)
  } catch (error) {
    if (error instanceof TooMuchToRead) return undefined
    throw error
  }
}

/** Appends a text to the item at an index; `undefined` if it can't. */
export type AddText = (at: number, text: string) => Edit | undefined

/**
 * Returns edits for a notice: a message of its own in the `system` or `user` channel, for which an input that is a text
 * becomes a list; otherwise at the end of the newest tool result or user message, whichever is later. `undefined` if
 * that can't hold it.
 */
export function noticeIn(
  { json, list, items }: ListIndex<ListedItem>,
  text: string,
  channel: Channel,
  addText: AddText,
): Edit[] | undefined {
  if (items.length === 0) return undefined
  if (channel === 'system' || channel === 'user') {
    const message = JSON.stringify({ role: channel, content: text })
    if (kindAt(json, list) === 'array') return [appendElement(json, list, message)]
    const input = json.toString('utf8', list.start, list.end)
    return [{ ...list, text: `[{"role":"user","content":${input}},${message}]` }]
  }
  const edit = addText(
    items.findLastIndex(({ role }) => role === 'tool' || role === 'user'),
    text,
  )
  return edit && [edit]
}

/**
 * Appends a text to a content that is a string, null, or a list: as a paragraph of its last part if that has a text,
 * else as a new part of type `type`. `undefined` if the content is anything else.
 */
export function addText(json: Buffer, content: Span, text: string, type = 'text'): Edit | undefined {
  const kind = kindAt(json, content)
  if (kind === 'string') return appendParagraph(content, text)
  if (kind === 'scalar') return decode(json, content) === null ? { ...content, text: JSON.stringify(text) } : undefined
  if (kind === 'object') return undefined
  const last = elements(json, content).at(-1)
  const part = last && kindAt(json, last) === 'object' ? members(json, last) : []
  const lastText = member(part, 'text')?.value
  // A part that the provider caches must be the same in the next request, which contains no notice.
  const isCached = member(part, 'cache_control') !== undefined
  if (lastText && kindAt(json, lastText) === 'string' && !isCached) return appendParagraph(lastText, text)
  return appendElement(json, content, JSON.stringify({ type, text }))
}

/** Returns the texts of those parts of a list that have one; an empty list if `parts` is not a list. */
export function textsOfParts(parts: unknown): string[] {
  const texts: string[] = []
  if (!Array.isArray(parts)) return texts
  for (const part of parts) {
    if (typeof part === 'string') texts.push(part)
    else if (isObject(part) && typeof part['text'] === 'string') texts.push(part['text'])
  }
  return texts
}

/** Returns a text that is equal for equal attachments. Its letters are not those of ids, which comparisons mask. */
export function attachmentHash({ cache_control: _cacheControl, ...part }: Json): string {
  const letters = [...nameOf(JSON.stringify(part))].map((digit) => 'ghijklmnopqrstuv'[Number.parseInt(digit, 16)])
  return `[${textOf(part['type'])} ${letters.join('')}]`
}

/** Returns the attachment hashes of the parts without a text. */
export function attachmentHashes(parts: unknown): string[] {
  const attachments = objectsOf(parts).filter((part) => typeof part['text'] !== 'string')
  return attachments.map(attachmentHash)
}

/** Returns a decoded tool result as one text, with hashes for its attachments. */
export function resultText(content: unknown): string {
  if (typeof content === 'string') return content
  return [...textsOfParts(content), ...attachmentHashes(content)].join('\n')
}

const LOST = JSON.stringify('(This result is not available any more.)')

/** Characters of the results of one request that are kept for the next one. */
const MAX_KEPT_RESULTS = 65_536

/**
 * Returns results as JSON texts that are kept until the next request. If they are too long for that, a text that says
 * so takes the place of each value under `key` that has one of the `kinds`.
 */
export function resultsToKeep(
  json: Buffer,
  results: readonly Span[],
  key: string,
  kinds: readonly ReturnType<typeof kindAt>[],
): readonly string[] {
  const length = results.reduce((sum, { start, end }) => sum + end - start, 0)
  return results.map((result) => {
    const { start, end } = result
    const value = length > MAX_KEPT_RESULTS ? member(members(json, result), key)?.value : undefined
    if (!value || !kinds.includes(kindAt(json, value))) return json.toString('utf8', start, end)
    return json.toString('utf8', start, value.start) + LOST + json.toString('utf8', value.end, end)
  })
}
