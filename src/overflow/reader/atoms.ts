/** Splits a text into sentences of words and numbers for the reader. */

/** A word, a mark or a number. */
export type Atom =
  | { readonly kind: 'word'; readonly word: string }
  | { readonly kind: 'number'; readonly value: number; readonly isNegative: boolean }

/** The atoms of a sentence, in order. */
export type Sentence = readonly Atom[]

/**
 * One atom: a comparison, a mark, a number that is not part of a name, or a word. A name with digits (`gpt-4-32k`, a date,
 * an id) is one word.
 */
const ATOM =
  /([<>]=|=<|≤|≥|>>|[<>=+()[\]{},:;!?~/%]|-?\d{1,40}(?![\w]|[-.:/]\w)(?=\W|$)|[a-z_][\w'’.-]{0,80}|\d[\w.:/-]{0,80}|-|\.)/gu

/** A number, perhaps with the full stop of its sentence. */
const NUMBER = /^(-?)(\d{1,15})\.?$/

function wordOf(text: string): string {
  return text.length > 1 ? text.replace(/(?<![.'’-])[.'’-]+$/, '') : text
}

/** Splits `131072-token` into the number and its unit, and `140000/131072` into its numbers. */
function split(text: string): readonly string[] {
  const [, digits, unit] = /^(\d{1,15})-?(tokens?|tok)\b/.exec(text) ?? []
  if (digits && unit) return [digits, unit]
  const [, used, most] = /^(\d{4,12})\/(\d{4,12})$/.exec(text) ?? []
  return used && most ? [used, '/', most] : [text]
}

function atomOf(text: string): Atom {
  const [, minus, digits] = NUMBER.exec(text) ?? []
  if (digits !== undefined) return { kind: 'number', value: Number(digits), isNegative: minus === '-' }
  return { kind: 'word', word: fieldOf(wordOf(text)) }
}

/** Returns the last part of a field's path: `max_new_tokens` for `parameters.max_new_tokens`. */
function fieldOf(word: string): string {
  const [, last = word] =
    /^[a-z_]\w{0,60}\.(?:[a-z_]\w{0,60}\.){0,4}((?:max|min|num|n|prompt|input|output|context)_?[a-z_]{3,40})$/.exec(
      word,
    ) ?? []
  return last
}

/** True if a sentence ends with `text`; `next` is the character after it. */
function endsSentence(text: string, next: string): boolean {
  if (text === '!' || text === '?' || text === ';') return true
  if (text.length > 1 && text.endsWith('.') && !/^(?:e\.g|i\.e|approx|max|min|no|vs|etc)\.$/.test(text)) {
    return next === '' || /^\s/.test(next)
  }
  return text === '.'
}

/** The most atoms that are read: the message of an error has far fewer. */
const MAX_ATOMS = 2_000

/** Splits a text in normal form into sentences. */
export function sentencesOf(source: string): Sentence[] {
  const sentences: Atom[][] = []
  let current: Atom[] = []
  const close = () => {
    if (current.length > 0) sentences.push(current)
    current = []
  }
  let count = 0
  for (const line of source.split('\n')) {
    for (const match of line.matchAll(ATOM)) {
      if (++count > MAX_ATOMS) break
      const [text] = match
      if (text !== '.') current.push(...split(text).map(atomOf))
      if (endsSentence(text, line.charAt(match.index + text.length))) close()
    }
    close()
  }
  return sentences
}
