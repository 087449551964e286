/**
 * Indexes an object with a long list, such as a request and its messages, in one pass: the byte offsets of every
 * top-level member and of every item of the list, without decoding them.
 */
import { type Hash, hashOfBytes } from '../core/hash.ts'
import { STEPS_PER_VALUE, TooMuchToRead, Work } from '../core/work.ts'
import {
  decodeKey,
  firstElement,
  firstKey,
  JsonScanError,
  type Member,
  member,
  members,
  nextElement,
  nextKey,
  root,
  rootStart,
  type Span,
  skipSpace,
  skipString,
  skipValue,
  valueAfter,
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
}

/** What follows the list: the members with offsets from the list's end, and where the object ends. */
interface Rest {
  /** Of all bytes after the list. */
  readonly hash: Hash
  readonly fields: readonly Member[]
  readonly end: number
}

/** What was read of a body: offsets and keys, but no values. */
export interface KnownItems {
  /** The members before the list. */
  readonly fields: readonly Member[]
  /** Where the key of the list starts. */
  readonly at: number
  /** The first items of the list, as the same reader read them. */
  readonly items: readonly Span[]
  readonly rest: Rest
}

function moved(fields: readonly Member[], by: number): Member[] {
  return fields.map(({ key, start, end, value }) => ({
    key,
    start: start + by,
    end: end + by,
    value: { start: value.start + by, end: value.end + by },
  }))
}

/** Returns what follows the list of a body. */
export function restOf({ json, object, fields, list }: ListIndex<Span>): Rest {
  const { end } = list
  const after = fields.filter(({ start }) => start >= end)
  return { hash: hashOfBytes(json.subarray(end)), fields: moved(after, -end), end: object.end - end }
}

/** Reads the list item that starts `at`. @throws {JsonScanError} */
export type ReadItem<Item extends Span> = (json: Buffer, at: number, work: Work) => Item

const QUOTE = 0x22
const OPEN_BRACE = 0x7b
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d
const LETTER_N = 0x6e

/** A context window of a million tokens has no room for more items: a larger body is not a conversation. */
const MAX_ITEMS = 50_000

interface List<Item extends Span> {
  readonly span: Span
  readonly items: readonly Item[]
}

function readList<Item extends Span>(
  json: Buffer,
  start: number,
  readItem: ReadItem<Item>,
  work: Work,
  known: readonly Item[],
): List<Item> {
  const items = [...known]
  const newest = items.at(-1)
  let at = newest ? nextElement(json, newest.end) : firstElement(json, start)
  while (json[at] !== CLOSE_BRACKET) {
    if (items.length === MAX_ITEMS) throw new TooMuchToRead()
    work.spend(1)
    const item = readItem(json, at, work)
    items.push(item)
    at = nextElement(json, item.end)
  }
  return { span: { start, end: at + 1 }, items }
}

/**
 * Indexes a JSON text that is an object with a list under `listKey`; `undefined` if it is anything else. If the key is
 * there twice, the last one counts, as in `JSON.parse`. `known`: what was read of a body that begins with the same bytes,
 * and may also end with the same ones.
 * @throws {JsonScanError} if the text is not JSON.
 * @throws {TooMuchToRead} if it has more items than a conversation can have, or takes too many steps.
 */
export function indexList<Item extends Span>(
  json: Buffer,
  listKey: string,
  readItem: ReadItem<Item>,
  known?: KnownItems,
): ListIndex<Item> | undefined {
  const start = rootStart(json)
  const isObject = json[start] === OPEN_BRACE
  if (!isObject) return undefined
  const fields = known ? [...known.fields] : []
  const work = new Work(json.length)
  let list: List<Item> | undefined
  let at = known?.at ?? firstKey(json, start)
  while (json[at] === QUOTE) {
    const keyEnd = skipString(json, at)
    const key = decodeKey(json, at, keyEnd)
    const value = valueAfter(json, keyEnd)
    const isList = key === listKey && json[value] === OPEN_BRACKET
    const items = at === known?.at ? (known.items as readonly Item[]) : []
    if (isList) list = readList(json, value, readItem, work, items)
    const end = isList && list ? list.span.end : skipValue(json, value)
    work.spend(STEPS_PER_VALUE)
    fields.push({ key, start: at, end, value: { start: value, end } })
    if (list && at === known?.at && hashOfBytes(json.subarray(end)) === known.rest.hash) {
      fields.push(...moved(known.rest.fields, end))
      const object = { start, end: end + known.rest.end }
      return { json, work, object, fields, list: list.span, items: list.items }
    }
    at = nextKey(json, end)
  }
  const rest = skipSpace(json, at + 1)
  if (rest !== json.length) throw new JsonScanError('the end of the text', rest)
  const value = member(fields, listKey)?.value
  if (!list || !value || value.start !== list.span.start) return undefined
  return { json, work, object: { start, end: at + 1 }, fields, list: value, items: list.items }
}

/**
 * Indexes a JSON text that is an object without a value under `key`, or with `null` there, as one with an empty list;
 * `list` is the span of `null`, or the place of a new member. `undefined` if the text is anything else.
 * @throws {JsonScanError} if the text is not JSON.
 * @throws {TooMuchToRead} if it takes too many steps.
 */
export function indexWithoutList(json: Buffer, key: string): ListIndex<never> | undefined {
  if (json[rootStart(json)] !== OPEN_BRACE) return undefined
  const object = root(json)
  const work = new Work(json.length)
  const fields = members(json, object, work)
  const value = member(fields, key)?.value
  if (value && json[value.start] !== LETTER_N) return undefined
  const end = object.end - 1
  return { json, work, object, fields, list: value ?? { start: end, end }, items: [] }
}
