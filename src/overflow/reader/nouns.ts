/** Finds the quantity that a number counts: the input, the output, both together, or the window. */
import { MODALS } from './phrases.ts'
import { isNumber, leftOf, rightOf, type Sentence, withoutUnit, wordsOf } from './sentence.ts'
import { cueOf, type Noun, nounOf as nounOfWord, type Role, wordSet } from './words.ts'

const PHRASE_ENDS = wordSet('with + plus , ) ( ; but and however > <= <')

const LEFT_ENDS = new Set([',', ';', ')', 'but', 'however', 'while', '>', '<='])

/** Returns the first noun among the next words of the same phrase. */
function nounAmong(words: readonly string[], reach: number): Noun | undefined {
  for (const word of words.slice(0, reach)) {
    if (PHRASE_ENDS.has(word)) return undefined
    const noun = nounOfWord(word)
    if (noun) return noun
  }
  return undefined
}

/** Returns the quantity that a number with this role counts, by the words before and after it. */
export function nounOf(left: readonly string[], right: readonly string[], role: Role): Noun | undefined {
  const after = nounAmong(withoutUnit(right), role === 'limit' ? 4 : 3)
  if (role !== 'limit') {
    const before = nounBefore(left, role)
    // `the prompt has N tokens in total`
    if (after === 'total' && before === 'input') return before
    return after === 'window' ? before : (after ?? before)
  }
  return after && after !== 'window' && cueOf(withoutUnit(right)[0] ?? '') !== 'exceed'
    ? after
    : (nounBefore(left, role) ?? after)
}

/** The field for the output, in words. */
const ASKED_OUTPUT =
  /(?:^| )(?:max|maximum) tokens? (?:you )?(?:requested|must|is|are|value|parameter|should|cannot|[:=(])/

/** Returns the quantity that the words before a number name; `input context length` is a window too. */
function nounBefore(left: readonly string[], role: Role): Noun | undefined {
  const phrase: string[] = []
  for (const word of left) {
    if (LEFT_ENDS.has(word) || (role === 'limit' && cueOf(word) === 'exceed')) break
    phrase.push(word)
  }
  const nouns = phrase.flatMap((word) => nounOfWord(word) ?? [])
  const isBoth = nouns.includes('input') && nouns.includes('output')
  if (isBoth || (nouns.includes('total') && !nouns.includes('input') && !nouns.includes('output'))) return 'total'
  const strong = phrase.find((word) =>
    /^(?:context|window|n_ctx|context_length|sequence|max_model_len|max_seq_len)$/.test(word),
  )
  if (role === 'limit' && strong) return 'window'
  const text = phrase.toReversed().join(' ')
  if (ASKED_OUTPUT.test(text)) return 'output'
  if (role === 'value' && /(?:^| )(?:max|maximum) tokens?(?: of| is)?(?: [:=(])?$/.test(text)) return 'output'
  // `the prompt (total length N)` is a prompt.
  return nouns.find((noun) => noun !== 'window' && noun !== 'total') ?? nouns[0]
}

const PLUS = new Set(['+', 'plus'])

/** True if a plus is among the words right after a number. */
const isPlusNear = (right: readonly string[]): boolean =>
  withoutUnit(right)
    .slice(0, 4)
    .some((word) => PLUS.has(word))

/** True for A and B in `A + B > C` and in `input (A) + output (B)`. */
export function isSummand(sentence: Sentence, at: number): boolean {
  const right = rightOf(sentence, at)
  // The next summand follows, unless another phrase begins before the plus.
  const mark = right.find((word) => PLUS.has(word) || word === ',' || MODALS.has(word) || cueOf(word) === 'exceed')
  if (isPlusNear(right) && PLUS.has(mark ?? '') && isNumber(sentence[at + right.length + 1])) return true
  const left = leftOf(sentence, at)
  // The other summand must be a number before the plus.
  if (!isNumber(sentence[at - left.length - 1])) return false
  for (const word of left.slice(0, 6)) {
    if (PLUS.has(word)) return true
    if (word === ')' && left[0] === ')') return false
    if (MODALS.has(word) || word === '<=' || word === '=' || cueOf(word) === 'exceed') return false
  }
  return false
}

/** The most atoms before a number that are searched, because each number of a sentence searches for itself. */
const REACH_BACK = 60

function wordsBefore(sentence: Sentence, at: number): string[] {
  return wordsOf(sentence.slice(Math.max(0, at - REACH_BACK), at))
}

/** Returns the quantity of a summand: input or output. */
export function summandNoun(sentence: Sentence, at: number): Noun {
  const left = leftOf(sentence, at)
  const plus = isPlusNear(rightOf(sentence, at)) ? -1 : left.findIndex((word) => PLUS.has(word))
  const nearest = nounBefore(plus === -1 ? left : left.slice(0, plus), 'value')
  if (nearest === 'input' || nearest === 'output') return nearest
  const named = wordsBefore(sentence, at)
    .map((word) => nounOfWord(word))
    .find((noun) => noun === 'input' || noun === 'output')
  return (plus === -1) === (named === 'output') ? 'output' : 'input'
}

/** Returns the quantity right after a number: `1000 in the messages`, `204186 input`. */
export function partNoun(rest: readonly string[]): Noun | undefined {
  const noun = nounAmong(rest, 3)
  return noun === 'input' || noun === 'output' ? noun : undefined
}

/** Returns the quantity of the range that ends at a number. */
export function rangeNoun(sentence: Sentence, at: number): Noun | undefined {
  const words = wordsBefore(sentence, at).filter((word) => word !== ',')
  return nounBefore(words.toReversed(), 'limit')
}
