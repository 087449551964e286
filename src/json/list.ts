/**
 * One pass over an object that holds a long list, say a request and its messages: every top-level member and every
 * item of the list by its bytes, nothing decoded.
 *
 * Agents send their whole conversation again with every request. Where the first items are known to be those of an
 * earlier body, byte for byte, the pass jumps over them: what it costs grows with what is new.
 */
import {
  JsonScanError,
  keyAt,
  type Member,
  member,
  rootStart,
  type Span,
  skipSpace,
  skipValue,
} from './scan.ts'

export interface ListIndex<Item extends Span> {
  readonly json: Buffer
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
  readItem(json: Buffer, at: number): Item
  /**
   * Recognises the items that a list begins with: the same bytes, white space between them included. May read some
   * items to do so.
   */
  recall?: ((list: OpenList<Item>) => KnownItems<Item> | undefined) | undefined
}

const COMMA = 0x2c
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

/** Reads the list that starts at `start`: its items, and the offset after its closing bracket. */
function readList<Item extends Span>(
  json: Buffer,
  start: number,
  { readItem, recall }: ListReader<Item>,
): { readonly items: readonly Item[]; readonly end: number } {
  let items: Item[] = []
  let at = skipSpace(json, start + 1)
  const next = (): Item | undefined => {
    if (json[at] === CLOSE_BRACKET) return undefined
    if (items.length > 0) {
      if (json[at] !== COMMA) throw new JsonScanError('a comma', at)
      at = skipSpace(json, at + 1)
    }
    const item = readItem(json, at)
    items.push(item)
    at = skipSpace(json, item.end)
    return item
  }
  const known = recall?.({ json, start, next })
  const last = known?.items[known.count - 1]
  if (known && last && known.count > items.length) {
    const shift = start - known.start
    const same = known.items.slice(0, known.count)
    items =
      shift === 0 ? same : same.map((item) => ({ ...item, start: item.start + shift, end: item.end + shift }))
    at = skipSpace(json, last.end + shift)
  }
  while (next());
  return { items, end: at + 1 }
}

/**
 * Indexes a JSON text that is an object with a list under the reader's key; `undefined` where it is something else. Where the key
 * stands twice the last one counts, as it does for JSON readers.
 * @throws {JsonScanError} when the text is no JSON.
 */
export function indexList<Item extends Span>(
  json: Buffer,
  reader: ListReader<Item>,
): ListIndex<Item> | undefined {
  const start = rootStart(json)
  const isObject = json[start] === OPEN_BRACE
  if (!isObject) return undefined
  const fields: Member[] = []
  let list: { readonly start: number; readonly items: readonly Item[] } | undefined
  let at = skipSpace(json, start + 1)
  while (json[at] !== CLOSE_BRACE) {
    if (fields.length > 0) {
      if (json[at] !== COMMA) throw new JsonScanError('a comma', at)
      at = skipSpace(json, at + 1)
    }
    const found = keyAt(json, at)
    const isList = found.key === reader.key && json[found.start] === OPEN_BRACKET
    const read = isList ? readList(json, found.start, reader) : undefined
    const end = read ? read.end : skipValue(json, found.start)
    if (read) list = { start: found.start, items: read.items }
    fields.push({ key: found.key, start: at, end, value: { start: found.start, end } })
    at = skipSpace(json, end)
  }
  const rest = skipSpace(json, at + 1)
  if (rest !== json.length) throw new JsonScanError('the end of the text', rest)
  const value = member(fields, reader.key)?.value
  if (!list || !value || value.start !== list.start) return undefined
  return { json, object: { start, end: at + 1 }, fields, list: value, items: list.items }
}
