/** What the dialects have in common whose requests are an object with a list of messages. */
import type { Role } from '../core/conversation.ts'
import { appendElement, appendParagraph, type Edit } from '../json/edit.ts'
import type { KnownItems, OpenList } from '../json/list.ts'
import {
  decode,
  elements,
  kindAt,
  type Member,
  member,
  members,
  type Span,
  skipSpace,
  skipValue,
} from '../json/scan.ts'
import type { Recall } from './dialect.ts'
import { textOf } from './shape.ts'

const QUOTE = 0x22
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

/** An item of the list by its bytes. */
export interface ListedItem extends Span {
  readonly role: Role
}

/** The role that the text at `at` names. One that is not known is nobody's word: a human's would start a run. */
export function roleAt(json: Buffer, at: number, roles: ReadonlyMap<string, Role>): Role {
  if (json[at] !== QUOTE) return 'system'
  const end = skipValue(json, at)
  const role = roles.get(json.toString('latin1', at + 1, end - 1))
  return role ?? roles.get(textOf(decode(json, { start: at, end }))) ?? 'system'
}

/** The bytes from the list's start to the end of the first assistant message: what tells conversations apart. */
function headOf(list: OpenList<ListedItem>): Span | undefined {
  for (let item = list.next(); item; item = list.next()) {
    if (item.role === 'assistant') return { start: list.start, end: item.end }
  }
  return undefined
}

/** Recognises the items that a list begins with; what is remembered under a dialect's name was read by it. */
export function recallItems<Item extends ListedItem>(recall: Recall | undefined) {
  return (
    recall &&
    ((list: OpenList<Item>): KnownItems<Item> | undefined => {
      const head = headOf(list)
      return head && (recall(list.json, head) as KnownItems<Item> | undefined)
    })
  )
}

/** Remembers what `compute` gave for each index. */
export function remember<T>(compute: (at: number) => T): (at: number) => T {
  const known = new Map<number, T>()
  return (at) => {
    const before = known.get(at)
    if (before !== undefined) return before
    const value = compute(at)
    known.set(at, value)
    return value
  }
}

/** Does the list that starts there hold anything? */
export function holdsItems(json: Buffer, { start }: Span): boolean {
  return json[start] === OPEN_BRACKET && json[skipSpace(json, start + 1)] !== CLOSE_BRACKET
}

/** Decodes top-level fields by name; `undefined` where there is none. */
export function fieldReader(json: Buffer, fields: readonly Member[]): (name: string) => unknown {
  return (name) => {
    const value = member(fields, name)?.value
    return value && decode(json, value)
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
