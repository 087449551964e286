/** What the dialects have in common whose requests are an object with a list of messages. */
import type { Role } from '../../core/conversation.ts'
import { MAX_LENGTH } from '../../core/foreign-json.ts'
import { TooMuchToRead, type Work } from '../../core/work.ts'
import { decodeToCompare } from '../../json/compare.ts'
import { appendElement, appendParagraph, type Edit } from '../../json/edit.ts'
import { indexList, indexWithoutList, type ListIndex, type ReadItem } from '../../json/list.ts'
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

/** A request by its top-level fields. */
interface Fields {
  readonly json: Buffer
  readonly work: Work
  readonly fields: readonly Member[]
}

/** An item of the list by its bytes. */
export interface ListedItem extends Span {
  readonly role: Role
}

/** What a dialect calls a role; the frequent ones should come first. */
export type NamedRole = readonly [name: string, role: Role]

function roleNamed(name: string, roles: readonly NamedRole[]): Role | undefined {
  for (const [known, role] of roles) if (known === name) return role
  return undefined
}

/** The role that the value between two offsets names. One that is not known is nobody's word: a human's would start a run. */
export function roleOf(json: Buffer, start: number, end: number, roles: readonly NamedRole[]): Role {
  if (json[start] !== QUOTE) return 'system'
  for (const [name, role] of roles) if (isPlainly(json, start, end, name)) return role
  return roleNamed(stringAt(json, start), roles) ?? 'system'
}

/** Indexes a request by its list under `key`, which may be missing. @throws {JsonScanError} @throws {TooMuchToRead} */
export function indexRequest<Item extends ListedItem>(
  body: Buffer,
  key: string,
  readItem: ReadItem<Item>,
): ListIndex<Item> | undefined {
  return indexList(body, key, readItem) ?? indexWithoutList(body, key)
}

/** Remembers what `compute` gave for each index. */
export function memoize<T>(compute: (at: number) => T): (at: number) => T {
  const known = new Map<number, T>()
  return (at) => {
    const before = known.get(at)
    if (before !== undefined) return before
    const value = compute(at)
    known.set(at, value)
    return value
  }
}

/** Is the value a list that holds anything? */
export function holdsItems(json: Buffer, value: Span | undefined): boolean {
  if (value === undefined || json[value.start] !== OPEN_BRACKET) return false
  return json[skipSpace(json, value.start + 1)] !== CLOSE_BRACKET
}

/** The name or id that the value at `at` is; empty where it is none, as what is longer than any is. */
export function stringAt(json: Buffer, at: number | undefined): string {
  if (at === undefined || json[at] !== QUOTE) return ''
  const end = skipString(json, at)
  return end - at > MAX_LENGTH ? '' : decodeStringIn(json, { start: at, end })
}

export function isTrue(json: Buffer, value: Span | undefined): boolean {
  return value !== undefined && json[value.start] === LETTER_T
}

export function isNull(json: Buffer, at: number): boolean {
  return json[at] === LETTER_N
}

/** Decodes the top-level field of a name; `undefined` where there is none, or more in it than any API takes. */
export function fieldOf({ json, work, fields }: Fields, name: string): unknown {
  const value = member(fields, name)?.value
  try {
    return value && decodeToCompare(json, value, work)
  } catch (error) {
    if (error instanceof TooMuchToRead) return undefined
    throw error
  }
}

/** Puts a text at the end of a content, a string or a list of parts; `undefined` where its form can't take one. */
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

/** Puts a paragraph under the last text of a list of parts, or a new part of that type after the last part. */
export function addTextPart(json: Buffer, parts: Span, type: string, text: string): Edit {
  const last = elements(json, parts).at(-1)
  const part = last && kindAt(json, last) === 'object' ? members(json, last) : []
  const lastText = member(part, 'text')?.value
  // A part that the provider is told to cache must be the same in the next request, which has no notice in it.
  const isCached = member(part, 'cache_control') !== undefined
  if (lastText && kindAt(json, lastText) === 'string' && !isCached) return appendParagraph(lastText, text)
  return appendElement(json, parts, JSON.stringify({ type, text }))
}
