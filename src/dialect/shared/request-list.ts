/** Reads and edits requests that are an object with a list of messages or items. */
import type { Role } from '../../core/conversation.ts'
import { nameOf } from '../../core/hash.ts'
import { isObject, type Json, MAX_LENGTH, objectsOf, textOf } from '../../core/json-object.ts'
import { TooMuchToRead, type Work } from '../../core/work.ts'
import { decodeToCompare } from '../../json/compare.ts'
import { appendElement, appendParagraph, type Edit } from '../../json/edit.ts'
import { indexList, indexWithoutList, type KnownItems, type ListIndex, type ReadItem } from '../../json/list.ts'
import {
  decode,
  decodeStringIn,
  elements,
  isPlainly,
  kindAt,
  type Member,
  member,
  members,
  type Span,
  skipSpace,
  skipString,
} from '../../json/scan.ts'

const QUOTE = 0x22
const LETTER_N = 0x6e
const LETTER_T = 0x74
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

/** The top-level fields of a request. */
interface Fields {
  readonly json: Buffer
  readonly work: Work
  readonly fields: readonly Member[]
}

/** The byte offsets of one item of the list, and its role. */
export interface ListedItem extends Span {
  readonly role: Role
}

/** The name of a role in a dialect. Lists are searched in order, so frequent roles come first. */
export type NamedRole = readonly [name: string, role: Role]

/** Returns the role that the value between two offsets names. An unknown role is `system`: `user` would start a run. */
export function roleOf(json: Buffer, start: number, end: number, roles: readonly NamedRole[]): Role {
  if (json[start] !== QUOTE) return 'system'
  for (const [name, role] of roles) if (isPlainly(json, start, end, name)) return role
  // The name may be written with escapes.
  const named = stringAt(json, start)
  for (const [name, role] of roles) if (name === named) return role
  return 'system'
}

/**
 * Indexes a request by its list under `key`, which may be missing or null; `undefined` if it is anything else.
 * `known`: what was read of a body that begins with the same bytes.
 * @throws {JsonScanError}
 * @throws {TooMuchToRead}
 */
export function indexRequest<Item extends ListedItem>(
  body: Buffer,
  key: string,
  readItem: ReadItem<Item>,
  known?: KnownItems,
): ListIndex<Item> | undefined {
  return indexList(body, key, readItem, known) ?? indexWithoutList(body, key)
}

/** A function that computes the value of each index once. */
export interface Memo<T> {
  (at: number): T
  /** Gives the value of an index that was computed otherwise. */
  set(at: number, value: T): void
  /** Drops all values. */
  forget(): void
}

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
  return Object.assign(valueAt, {
    set: (at: number, value: T) => void values.set(at, value),
    forget: () => values.clear(),
  })
}

/** True if the value is a list with at least one item. */
export function holdsItems(json: Buffer, value: Span | undefined): boolean {
  if (value === undefined || json[value.start] !== OPEN_BRACKET) return false
  return json[skipSpace(json, value.start + 1)] !== CLOSE_BRACKET
}

/** Returns where a notice goes by default: the newest tool result or user message, whichever is later. */
export function lastInput<Item extends ListedItem>({ items }: ListIndex<Item>): Item | undefined {
  return items.findLast(({ role }) => role === 'tool' || role === 'user')
}

/** Returns the string that starts at `at`; empty if there is no string, or one longer than any name or id. */
export function stringAt(json: Buffer, at: number | undefined): string {
  if (at === undefined || json[at] !== QUOTE) return ''
  const end = skipString(json, at)
  return end - at > MAX_LENGTH ? '' : decodeStringIn(json, { start: at, end })
}

/** True if the value is `true`. */
export function isTrue(json: Buffer, value: Span | undefined): boolean {
  return value !== undefined && json[value.start] === LETTER_T
}

/** True if the value that starts at `at` is `null`. */
export function isNull(json: Buffer, at: number): boolean {
  return json[at] === LETTER_N
}

/** Decodes a top-level field; `undefined` if it is missing, or larger than any API accepts. */
export function fieldOf({ json, work, fields }: Fields, name: string): unknown {
  const value = member(fields, name)?.value
  try {
    return value && decodeToCompare(json, value, work)
  } catch (error) {
    if (error instanceof TooMuchToRead) return undefined
    throw error
  }
}

/** Appends a text to a content that is a string, a list of parts or null; `undefined` if it is anything else. */
export function addText(json: Buffer, content: Span, text: string): Edit | undefined {
  switch (kindAt(json, content)) {
    case 'string':
      return appendParagraph(content, text)
    case 'array':
      return addTextPart(json, content, 'text', text)
    case 'scalar':
      return decode(json, content) === null ? { ...content, text: JSON.stringify(text) } : undefined
    case 'object':
      return undefined
  }
}

/** Appends a paragraph to the last part of a list if that has a text, else a new part of type `type`. */
export function addTextPart(json: Buffer, parts: Span, type: string, text: string): Edit {
  const last = elements(json, parts).at(-1)
  const part = last && kindAt(json, last) === 'object' ? members(json, last) : []
  const lastText = member(part, 'text')?.value
  // A part that the provider caches must be the same in the next request, which contains no notice.
  const isCached = member(part, 'cache_control') !== undefined
  if (lastText && kindAt(json, lastText) === 'string' && !isCached) return appendParagraph(lastText, text)
  return appendElement(json, parts, JSON.stringify({ type, text }))
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
  return objectsOf(parts)
    .filter((part) => typeof part['text'] !== 'string')
    .map(attachmentHash)
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
  const textOfSpan = ({ start, end }: Span) => json.toString('utf8', start, end)
  const length = results.reduce((sum, { start, end }) => sum + end - start, 0)
  if (length <= MAX_KEPT_RESULTS) return results.map(textOfSpan)
  return results.map((result) => {
    const value = member(members(json, result), key)?.value
    if (!value || !kinds.includes(kindAt(json, value))) return textOfSpan(result)
    const before = textOfSpan({ start: result.start, end: value.start })
    return before + LOST + textOfSpan({ start: value.end, end: result.end })
  })
}
