/** What a tool call is, however its arguments are written down: key order and white space aside, nothing else. */
import { countValues, parseForeign } from '../foreign-json.ts'
import { type Hash, hashOf } from '../hash.ts'
import { STEPS_PER_VALUE, type Work } from '../work.ts'

/** A number, or one of the three names. Bounded by what stands between two delimiters. */
const SCALAR = /(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?![\w.+-])/y

const STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/y

const SPACE = /[ \t\n\r]*/y

/** What JSON forbids in a string unless it is escaped. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters it is about
const CONTROL = /[\u0000-\u001f]/

class NotJson extends Error {}

/**
 * Writes a JSON text anew, the keys of every object in order. Scalars stay as they were written, so that 1.0 is not 1 and no digit
 * is lost. Goes as deep as the text, which is bounded.
 */
class Rewriter {
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
  }

  /** @throws {NotJson} */
  write(): string {
    const written = this.#value()
    if (this.#at < this.#text.length) throw new NotJson()
    return written
  }

  #value(): string {
    this.#skip(SPACE)
    const written = this.#take('{') ? this.#object() : this.#take('[') ? this.#list() : this.#scalar()
    this.#skip(SPACE)
    return written
  }

  #list(): string {
    let written = '['
    this.#skip(SPACE)
    if (this.#take(']')) return '[]'
    do written += `${this.#value()},`
    while (this.#take(','))
    this.#close(']')
    return `${written}]`
  }

  #object(): string {
    // Where a key stands twice, JSON readers take the last.
    const members = new Map<string, string>()
    this.#skip(SPACE)
    if (this.#take('}')) return '{}'
    do {
      this.#skip(SPACE)
      const key = this.#string()
      this.#skip(SPACE)
      this.#close(':')
      members.set(key, this.#value())
    } while (this.#take(','))
    this.#close('}')
    let written = '{'
    for (const key of [...members.keys()].sort()) written += `${key}:${members.get(key)},`
    return `${written}}`
  }

  #scalar(): string {
    if (this.#text[this.#at] === '"') return this.#string()
    const scalar = this.#skip(SCALAR)
    if (scalar === '') throw new NotJson()
    return scalar
  }

  /** In one way of the many in which a string can be escaped. */
  #string(): string {
    const raw = this.#skip(STRING)
    if (raw === '' || CONTROL.test(raw)) throw new NotJson()
    if (!raw.includes('\\')) return raw
    try {
      return JSON.stringify(JSON.parse(raw))
    } catch {
      throw new NotJson()
    }
  }

  #close(character: string): void {
    if (!this.#take(character)) throw new NotJson()
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
    value = parseForeign(text)
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

/**
 * The arguments with the keys of every object sorted and without white space; text that is not JSON stays as it is, and
 * so does what is too long or too deep to be read. For comparing only: every value is followed by a comma.
 */
export function canonicalArguments(text: string, work?: Work): string {
  const values = countValues(text)
  if (values === undefined) return text
  work?.spend(values * STEPS_PER_VALUE)
  const texts = writeTexts(text)
  if (texts !== undefined) return texts
  try {
    return new Rewriter(text).write()
  } catch (error) {
    if (error instanceof NotJson) return text
    throw error
  }
}

/** The call of `tool` with these arguments as one text: equal for equal calls, and for no others. */
export function canonicalCall(tool: string, argumentsText: string, work?: Work): string {
  return `${tool.length}:${tool}${canonicalArguments(argumentsText, work)}`
}

/** Names the call of `tool` with these arguments, given as the model wrote them: JSON or not, empty or not. Source: sha256. */
export function callHash(tool: string, argumentsText: string, work?: Work): Hash {
  return hashOf(canonicalCall(tool, argumentsText, work))
}
