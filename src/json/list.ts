/**
 * Indexes an object with a long list, such as a request and its messages, in one pass: the byte offsets of every
 * top-level member and of every item of the list, without decoding them.
 */

import { STEPS_PER_VALUE, TooMuchToRead, Work } from '../core/bounds/work.ts'
import { hashOfBytes } from '../core/hash.ts'
import {
  CLOSE_BRACKET,
  firstElement,
  JsonScanError,
  type Member,
  MemberWalk,
  member,
  nextElement,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  rootStart,
  type Span,
  skipSpace,
} from './scan.ts'

/** The byte offsets of an object's members and of the items of one of its lists. */
export interface ListIndex<Item extends Span> {
  readonly json: Buffer
  /** The steps that may be spent on reading this body. */
  readonly work: Work
  /** The whole object. */
  readonly object: Span
  /** Its members in order, duplicates included. */
  readonly fields: readonly Member[]
  readonly list: Span
  readonly items: readonly Item[]
  /** What follows the list has the bytes of the known body. */
  readonly hasKnownRest: boolean
}

/** What was read of a body: offsets and keys, but no values. */
export interface KnownItems {
  /** The members before the list. */
  readonly fields: readonly Member[]
  /** Where the key of the list starts. */
  readonly at: number
  /** The first items, as the same reader read them. */
  readonly items: readonly Span[]
  readonly rest: ReturnType<typeof restOf>
}

function moved(fields: readonly Member[], by: number): Member[] {
  return fields.map(({ key, start, end, value }) => ({
    key,
    start: start + by,
    end: end + by,
    value: { start: value.start + by, end: value.end + by },
  }))
}

/**
 * Returns what follows the list of a body: a hash of all bytes there, the members with offsets from the list's end, and
 * where the object ends.
 */
export function restOf({ json, object, fields, list }: ListIndex<Span>) {
  const { end } = list
  const after = fields.filter(({ start }) => start >= end)
  return { hash: hashOfBytes(json.subarray(end)), fields: moved(after, -end), end: object.end - end }
}

/** Reads the list item that starts `at`. @throws {JsonScanError} */
type ReadItem<Item extends Span> = (json: Buffer, at: number, work: Work) => Item

const LETTER_N = 0x6e

/** A context window of a million tokens has no room for more items: a larger body is not a conversation. */
const MAX_ITEMS = 50_000

/** Reads the items of the list that starts at `start` after those in `items`; returns the end of the list. */
function readList<Item extends Span>(
  json: Buffer,
  start: number,
  readItem: ReadItem<Item>,
  work: Work,
  items: Item[],
): number {
  const newest = items.at(-1)
  let at = newest ? nextElement(json, newest.end) : firstElement(json, start)
  while (json[at] !== CLOSE_BRACKET) {
    if (items.length === MAX_ITEMS) throw new TooMuchToRead()
    work.spend(1)
    const item = readItem(json, at, work)
    items.push(item)
    at = nextElement(json, item.end)
  }
  return at + 1
}

/**
 * Indexes a JSON text that is an object with a list under `listKey`; `undefined` if it is anything else. Without the
 * key, or with `null` there, the list is empty: `list` is the span of `null`, or the place of a new member. If the key
 * is there twice, the last one counts, as in `JSON.parse`. `known`: what was read of a body that begins with the same
 * bytes, and may also end with the same ones. `readText` returns the only item if a string stands in place of the list.
 * @throws {JsonScanError} @throws {TooMuchToRead} if it has more items than a conversation can have.
 */
export function indexList<Item extends Span>(
  json: Buffer,
  listKey: string,
  readItem: ReadItem<Item>,
  known?: KnownItems,
  readText?: (text: Span) => Item,
): ListIndex<Item> | undefined {
  const start = rootStart(json)
  if (json[start] !== OPEN_BRACE) return undefined
  const fields = known ? [...known.fields] : []
  const work = new Work(json.length)
  let list: Span | undefined
  let items: Item[] = []
  const field = new MemberWalk(json, start, undefined, known?.at)
  while (field.next()) {
    const { at, value } = field
    const key = field.key()
    if (key === listKey && json[value] === OPEN_BRACKET) {
      items = at === known?.at ? [...(known.items as readonly Item[])] : []
      field.end = readList(json, value, readItem, work, items)
      list = { start: value, end: field.end }
    }
    const end = field.skip()
    work.spend(STEPS_PER_VALUE)
    fields.push({ key, start: at, end, value: { start: value, end } })
    if (list && at === known?.at && hashOfBytes(json.subarray(end)) === known.rest.hash) {
      fields.push(...moved(known.rest.fields, end))
      const object = { start, end: end + known.rest.end }
      return { json, work, object, fields, list, items, hasKnownRest: true }
    }
  }
  const { at, end } = field
  const rest = skipSpace(json, end)
  if (rest !== json.length) throw new JsonScanError('the end of the text', rest)
  const value = member(fields, listKey)?.value ?? { start: at, end: at }
  if (value.start !== list?.start) {
    if (readText && json[value.start] === QUOTE) items = [readText(value)]
    else if (value.start === at || json[value.start] === LETTER_N) items = []
    else return undefined
  }
  // A spread would double the time that a short body takes.
  return { json, work, object: { start, end }, fields, list: value, items, hasKnownRest: false }
}
