/** Changes single places of a JSON text and leaves every other byte unchanged. */
import {
  CLOSE_BRACKET,
  isSpace,
  type Member,
  member,
  members,
  OPEN_BRACKET,
  root,
  type Span,
  skipSpace,
} from './scan.ts'

/** Replaces the bytes from `start` to `end` (exclusive; equal for an insertion) by `text`. */
export interface Edit extends Span {
  readonly text: string
  /**
   * The JSON before the string that the edit creates and `text` belongs to, with its opening quote. Several such edits
   * become paragraphs of one string.
   */
  readonly within?: string
}

/** Merges the edits that create the same string into one, at the place of the first. */
function joined(edits: readonly Edit[]): readonly Edit[] {
  const merged: Edit[] = []
  for (const edit of edits) {
    const { start, text, within } = edit
    const at = within === undefined ? -1 : merged.findIndex((other) => other.start === start && other.within === within)
    const first = merged[at]
    if (first) merged[at] = { ...first, text: `${first.text}\\n\\n${text}` }
    else merged.push(edit)
  }
  return merged
}

/**
 * Returns the pieces of the edited text; unchanged pieces are views of `json`. The edits may come in any order.
 * Insertions at one place apply in the order of the list, before a replacement there. An edit inside a larger
 * replacement has no effect.
 */
export function editedPieces(json: Buffer, edits: readonly Edit[]): Buffer[] {
  const isInsertion = ({ start, end }: Edit) => Number(start === end)
  // Of two replacements that start at one place, the larger one holds the other.
  const ordered = joined(edits).toSorted(
    (a, b) => a.start - b.start || isInsertion(b) - isInsertion(a) || b.end - a.end,
  )
  const parts: Buffer[] = []
  let done = 0
  for (const { start, end, text, within } of ordered) {
    if (start < done) continue
    if (start > done) parts.push(json.subarray(done, start))
    const written = within === undefined ? text : `${within}${text}"`
    if (written !== '') parts.push(Buffer.from(written))
    done = end
  }
  if (done < json.length) parts.push(json.subarray(done))
  return parts
}

export function applyEdits(json: Buffer, edits: readonly Edit[]): Buffer {
  return Buffer.concat(editedPieces(json, edits))
}

function insertion(at: number, text: string): Edit {
  return { start: at, end: at, text }
}

/** Returns the JSON text of a string without its quotes. */
function escaped(text: string): string {
  return JSON.stringify(text).slice(1, -1)
}

export function appendParagraph(span: Span, text: string): Edit {
  const isEmpty = span.end - span.start === 2
  return insertion(span.end - 1, escaped(isEmpty ? text : `\n\n${text}`))
}

/**
 * Returns an edit that appends `text` as a paragraph to the string under `key` of the object at `span`. It creates the
 * string if there is none, or if it is null or empty; `undefined` if the value has another type.
 */
export function addToText(
  body: Buffer,
  span: Span,
  fields: readonly Member[],
  key: string,
  text: string,
): Edit | undefined {
  const value = member(fields, key)?.value
  const stated = value && body.toString('latin1', value.start, value.end)
  if (value && stated !== 'null' && stated !== '""')
    return stated?.startsWith('"') ? appendParagraph(value, text) : undefined
  const { start, end, text: empty } = setMember(span, fields, key, '""')
  return { start, end, text: escaped(text), within: empty.slice(0, -1) }
}

/** Returns an edit that appends the value `json` (JSON text) to the array at `span`, without reading its elements. */
export function appendElement(body: Buffer, span: Span, json: string): Edit {
  let end = span.end - 1
  while (isSpace(body[end - 1])) end--
  return insertion(end, body[end - 1] === OPEN_BRACKET && end - 1 === span.start ? json : `,${json}`)
}

/** Returns an edit that puts the value `json` (JSON text) before the first element of the array at `span`. */
export function prependElement(body: Buffer, span: Span, json: string): Edit {
  const start = skipSpace(body, span.start + 1)
  return insertion(start, body[start] === CLOSE_BRACKET ? json : `${json},`)
}

/** Returns an edit that sets the member `key` of an object: it replaces the value, or adds the member last. */
export function setMember(span: Span, fields: readonly Member[], key: string, json: string): Edit {
  const existing = member(fields, key)
  if (existing) return { ...existing.value, text: json }
  const last = fields.at(-1)
  const added = `${JSON.stringify(key)}:${json}`
  return last ? insertion(last.end, `,${added}`) : insertion(span.end - 1, added)
}

/**
 * Returns a JSON object with other values (JSON texts) for some members; every other byte stays. @throws
 * {JsonScanError}
 */
export function withMembers(json: Buffer, values: Readonly<Record<string, string>>): Buffer {
  const object = root(json)
  const fields = members(json, object)
  // All new members are inserted at one place, where edits apply in order; each brings its own comma.
  const edits = Object.entries(values).map(([key, value]) => setMember(object, fields, key, value))
  return applyEdits(json, edits)
}

/** Returns edits that remove items from a list, or members from an object, together with their commas. */
export function removeItems<Item extends Span>(items: readonly Item[], removed: ReadonlySet<Item>): Edit[] {
  const edits: Edit[] = []
  let lastKept: Item | undefined
  let gap: { start: number; end: number } | undefined
  for (const item of items) {
    if (removed.has(item)) {
      gap = { start: lastKept ? lastKept.end : (gap?.start ?? item.start), end: item.end }
      continue
    }
    if (gap) edits.push({ start: gap.start, end: item.start, text: lastKept ? ',' : '' })
    gap = undefined
    lastKept = item
  }
  if (gap) edits.push({ ...gap, text: '' })
  return edits
}

export function removeMembers(fields: readonly Member[], keys: ReadonlySet<string>): Edit[] {
  return removeItems(fields, new Set(fields.filter(({ key }) => keys.has(key))))
}
