/**
 * One pass over an object that holds a long list, say a request and its messages: every top-level member and every
 * item of the list by its bytes, nothing decoded.
 */
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
import { throughWindows } from './window.ts'

export interface ListIndex<Item extends Span> {
  readonly json: Buffer
  /** What was done to read it, and will be. */
  readonly work: Work
  /** The whole object. */
  readonly object: Span
  /** Its members in order, duplicates included. */
  readonly fields: readonly Member[]
  readonly list: Span
  readonly items: readonly Item[]
}

/** Reads the item of a list that starts `at`. @throws {JsonScanError} */
export type ReadItem<Item extends Span> = (json: Buffer, at: number, work: Work) => Item

const QUOTE = 0x22
const OPEN_BRACE = 0x7b
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d
const LETTER_N = 0x6e

/**
 * A window of a million tokens has no room for more items than this: a body of more is no conversation.
 */
const MAX_ITEMS = 50_000

/** Bodies of fewer bytes are read without a window. */
const WORTHWHILE = 16_384

interface List<Item extends Span> {
  readonly span: Span
  readonly items: readonly Item[]
}

function readList<Item extends Span>(
  json: Buffer,
  start: number,
  readItem: ReadItem<Item>,
  work: Work,
): List<Item> {
  const items: Item[] = []
  let at = firstElement(json, start)
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
 * Indexes a JSON text that is an object with a list under a key; `undefined` where it is something else. Where the key
 * stands twice the last one counts, as it does for JSON readers.
 * @throws {JsonScanError} when the text is no JSON.
 * @throws {TooMuchToRead}
 */
export function indexList<Item extends Span>(
  json: Buffer,
  key: string,
  readItem: ReadItem<Item>,
): ListIndex<Item> | undefined {
  return json.length < WORTHWHILE
    ? readObject(json, key, readItem)
    : throughWindows(json, () => readObject(json, key, readItem))
}

function readObject<Item extends Span>(
  json: Buffer,
  listKey: string,
  readItem: ReadItem<Item>,
): ListIndex<Item> | undefined {
  const start = rootStart(json)
  const isObject = json[start] === OPEN_BRACE
  if (!isObject) return undefined
  const fields: Member[] = []
  const work = new Work(json.length)
  let list: List<Item> | undefined
  let at = firstKey(json, start)
  while (json[at] === QUOTE) {
    const keyEnd = skipString(json, at)
    const key = decodeKey(json, at, keyEnd)
    const value = valueAfter(json, keyEnd)
    const isList = key === listKey && json[value] === OPEN_BRACKET
    if (isList) list = readList(json, value, readItem, work)
    const end = isList && list ? list.span.end : skipValue(json, value)
    work.spend(STEPS_PER_VALUE)
    fields.push({ key, start: at, end, value: { start: value, end } })
    at = nextKey(json, end)
  }
  const rest = skipSpace(json, at + 1)
  if (rest !== json.length) throw new JsonScanError('the end of the text', rest)
  const value = member(fields, listKey)?.value
  if (!list || !value || value.start !== list.span.start) return undefined
  return { json, work, object: { start, end: at + 1 }, fields, list: value, items: list.items }
}

/**
 * Indexes a JSON text that is an object without a list under `key`, or with `null` there: its list is empty, and where it would
 * stand. `undefined` where the text is something else.
 * @throws {JsonScanError} when the text is no JSON.
 * @throws {TooMuchToRead}
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
