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

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** Opens an object or a list that goes on in the next line. */
function isOpen(text: string): boolean {
  return /^\s*[[{]/.test(text) && !isJson(text)
}

/** The lines of a file, or all of them as one where the first begins a JSON text that the last one ends. */
async function* textsOf(lines: AsyncIterable<Line>): AsyncGenerator<Line> {
  let held: Line[] | undefined
  let length = 0
  let isFirst = true
  for await (const line of lines) {
    if (isFirst && line.text.trim() !== '') {
      isFirst = false
      if (isOpen(line.text)) held = []
    }
    if (!held) {
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
  if (!held) return
  const text = held.map((line) => line.text).join('\n')
  const [first] = held
  if (first && isJson(text)) yield { text, number: first.number, offset: held.at(-1)?.offset ?? 0 }
  else yield* held
}

/** One message, or one of the items that Responses has for calls and their results. */
function isMessage(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text)
    if (typeof value !== 'object' || value === null || 'messages' in value) return false
    if ('input' in value && Array.isArray(value.input)) return false
    const isSaid = 'role' in value && typeof value.role === 'string'
    return isSaid || ('call_id' in value && typeof value.call_id === 'string')
  } catch {
    return false
  }
}

/** The list of what the lines hold. */
function listOf(lines: readonly Line[]): Line[] {
  const [first] = lines
  if (!first) return []
  const text = `[${lines.map((line) => line.text).join(',')}]`
  return [{ text, number: first.number, offset: lines.at(-1)?.offset ?? 0 }]
}

/** The JSON texts of a file. Messages that stand on lines of their own are one list; what stands among them comes first. */
export async function* documentsOf(lines: AsyncIterable<Line>): AsyncGenerator<Line> {
  let messages: Line[] | undefined
  let length = 0
  let isFirst = true
  for await (const line of textsOf(lines)) {
    if (isFirst && line.text.trim() !== '') {
      isFirst = false
      if (isMessage(line.text)) messages = []
    }
    if (!messages || !isMessage(line.text)) {
      yield line
      continue
    }
    messages.push(line)
    length += line.text.length + 1
    if (length > MAX_WHOLE) {
      yield* messages
      messages = undefined
    }
  }
  yield* listOf(messages ?? [])
}
