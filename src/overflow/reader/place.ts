/** The words around a number, as far as they speak of it. */
import type { Atom, Sentence } from './atoms.ts'
import { TOKENS, wordSet } from './words.ts'

/** How far from a number words still speak of it. */
const REACH_LEFT = 14

const REACH_RIGHT = 7

export const isNumber = (atom: Atom | undefined): boolean => atom?.kind === 'number'

export const wordAt = (sentence: Sentence, at: number): string => {
  const atom = sentence[at]
  return atom?.kind === 'word' ? atom.word : ''
}

/** The words before a number, nearest first, to the number before it. */
export function leftOf(sentence: Sentence, at: number): string[] {
  const words: string[] = []
  for (let back = at - 1; back >= 0 && words.length < REACH_LEFT && !isNumber(sentence[back]); back--) {
    words.push(wordAt(sentence, back))
  }
  return words
}

/** The words after a number, nearest first, to the next number. */
export function rightOf(sentence: Sentence, at: number): string[] {
  const words: string[] = []
  for (let on = at + 1; on < sentence.length && words.length < REACH_RIGHT && !isNumber(sentence[on]); on++) {
    words.push(wordAt(sentence, on))
  }
  return words
}

const SKIPPED = wordSet(') ] ( the a an your this its in of for from as to about roughly ~')

/** What comes after a number, without its unit and what only joins. */
export function head(right: readonly string[]): readonly string[] {
  let at = 0
  while (at < right.length && (TOKENS.has(right[at] ?? '') || SKIPPED.has(right[at] ?? ''))) at++
  return right.slice(at)
}
