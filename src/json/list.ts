/**
 * One pass over an object that holds a long list, say a request and its messages: every top-level member and every
 * item of the list by its bytes, nothing decoded.
 *
 * Agents send their whole conversation again with every request. Where the first items are known to be those of an
 * earlier body, byte for byte, the pass jumps over them: what it costs grows with what is new.
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

/** A list that is being read. */
export interface OpenList<Item extends Span> {
  readonly json: Buffer
  /** The offset of its opening bracket. */
  readonly start: number
  /** Reads one more item; `undefined` at the end of the list. @throws {JsonScanError} */
  next(): Item | undefined
}

/** The first `count` items of an earlier list. */
export interface KnownItems<Item extends Span> {
  readonly items: readonly Item[]
  readonly count: number
  /** The offset of that list's opening bracket, which the items' offsets belong to. */
  readonly start: number
}

/** What a list consists of, and how it is read. */
export interface ListReader<Item extends Span> {
  /** The list's key in the object. */
  readonly key: string
  /** Reads the item that starts `at`. What it notes besides the span must not depend on where it stands. */
  readItem(json: Buffer, at: number, work: Work): Item
  /**
   * Recognises the items that a list begins with: the same bytes, white space between them included. May read some
   * items to do so.
   */
  recall?: ((list: OpenList<Item>) => KnownItems<Item> | undefined) | undefined
  /** Jumps over the value of another field, an object or an array: returns the offset after it. @throws {JsonScanError} */
  skip?: ((json: Buffer, key: string, at: number) => number) | undefined
}

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

class ListCursor<Item extends Span> implements OpenList<Item> {
  readonly json: Buffer
  readonly start: number
  items: Item[] = []
  readonly #readItem: ListReader<Item>['readItem']
  readonly #work: Work
  /** Where the next item starts, or the closing bracket is. */
  #at: number

  constructor(json: Buffer, start: number, readItem: ListReader<Item>['readItem'], work: Work) {
    this.json = json
    this.start = start
    this.#readItem = readItem
    this.#work = work
    this.#at = firstElement(json, start)
  }

  next(): Item | undefined {
    if (this.json[this.#at] === CLOSE_BRACKET) return undefined
    if (this.items.length === MAX_ITEMS) throw new TooMuchToRead()
    this.#work.spend(1)
    const item = this.#readItem(this.json, this.#at, this.#work)
    this.items.push(item)
    this.#at = nextElement(this.json, item.end)
    return item
  }

  /** Goes on after items that are known, where these are more than were read. */
  takeOver({ items, count, start }: KnownItems<Item>): void {
    const last = items[count - 1]
    if (!last || count <= this.items.length) return
    const shift = this.start - start
    const same = items.slice(0, count)
    this.items =
      shift === 0 ? same : same.map((item) => ({ ...item, start: item.start + shift, end: item.end + shift }))
    this.#at = nextElement(this.json, last.end + shift)
  }

  /** Reads to the end; returns the offset after the closing bracket. */
  readAll(): number {
    while (this.next());
    return this.#at + 1
  }
}

/**
 * Indexes a JSON text that is an object with a list under the reader's key; `undefined` where it is something else. Where the key
 * stands twice the last one counts, as it does for JSON readers.
 * @throws {JsonScanError} when the text is no JSON.
 * @throws {TooMuchToRead}
 */
export function indexList<Item extends Span>(
  json: Buffer,
  reader: ListReader<Item>,
): ListIndex<Item> | undefined {
  return json.length < WORTHWHILE
    ? readList(json, reader)
    : throughWindows(json, () => readList(json, reader))
}

function readList<Item extends Span>(json: Buffer, reader: ListReader<Item>): ListIndex<Item> | undefined {
  const start = rootStart(json)
  const isObject = json[start] === OPEN_BRACE
  if (!isObject) return undefined
  const fields: Member[] = []
  const work = new Work(json.length)
  let list: ListCursor<Item> | undefined
  let at = firstKey(json, start)
  while (json[at] === QUOTE) {
    const keyEnd = skipString(json, at)
    const key = decodeKey(json, at, keyEnd)
    const value = valueAfter(json, keyEnd)
    let end: number
    if (key === reader.key && json[value] === OPEN_BRACKET) {
      list = new ListCursor(json, value, reader.readItem, work)
      const known = reader.recall?.(list)
      if (known) list.takeOver(known)
      end = list.readAll()
    } else {
      const isContainer = json[value] === OPEN_BRACKET || json[value] === OPEN_BRACE
      end = isContainer && reader.skip ? reader.skip(json, key, value) : skipValue(json, value)
    }
    work.spend(STEPS_PER_VALUE)
    fields.push({ key, start: at, end, value: { start: value, end } })
    at = nextKey(json, end)
  }
  const rest = skipSpace(json, at + 1)
  if (rest !== json.length) throw new JsonScanError('the end of the text', rest)
  const value = member(fields, reader.key)?.value
  if (!list || !value || value.start !== list.start) return undefined
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
