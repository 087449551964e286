/** Changes single places of a JSON text and leaves every other byte as it was. */
import { isSpace, type Member, members, root, type Span, skipSpace } from './scan.ts'

/** Replace the bytes from `start` to `end` (exclusive; equal for an insertion) by `text`. */
export interface Edit extends Span {
  readonly text: string
  /**
   * What stands before and after `text` where it is the first to be said in a string that was not there. Several of one
   * place and kind become paragraphs of the same string.
   */
  readonly within?: readonly [before: string, after: string]
}

/** One edit for all that goes into the same new string, where the first of them stands. */
function joined(edits: readonly Edit[]): readonly Edit[] {
  if (!edits.some(({ within }) => within)) return edits
  const all: Edit[] = []
  const texts = new Map<string, { readonly at: number; readonly paragraphs: string[] }>()
  for (const edit of edits) {
    const { start, end, text, within } = edit
    if (!within) {
      all.push(edit)
      continue
    }
    const key = `${start} ${end} ${within[0]}`
    const { at, paragraphs } = texts.get(key) ?? { at: all.length, paragraphs: [] }
    paragraphs.push(text)
    texts.set(key, { at, paragraphs })
    all[at] = { start, end, text: within[0] + paragraphs.join('\\n\\n') + within[1] }
  }
  return all
}

/**
 * The pieces of a text with edits applied, those that stay being views of it. The edits come in any order.
 * Insertions at the same place apply in the order given, and before what is replaced there; what was to be changed
 * inside of what is replaced as a whole is gone with it.
 */
export function editedPieces(json: Buffer, edits: readonly Edit[]): Buffer[] {
  const ordered = joined(edits).toSorted((a, b) => a.start - b.start || a.end - b.end)
  const parts: Buffer[] = []
  let kept = 0
  for (const edit of ordered) {
    if (edit.start < kept) continue
    parts.push(json.subarray(kept, edit.start), Buffer.from(edit.text))
    kept = edit.end
  }
  parts.push(json.subarray(kept))
  return parts.filter((part) => part.length > 0)
}

/** The text with edits applied, in one piece: see `editedPieces`. */
export function applyEdits(json: Buffer, edits: readonly Edit[]): Buffer {
  return Buffer.concat(editedPieces(json, edits))
}

function insertion(at: number, text: string): Edit {
  return { start: at, end: at, text }
}

/** JSON text of a string without its quotes. */
function escaped(text: string): string {
  return JSON.stringify(text).slice(1, -1)
}

/** Puts `text` as a paragraph of its own at the end of the string at `span`. */
export function appendParagraph(span: Span, text: string): Edit {
  const isEmpty = span.end - span.start === 2
  return insertion(span.end - 1, escaped(isEmpty ? text : `\n\n${text}`))
}

/**
 * Puts `text` as a paragraph at the end of the string that the object at `span` has under `key`; makes that string where
 * there is none, or nothing in it. `undefined` where something else stands there.
 */
export function addToText(
  body: Buffer,
  span: Span,
  found: readonly Member[],
  key: string,
  text: string,
): Edit | undefined {
  const existing = found.findLast((candidate) => candidate.key === key)
  const value = existing && body.toString('latin1', existing.value.start, existing.value.end)
  if (existing && value !== 'null' && value !== '""') {
    return value?.startsWith('"') ? appendParagraph(existing.value, text) : undefined
  }
  if (existing) return { ...existing.value, text: escaped(text), within: ['"', '"'] }
  const { start, end } = setMember(span, found, key, '')
  return {
    start,
    end,
    text: escaped(text),
    within: [`${found.length > 0 ? ',' : ''}${JSON.stringify(key)}:"`, '"'],
  }
}

const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

/** Puts the value `json` (JSON text) at the end of the array at `span`. What is in the array is not looked at. */
export function appendElement(body: Buffer, span: Span, json: string): Edit {
  let end = span.end - 1
  while (isSpace(body[end - 1])) end--
  return insertion(end, body[end - 1] === OPEN_BRACKET && end - 1 === span.start ? json : `,${json}`)
}

/** Puts the value `json` (JSON text) before the first element of the array at `span`. */
export function prependElement(body: Buffer, span: Span, json: string): Edit {
  const start = skipSpace(body, span.start + 1)
  return insertion(start, body[start] === CLOSE_BRACKET ? json : `${json},`)
}

/** Gives the object at `span` the member `key`: its value is replaced where it has one, else it is added last. */
export function setMember(span: Span, found: readonly Member[], key: string, json: string): Edit {
  const existing = found.findLast((candidate) => candidate.key === key)
  if (existing) return { ...existing.value, text: json }
  const last = found.at(-1)
  const added = `${JSON.stringify(key)}:${json}`
  return last ? insertion(last.end, `,${added}`) : insertion(span.end - 1, added)
}

/** Returns a JSON object with other values (JSON texts) for some of its members; every other byte stays. @throws {JsonScanError} */
export function withMembers(json: Buffer, values: Readonly<Record<string, string>>): Buffer {
  const object = root(json)
  const fields = members(json, object)
  // All new members are inserted at one place, where edits apply in order; each brings its own comma.
  return applyEdits(
    json,
    Object.entries(values).map(([key, value]) => setMember(object, fields, key, value)),
  )
}

/** Takes items out of a list, or members out of an object, with the commas that belonged to them. */
export function removeItems<Item extends Span>(
  found: readonly Item[],
  isRemoved: (item: Item) => boolean,
): Edit[] {
  const edits: Edit[] = []
  let lastKept: Item | undefined
  let gap: { start: number; end: number } | undefined
  for (const candidate of found) {
    if (isRemoved(candidate)) {
      gap = { start: lastKept ? lastKept.end : (gap?.start ?? candidate.start), end: candidate.end }
      continue
    }
    if (gap) edits.push({ start: gap.start, end: candidate.start, text: lastKept ? ',' : '' })
    gap = undefined
    lastKept = candidate
  }
  if (gap) edits.push({ ...gap, text: '' })
  return edits
}

/** Takes the members named in `keys` out of an object. */
export function removeMembers(found: readonly Member[], keys: ReadonlySet<string>): Edit[] {
  return removeItems(found, ({ key }) => keys.has(key))
}
