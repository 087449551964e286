/** A text as sentences of words and numbers: what the reader reads. */

export type Atom =
  | { readonly kind: 'word'; readonly word: string }
  | { readonly kind: 'number'; readonly value: number; readonly isNegative: boolean }

export type Sentence = readonly Atom[]

/**
 * One atom: a number that is no part of a name, a comparison, a mark, or a word. A name that holds digits (`gpt-4-32k`, a
 * date, an id) is one word.
 */
const ATOM =
  /([<>]=|=<|≤|≥|>>|[<>=+()[\]{},:;!?~/%]|-?\d+(?![\w]|[-.:/]\w)(?=\W|$)|[a-z_][\w'’.-]{0,80}|\d[\w.:/-]{0,80}|-|\.)/gu

/** A number that stands at the end of a sentence, or before `-token`. */
const NUMBER = /^(-?)(\d{1,15})\.?$/

function wordOf(text: string): string {
  return text.length > 1 ? text.replace(/[.'’-]+$/, '') : text
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

/** `parameters.max_new_tokens` is about `max_new_tokens`. */
function fieldOf(word: string): string {
  const [, last = word] =
    /^[a-z_]\w{0,60}\.(?:[a-z_]\w{0,60}\.){0,4}((?:max|min|num|n|prompt|input|output|context)_?[a-z_]{3,40})$/.exec(
      word,
    ) ?? []
  return last
}

/** Marks after which something else is said. */
function endsSentence(text: string, next: string): boolean {
  if (text === '!' || text === '?' || text === ';') return true
  if (text.length > 1 && text.endsWith('.') && !/^(?:e\.g|i\.e|approx|max|min|no|vs|etc)\.$/.test(text)) {
    return next === '' || /^\s/.test(next)
  }
  return text === '.'
}

/** At most so many atoms are read: an error says what it has to say in few. */
const MAX_ATOMS = 2_000

export function sentencesOf(text: string): Sentence[] {
  const sentences: Atom[][] = []
  let current: Atom[] = []
  const close = () => {
    if (current.length > 0) sentences.push(current)
    current = []
  }
  let count = 0
  for (const line of text.split('\n')) {
    for (const match of line.matchAll(ATOM)) {
      if (++count > MAX_ATOMS) break
      const [found] = match
      if (found !== '.') current.push(...split(found).map(atomOf))
      if (endsSentence(found, line.slice(match.index + found.length, match.index + found.length + 1))) close()
    }
    close()
  }
  return sentences
}
