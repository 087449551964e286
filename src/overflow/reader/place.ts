/** The words around a number that may belong to it. */
import type { Atom, Sentence } from './atoms.ts'
import { TOKENS, wordSet } from './words.ts'

/** The most words before a number that may belong to it. */
const REACH_LEFT = 14

/** The most words after a number that may belong to it. */
const REACH_RIGHT = 7

/** True if the atom is a number. */
export const isNumber = (atom: Atom | undefined): boolean => atom?.kind === 'number'

/** Returns the words of a sentence, without its numbers. */
export const wordsOf = (sentence: Sentence): string[] =>
  sentence.flatMap((atom) => (atom.kind === 'word' ? [atom.word] : []))

/** Returns the word at an index; empty if there is a number or nothing. */
export const wordAt = (sentence: Sentence, at: number): string => {
  const atom = sentence[at]
  return atom?.kind === 'word' ? atom.word : ''
}

/** Returns the words between a number and the number before it, the nearest first. */
export function leftOf(sentence: Sentence, at: number): string[] {
  const words: string[] = []
  for (let back = at - 1; back >= 0 && words.length < REACH_LEFT && !isNumber(sentence[back]); back--) {
    words.push(wordAt(sentence, back))
  }
  return words
}

/** Returns the words between a number and the next number, the nearest first. */
export function rightOf(sentence: Sentence, at: number): string[] {
  const words: string[] = []
  for (let on = at + 1; on < sentence.length && words.length < REACH_RIGHT && !isNumber(sentence[on]); on++) {
    words.push(wordAt(sentence, on))
  }
  return words
}

const SKIPPED = wordSet(') ] ( the a an your this its in of for from as to about roughly ~')

/** Returns the words after a number without its unit, articles and prepositions. */
export function withoutUnit(right: readonly string[]): readonly string[] {
  let at = 0
  while (at < right.length && (TOKENS.has(right[at] ?? '') || SKIPPED.has(right[at] ?? ''))) at++
  return right.slice(at)
}
