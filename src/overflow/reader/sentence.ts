/** Splits a text into sentences of words and numbers, and finds the words around a number that may belong to it. */
import { TOKENS, wordSet } from './words.ts'

/** A word, a mark or a number. */
export type Atom =
  | { readonly kind: 'word'; readonly word: string }
  | { readonly kind: 'number'; readonly value: number; readonly isNegative: boolean }

/** The atoms of a sentence, in order. */
export type Sentence = readonly Atom[]

const MARK = /[<>]=|=<|≤|≥|>>|[<>=+()[\]{},:;!?~/%]/
/** A number that is not part of a name. */
const NUMBER = /-?\d{1,40}(?![\w]|[-.:/]\w)(?=\W|$)/
/** A name with digits (`gpt-4-32k`, a date, an id) is one word. */
const WORD = /[a-z_][\w'’.-]{0,80}|\d[\w.:/-]{0,80}/
const ATOM = new RegExp(`${MARK.source}|${NUMBER.source}|${WORD.source}|-|\\.`, 'gu')

/** Splits `131072-token` into the number and its unit, and `140000/131072` into its numbers. */
function split(text: string): readonly string[] {
  const [, digits, unit] = /^(\d{1,15})-?(tokens?|tok)\b/.exec(text) ?? []
  if (digits && unit) return [digits, unit]
  const [, used, most] = /^(\d{4,12})\/(\d{4,12})$/.exec(text) ?? []
  return used && most ? [used, '/', most] : [text]
}

/** The names of fields that are read without the path before them: `max_new_tokens` of `parameters.max_new_tokens`. */
const FIELD = /^[a-z_]\w{0,60}\.(?:[a-z_]\w{0,60}\.){0,4}((?:max|min|num|n|prompt|input|output|context)_?[a-z_]{3,40})$/

function atomOf(text: string): Atom {
  // Perhaps with the full stop of its sentence.
  const [, minus, digits] = /^(-?)(\d{1,15})\.?$/.exec(text) ?? []
  if (digits !== undefined) return { kind: 'number', value: Number(digits), isNegative: minus === '-' }
  const word = text.length > 1 ? text.replace(/(?<![.'’-])[.'’-]+$/, '') : text
  return { kind: 'word', word: FIELD.exec(word)?.[1] ?? word }
}

const ABBREVIATION = /^(?:e\.g|i\.e|approx|max|min|no|vs|etc)\.$/

/** The most atoms that are read: the message of an error has far fewer. */
const MAX_ATOMS = 2_000

/** Splits a text in normal form into sentences. */
export function sentencesOf(source: string): Sentence[] {
  const sentences: Atom[][] = []
  let count = 0
  for (const line of source.split('\n')) {
    let current: Atom[] = []
    for (const match of line.matchAll(ATOM)) {
      if (++count > MAX_ATOMS) break
      const [text] = match
      if (text !== '.') current.push(...split(text).map(atomOf))
      const isLastWord = text.endsWith('.') && /^\s?$/.test(line.charAt(match.index + text.length))
      if (/^[.!?;]$/.test(text) || (isLastWord && !ABBREVIATION.test(text))) {
        sentences.push(current)
        current = []
      }
    }
    sentences.push(current)
  }
  return sentences.filter((sentence) => sentence.length > 0)
}

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
