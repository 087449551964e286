/** What a tool call is, however its arguments are written down: key order and white space aside, nothing else. */
import { type Hash, hashOf } from './hash.ts'

/** A JSON value as read: scalars are kept as they were written, so that 1.0 is not 1 and no digit is lost. */
type Node = string | readonly Node[] | ReadonlyMap<string, Node>

/** An object or array that is still open; `key` is the one whose value comes next. */
interface Open {
  readonly items: Node[] | Map<string, Node>
  key: string | undefined
}

/** A number, or one of the three names. Bounded by what stands between two delimiters. */
const SCALAR = /(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?![\w.+-])/y

const SPACE = /[ \t\n\r]*/y

/** What JSON forbids in a string unless it is escaped. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters it is about
const CONTROL = /[\u0000-\u001f]/

class NotJson extends Error {}

/** Reads one JSON text from its beginning to its end. Has no recursion, so that no depth is too deep for it. */
class Reader {
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
  }

  /** @throws {NotJson} */
  read(): Node {
    const open: Open[] = []
    for (;;) {
      this.#skip(SPACE)
      let value = this.#opening(open)
      if (value === undefined) continue
      // The value may be the last of what is open, and that of what is open around it.
      for (;;) {
        const around = open.at(-1)
        if (around === undefined) {
          this.#skip(SPACE)
          if (this.#at < this.#text.length) throw new NotJson()
          return value
        }
        put(around, value)
        this.#skip(SPACE)
        if (this.#take(',')) {
          if (around.items instanceof Map) this.#readKey(around)
          break
        }
        if (!this.#take(around.items instanceof Map ? '}' : ']')) throw new NotJson()
        open.pop()
        value = around.items
      }
    }
  }

  /** A whole value, or `undefined` where something was opened whose first value comes next. */
  #opening(open: Open[]): Node | undefined {
    if (this.#take('{')) {
      const items = new Map<string, Node>()
      this.#skip(SPACE)
      if (this.#take('}')) return items
      const opened: Open = { items, key: undefined }
      this.#readKey(opened)
      open.push(opened)
      return undefined
    }
    if (this.#take('[')) {
      const items: Node[] = []
      this.#skip(SPACE)
      if (this.#take(']')) return items
      open.push({ items, key: undefined })
      return undefined
    }
    if (this.#text[this.#at] === '"') return JSON.stringify(this.#string())
    const scalar = this.#skip(SCALAR)
    if (scalar === '') throw new NotJson()
    return scalar
  }

  #readKey(object: Open): void {
    this.#skip(SPACE)
    if (this.#text[this.#at] !== '"') throw new NotJson()
    object.key = this.#string()
    this.#skip(SPACE)
    if (!this.#take(':')) throw new NotJson()
  }

  #string(): string {
    const start = this.#at
    let quote = start
    let backslashes: number
    do {
      quote = this.#text.indexOf('"', quote + 1)
      if (quote === -1) throw new NotJson()
      backslashes = 0
      while (this.#text[quote - 1 - backslashes] === '\\') backslashes++
    } while (backslashes % 2 === 1)
    this.#at = quote + 1
    const raw = this.#text.slice(start, quote + 1)
    if (!raw.includes('\\')) {
      if (CONTROL.test(raw)) throw new NotJson()
      return raw.slice(1, -1)
    }
    try {
      return String(JSON.parse(raw))
    } catch {
      throw new NotJson()
    }
  }

  #take(character: string): boolean {
    if (this.#text[this.#at] !== character) return false
    this.#at++
    return true
  }

  #skip(pattern: RegExp): string {
    pattern.lastIndex = this.#at
    const found = pattern.exec(this.#text)?.[0] ?? ''
    this.#at += found.length
    return found
  }
}

/** Where a key stands twice, JSON readers take the last. */
function put(open: Open, value: Node): void {
  if (!(open.items instanceof Map)) open.items.push(value)
  else if (open.key !== undefined) open.items.set(open.key, value)
}

function byKey([a]: readonly [string, Node], [b]: readonly [string, Node]): number {
  return a < b ? -1 : a > b ? 1 : 0
}

/** Writes a value with the keys of every object in order. What is left to write is a stack of its own. */
function write(root: Node): string {
  const written: string[] = []
  const left: (Node | { readonly literal: string })[] = [root]
  for (let next = left.pop(); next !== undefined; next = left.pop()) {
    if (typeof next === 'string') written.push(next)
    else if ('literal' in next) written.push(next.literal)
    else if (next instanceof Map) {
      left.push({ literal: '}' })
      for (const [key, value] of [...next].sort(byKey).reverse()) {
        left.push({ literal: ',' }, value, { literal: `${JSON.stringify(key)}:` })
      }
      left.push({ literal: '{' })
    } else {
      left.push({ literal: ']' })
      for (const value of (next as readonly Node[]).toReversed()) left.push({ literal: ',' }, value)
      left.push({ literal: '[' })
    }
  }
  return written.join('')
}

/** An object with one text, in characters that are written as they are. */
const ONE_TEXT = /^\{ ?"([ !#-[\]-~]*)": ?"([ !#-[\]-~]*)" ?\}$/

/**
 * The same as writing what was read, for the most frequent kinds of arguments and several times as fast: an object
 * whose values are all texts. `undefined` for any other, and for text that is not JSON.
 */
function writeTexts(text: string): string | undefined {
  const one = ONE_TEXT.exec(text)
  if (one) return `{"${one[1]}":"${one[2]}",}`
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined
  let written = '{'
  for (const key of Object.keys(value).sort()) {
    const item: unknown = Reflect.get(value, key)
    if (typeof item !== 'string') return undefined
    written += `${JSON.stringify(key)}:${JSON.stringify(item)},`
  }
  return `${written}}`
}

/** Longer arguments are not read twice. */
const MAX_FAST = 65_536

/**
 * The arguments with the keys of every object sorted and without white space; text that is not JSON stays as it is.
 * For comparing only: every value is followed by a comma.
 */
export function canonicalArguments(text: string): string {
  const texts = text.length <= MAX_FAST ? writeTexts(text) : undefined
  if (texts !== undefined) return texts
  try {
    return write(new Reader(text).read())
  } catch (error) {
    if (error instanceof NotJson) return text
    throw error
  }
}

/** The call of `tool` with these arguments as one text: equal for equal calls, and for no others. */
export function canonicalCall(tool: string, argumentsText: string): string {
  return `${tool.length}:${tool}${canonicalArguments(argumentsText)}`
}

/** Names the call of `tool` with these arguments, given as the model wrote them: JSON or not, empty or not. Source: sha256. */
export function callHash(tool: string, argumentsText: string): Hash {
  return hashOf(canonicalCall(tool, argumentsText))
}
