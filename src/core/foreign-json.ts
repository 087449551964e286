/**
 * JSON that somebody else wrote, built into objects within bounds. A bracket is a byte for its writer and an object of a
 * hundred bytes for its reader: what nests or branches further than any API's own values is not built.
 */

import { STEPS_PER_VALUE, TooMuchToRead, type Work } from './work.ts'

/** Characters of an id, of the arguments of a call, of an error. */
export const MAX_LENGTH = 65_536

/** Objects and lists within one another. */
export const MAX_DEPTH = 64

/** Values in one text, whatever its length: most of what is long is one string. */
export const MAX_VALUES = 65_536

const QUOTE = 0x22
const COMMA = 0x2c
const OPEN_BRACKET = 0x5b
const BACKSLASH = 0x5c
const CLOSE_BRACKET = 0x5d
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d

/** Where the string ends that begins `at`: the offset after its closing quote, or that of the text's end. */
function afterString(text: string, at: number): number {
  let quote = at
  for (;;) {
    quote = text.indexOf('"', quote + 1)
    if (quote === -1) return text.length
    let backslashes = 0
    while (text.charCodeAt(quote - 1 - backslashes) === BACKSLASH) backslashes++
    if (backslashes % 2 === 0) return quote + 1
  }
}

/**
 * How many values a JSON text may have, to judge by its brackets and commas: nothing is built, and no more of them are looked at
 * than are allowed. `undefined` where they are too many, or too deep, or the text is longer than `maxLength` characters.
 */
export function countValues(text: string, maxLength: number = MAX_LENGTH): number | undefined {
  if (text.length > maxLength) return undefined
  let depth = 0
  let values = 1
  let at = 0
  while (at < text.length) {
    const code = text.charCodeAt(at)
    if (code === QUOTE) {
      at = afterString(text, at)
      continue
    }
    if (code === COMMA) values++
    else if (code === OPEN_BRACKET || code === OPEN_BRACE) {
      values++
      depth++
      if (depth > MAX_DEPTH) return undefined
    } else if (code === CLOSE_BRACKET || code === CLOSE_BRACE) depth--
    if (values > MAX_VALUES) return undefined
    at++
  }
  return values
}

/**
 * Decodes a JSON text of at most `maxLength` characters. `work` takes note of it.
 * @throws {SyntaxError} when it is not JSON.
 * @throws {TooMuchToRead} when it is longer, or holds more or deeper values than are built.
 */
export function parseForeign(text: string, maxLength: number = MAX_LENGTH, work?: Work): unknown {
  const values = countValues(text, maxLength)
  if (values === undefined) throw new TooMuchToRead()
  work?.decode(text.length)
  work?.spend(values * STEPS_PER_VALUE)
  return JSON.parse(text)
}
