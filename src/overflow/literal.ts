/** Dictionaries as Python prints them: exceptions of Python servers and gateways hold replies in that form. */

/** What stands where a literal begins, and where it ends; `undefined` where it is none, or is broken. */
type Parsed = { readonly value: unknown; readonly end: number } | undefined

const NAMES: Readonly<Record<string, unknown>> = { None: null, True: true, False: false }

const MAX_DEPTH = 8

const ESCAPES: Readonly<Record<string, string>> = { n: '\n', r: '\r', t: '\t' }

function skipSpace(text: string, at: number): number {
  let on = at
  while (/\s/.test(text[on] ?? '')) on++
  return on
}

function stringAt(text: string, at: number): Parsed {
  const quote = text[at]
  let value = ''
  for (let on = at + 1; on < text.length; on++) {
    const char = text[on] ?? ''
    if (char === quote) return { value, end: on + 1 }
    if (char !== '\\') {
      value += char
      continue
    }
    const next = text[++on] ?? ''
    value += ESCAPES[next] ?? (next === quote || next === '\\' ? next : `\\${next}`)
  }
  return undefined
}

/** Members up to the closing bracket, each read by `member`, which says where it ended. */
function membersAt(
  text: string,
  at: number,
  close: string,
  member: (on: number) => number | undefined,
): number | undefined {
  let on = skipSpace(text, at + 1)
  while (text[on] !== close) {
    const end = member(on)
    if (end === undefined) return undefined
    on = skipSpace(text, end)
    if (text[on] === ',') on = skipSpace(text, on + 1)
    else if (text[on] !== close) return undefined
  }
  return on + 1
}

function literalAt(text: string, at: number, depth: number): Parsed {
  const char = text[at]
  if (depth > MAX_DEPTH || char === undefined) return undefined
  if (char === '"' || char === "'") return stringAt(text, at)
  if (char === '{') {
    const value: Record<string, unknown> = {}
    const end = membersAt(text, at, '}', (on) => {
      const key = literalAt(text, on, depth + 1)
      const colon = key && skipSpace(text, key.end)
      if (!key || colon === undefined || text[colon] !== ':') return undefined
      const field = literalAt(text, skipSpace(text, colon + 1), depth + 1)
      if (field && typeof key.value === 'string' && key.value !== '__proto__') value[key.value] = field.value
      return field?.end
    })
    return end === undefined ? undefined : { value, end }
  }
  if (char === '[' || char === '(') {
    const value: unknown[] = []
    const end = membersAt(text, at, char === '[' ? ']' : ')', (on) => {
      const item = literalAt(text, on, depth + 1)
      if (item) value.push(item.value)
      return item?.end
    })
    return end === undefined ? undefined : { value, end }
  }
  const [word = ''] = /^[\w.+-]{1,40}/.exec(text.slice(at, at + 40)) ?? []
  if (Object.hasOwn(NAMES, word)) return { value: NAMES[word], end: at + word.length }
  return word !== '' && Number.isFinite(Number(word))
    ? { value: Number(word), end: at + word.length }
    : undefined
}

/** The dictionary that begins at `start`, and where it ends; `undefined` where none does. */
export function dictionaryAt(
  text: string,
  start: number,
): { readonly value: unknown; readonly start: number; readonly end: number } | undefined {
  const found = text[start] === '{' ? literalAt(text, start, 0) : undefined
  return found && { ...found, start }
}
