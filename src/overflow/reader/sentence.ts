/** Splits a text into sentences of words and numbers, and finds the words around a number that may belong to it. */
import { TOKENS, upTo, wordSet } from './words.ts'

/** A word, a mark or a number, in the order of the text. */
export type Sentence = readonly (string | number)[]

const MARK = /[<>]=|=<|≤|≥|>>|[<>=+()[\]{},:;!?~/%]/
/** A number that is not part of a name. */
const NUMBER = /-?\d{1,40}(?![\w]|[-.:/]\w)(?=\W|$)/
/** A name with digits (`gpt-4-32k`, a date, an id) is one word. */
const WORD = /[a-z_][\w'’.-]{0,80}|\d[\w.:/-]{0,80}/
const ATOM = new RegExp(`${MARK.source}|${NUMBER.source}|${WORD.source}|-|\\.`, 'gu')

/** The names of fields that are read without the path before them: `max_new_tokens` of `parameters.max_new_tokens`. */
const FIELD = /^[a-z_]\w{0,60}\.(?:[a-z_]\w{0,60}\.){0,4}((?:max|min|num|n|prompt|input|output|context)_?[a-z_]{3,40})$/

/** Returns what an atom of the text consists of: `131072-token` is a number and its unit. */
function partsOf(text: string): Sentence {
  const [, digits, unit] = /^(\d{1,15})-?(tokens?|tok)\b/.exec(text) ?? []
  if (digits && unit) return [Number(digits), unit]
  const [, used, most] = /^(\d{4,12})\/(\d{4,12})$/.exec(text) ?? []
  if (used && most) return [Number(used), '/', Number(most)]
  // Perhaps with the full stop of its sentence.
  if (/^-?\d{1,15}\.?$/.test(text)) return [Number(text)]
  const word = text.length > 1 ? text.replace(/(?<![.'’-])[.'’-]+$/, '') : text
  return [FIELD.exec(word)?.[1] ?? word]
}

const ABBREVIATION = /^(?:e\.g|i\.e|approx|max|min|no|vs|etc)\.$/

/** The most atoms that are read: the message of an error has far fewer. */
const MAX_ATOMS = 2_000

export function sentencesOf(source: string): Sentence[] {
  const sentences: Sentence[] = []
  let count = 0
  for (const line of source.split('\n')) {
    let current: (string | number)[] = []
    for (const match of line.matchAll(ATOM)) {
      if (++count > MAX_ATOMS) break
      const [text] = match
      if (text !== '.') current.push(...partsOf(text))
      const isLastWord = text.endsWith('.') && /^\s?$/.test(line.charAt(match.index + text.length))
      if (/^[.!?;]$/.test(text) || (isLastWord && !ABBREVIATION.test(text))) {
        sentences.push(current)
        current = []
      }
    }
    sentences.push(current)
  }
  return sentences
}

export function wordsOf(sentence: Sentence): string[] {
  return sentence.filter((atom) => typeof atom === 'string')
}

export function isNumberAt(sentence: Sentence, at: number): boolean {
  return typeof sentence[at] === 'number'
}

/** Returns the word at an index; empty if there is a number or nothing. */
export function wordAt(sentence: Sentence, at: number): string {
  const atom = sentence[at]
  return typeof atom === 'string' ? atom : ''
}

/** A number of a sentence, and the words around it, the nearest first. */
export interface Place {
  readonly sentence: Sentence
  readonly at: number
  /** The words back to the number before; `isLed`: there is one near enough. */
  readonly left: readonly string[]
  readonly isLed: boolean
  /** The words up to the next number; `leads`: there is one near enough. */
  readonly between: readonly string[]
  readonly leads: boolean
  /** The words of `between` that belong to this number: in `input=7000 output=2000`, `output` belongs to 2000. */
  readonly right: readonly string[]
  /** `right` without the number's unit, articles and prepositions. */
  readonly rest: readonly string[]
}

/** The most words before a number that may belong to it, and the most after it. */
const REACH_LEFT = 14
const REACH_RIGHT = 7

export function placeAt(sentence: Sentence, at: number): Place {
  const left = wordsFrom(sentence, at, -1, REACH_LEFT)
  const between = wordsFrom(sentence, at, 1, REACH_RIGHT)
  const isLed = isNumberAt(sentence, at - left.length - 1)
  const leads = isNumberAt(sentence, at + between.length + 1)
  // `140000 tokens (input 120000 + …`: the words in the bracket belong to the numbers in it.
  const belonging = leads && !between.includes(')') ? upTo(between, between.indexOf('(')) : between
  const last = belonging.at(-1)
  const right = leads && (last === '=' || last === ':') && belonging.length <= 3 ? [] : belonging
  return { sentence, at, left, isLed, between, leads, right, rest: withoutUnit(right) }
}

function wordsFrom(sentence: Sentence, at: number, step: 1 | -1, most: number): string[] {
  const words: string[] = []
  for (let next = at + step; words.length < most; next += step) {
    const atom = sentence[next]
    if (typeof atom !== 'string') break
    words.push(atom)
  }
  return words
}

const SKIPPED = wordSet(') ] ( the a an your this its in of for from as to about roughly ~')

/** Returns the words after a number without its unit, articles and prepositions. */
export function withoutUnit(right: readonly string[]): readonly string[] {
  const start = right.findIndex((word) => !TOKENS.has(word) && !SKIPPED.has(word))
  return start === -1 ? [] : right.slice(start)
}
