/** Hashes tool calls by tool and arguments, whatever the order of keys and the white space in the arguments. */
import { countValues, parseForeign } from '../foreign-json.ts'
import { type Hash, hashOf } from '../hash.ts'
import { STEPS_PER_VALUE, type Work } from '../work.ts'

/** A number, or one of the three names. Bounded by what stands between two delimiters. */
const SCALAR = /(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?![\w.+-])/y

const STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/y

const SPACE = /[ \t\n\r]*/y

/** Characters that JSON forbids in a string unless they are escaped. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters it is about
const CONTROL = /[\u0000-\u001f]/

class NotJson extends Error {}

/** Arguments in which a model comments on its call, as names and as JSON: another wording makes no other call. */
const COSMETIC: ReadonlySet<string> = new Set(
  ['description', 'task_progress'].flatMap((key) => [key, `"${key}"`]),
)

/** Returns the keys of the arguments, sorted, without cosmetic ones where there are others. */
function sortedArguments(keys: readonly string[]): readonly string[] {
  const others = keys.filter((key) => !COSMETIC.has(key))
  return (others.length > 0 ? others : [...keys]).sort()
}

/** A text, and how far it was read. */
interface Cursor {
  readonly text: string
  at: number
}

/**
 * Rewrites a whole JSON text with the keys of every object sorted, without cosmetic arguments. Scalars stay as they are written, so that 1.0 is not 1
 * and no digit is lost. The recursion is as deep as the text, which is bounded. Throws `NotJson`.
 */
function rewrite(text: string): string {
  const cursor = { text, at: 0 }
  const rewritten = rewriteValue(cursor, sortedArguments)
  if (cursor.at < text.length) throw new NotJson()
  return rewritten
}

type SortKeys = (keys: readonly string[]) => readonly string[]

function rewriteValue(cursor: Cursor, sortKeys: SortKeys = (keys) => [...keys].sort()): string {
  skip(cursor, SPACE)
  const rewritten = take(cursor, '{')
    ? rewriteObject(cursor, sortKeys)
    : take(cursor, '[')
      ? rewriteList(cursor)
      : rewriteScalar(cursor)
  skip(cursor, SPACE)
  return rewritten
}

function rewriteList(cursor: Cursor): string {
  let rewritten = '['
  skip(cursor, SPACE)
  if (take(cursor, ']')) return '[]'
  do rewritten += `${rewriteValue(cursor)},`
  while (take(cursor, ','))
  expectCharacter(cursor, ']')
  return `${rewritten}]`
}

function rewriteObject(cursor: Cursor, sortKeys: SortKeys): string {
  // If a key occurs twice, JSON parsers take the last one.
  const members = new Map<string, string>()
  skip(cursor, SPACE)
  if (take(cursor, '}')) return '{}'
  do {
    skip(cursor, SPACE)
    const key = rewriteString(cursor)
    skip(cursor, SPACE)
    expectCharacter(cursor, ':')
    members.set(key, rewriteValue(cursor))
  } while (take(cursor, ','))
  expectCharacter(cursor, '}')
  let rewritten = '{'
  for (const key of sortKeys([...members.keys()])) rewritten += `${key}:${members.get(key)},`
  return `${rewritten}}`
}

function rewriteScalar(cursor: Cursor): string {
  if (cursor.text[cursor.at] === '"') return rewriteString(cursor)
  const scalar = skip(cursor, SCALAR)
  if (scalar === '') throw new NotJson()
  return scalar
}

/** Escapes a string in one way of the many that JSON allows. */
function rewriteString(cursor: Cursor): string {
  const raw = skip(cursor, STRING)
  if (raw === '' || CONTROL.test(raw)) throw new NotJson()
  if (!raw.includes('\\')) return raw
  try {
    return JSON.stringify(JSON.parse(raw))
  } catch {
    throw new NotJson()
  }
}

function expectCharacter(cursor: Cursor, character: string): void {
  if (!take(cursor, character)) throw new NotJson()
}

function take(cursor: Cursor, character: string): boolean {
  if (cursor.text[cursor.at] !== character) return false
  cursor.at++
  return true
}

/** Returns the text that `pattern` matches at the cursor, and moves the cursor behind it. */
function skip(cursor: Cursor, pattern: RegExp): string {
  pattern.lastIndex = cursor.at
  const match = pattern.exec(cursor.text)?.[0] ?? ''
  cursor.at += match.length
  return match
}

/** An object with one text, in characters that need no escape. */
const ONE_TEXT = /^\{ ?"([ !#-[\]-~]*)": ?"([ !#-[\]-~]*)" ?\}$/

/**
 * Returns the same as `rewrite`, several times as fast, for the most frequent kind of arguments: an object whose values
 * are all texts. `undefined` for any other, and for text that is not JSON.
 */
function rewriteTexts(text: string): string | undefined {
  const [, onlyKey, onlyText] = ONE_TEXT.exec(text) ?? []
  if (onlyKey !== undefined) return `{"${onlyKey}":"${onlyText}",}`
  let value: unknown
  try {
    value = parseForeign(text)
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined
  let rewritten = '{'
  for (const key of sortedArguments(Object.keys(value))) {
    const item: unknown = Reflect.get(value, key)
    if (typeof item !== 'string') return undefined
    rewritten += `${JSON.stringify(key)}:${JSON.stringify(item)},`
  }
  return `${rewritten}}`
}

/**
 * Returns the arguments with the keys of every object sorted, without white space and cosmetic arguments. Text that is not JSON, or is too
 * long or too deep to be read, stays as it is. For comparing only: a comma follows every value. Throws `TooMuchToRead`.
 */
export function canonicalArguments(text: string, work?: Work): string {
  const values = countValues(text)
  if (values === undefined) return text
  work?.spend(values * STEPS_PER_VALUE)
  const texts = rewriteTexts(text)
  if (texts !== undefined) return texts
  try {
    return rewrite(text)
  } catch (error) {
    if (error instanceof NotJson) return text
    throw error
  }
}

/** Returns a call of `tool` as one text, the same for equal calls and no others. Throws `TooMuchToRead`. */
function canonicalCall(tool: string, argumentsText: string, work?: Work): string {
  return `${tool.length}:${tool}${canonicalArguments(argumentsText, work)}`
}

/** Hash (sha256) of a call of `tool` with the arguments as the model wrote them, JSON or not. Throws `TooMuchToRead`. */
export function callHash(tool: string, argumentsText: string, work?: Work): Hash {
  return hashOf(canonicalCall(tool, argumentsText, work))
}
