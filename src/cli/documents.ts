/**
 * The JSON texts of a file: one a line, or one for the whole file where it is written over many, or where every line is
 * one message of the same conversation.
 */

export interface Line {
  readonly text: string
  readonly number: number
  /** Bytes read of the file so far. */
  readonly offset: number
}

/** Longer files are only read line by line. */
const MAX_WHOLE = 67_108_864

/** The value of a JSON text; `undefined` where it is none. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function isJson(text: string): boolean {
  return parsed(text) !== undefined
}

/** Opens an object or a list that goes on in the next line. */
function isOpen(text: string): boolean {
  return /^\s*[[{]/.test(text) && !isJson(text)
}

/**
 * Lines that belong together are held, if the first of all begins them, and are given at the end as what they are
 * `together`; the others as they come. More than `MAX_WHOLE` characters are not held.
 */
async function* gathered(
  lines: AsyncIterable<Line>,
  begins: (text: string) => boolean,
  belongs: (text: string) => boolean,
  together: (held: readonly Line[]) => readonly Line[],
): AsyncGenerator<Line> {
  let held: Line[] | undefined
  let length = 0
  let isFirst = true
  for await (const line of lines) {
    if (isFirst && line.text.trim() !== '') {
      isFirst = false
      if (begins(line.text)) held = []
    }
    if (!held || !belongs(line.text)) {
      yield line
      continue
    }
    held.push(line)
    length += line.text.length + 1
    if (length > MAX_WHOLE) {
      yield* held
      held = undefined
    }
  }
  if (held) yield* together(held)
}

/** Several lines as one, with another text. */
function asOne(lines: readonly Line[], text: string): readonly Line[] {
  const [first] = lines
  return first ? [{ text, number: first.number, offset: lines.at(-1)?.offset ?? 0 }] : []
}

/** All of them where they are one JSON text. */
function whole(lines: readonly Line[]): readonly Line[] {
  const text = lines.map((line) => line.text).join('\n')
  return isJson(text) ? asOne(lines, text) : lines
}

/** The list of what the lines hold. */
function listOf(lines: readonly Line[]): readonly Line[] {
  return asOne(lines, `[${lines.map((line) => line.text).join(',')}]`)
}

/** One message, or one of the items that Responses has for calls and their results. */
function isMessage(text: string): boolean {
  const value = parsed(text)
  if (typeof value !== 'object' || value === null || 'messages' in value) return false
  if ('input' in value && Array.isArray(value.input)) return false
  const isSaid = 'role' in value && typeof value.role === 'string'
  return isSaid || ('call_id' in value && typeof value.call_id === 'string')
}

/** A list whose first object begins so holds messages, and not conversations. */
const MESSAGES = /^\s*\[\s*\{\s*"(?:role|type|content)"/

function holdsMessages(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  // A message, or an item of Responses, whose `input` is what a tool of the client's own gets.
  if ('role' in value || 'call_id' in value) return false
  return ['messages', 'input', 'body', 'request'].some((key) => key in value)
}

/** The conversations of a list, numbered from its line on; a text that is no such list as it is. */
function conversationsIn(line: Line): readonly Line[] {
  const { text, number, offset } = line
  const list = /^\s*\[/.test(text) && !MESSAGES.test(text) ? parsed(text) : undefined
  if (!Array.isArray(list) || !list.some(holdsMessages)) return [line]
  return list.map((one, at) => ({ text: JSON.stringify(one), number: number + at, offset }))
}

/**
 * The JSON texts of a file. Messages that stand on lines of their own are one list; what stands among them comes first.
 * A list of conversations is each of them.
 */
export async function* documentsOf(lines: AsyncIterable<Line>): AsyncGenerator<Line> {
  const texts = gathered(lines, isOpen, () => true, whole)
  for await (const text of gathered(texts, isMessage, isMessage, listOf)) yield* conversationsIn(text)
}
