/** Splits a text into sentences of words and numbers for the reader. */

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
const FIELD =
  /^[a-z_]\w{0,60}\.(?:[a-z_]\w{0,60}\.){0,4}((?:max|min|num|n|prompt|input|output|context)_?[a-z_]{3,40})$/

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
