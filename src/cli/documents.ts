/** The JSON texts of a file: one a line, or one for the whole file where it is written over many. */

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
export async function* documentsOf(lines: AsyncIterable<Line>): AsyncGenerator<Line> {
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
