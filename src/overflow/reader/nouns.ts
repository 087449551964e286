/** Finds the quantity that a number counts: the input, the output, both together, or the window. */
import type { Sentence } from './atoms.ts'
import { MODALS } from './phrases.ts'
import { head, isNumber, leftOf, rightOf } from './place.ts'
import type { Role } from './role.ts'
import { cueOf, type Noun, nounOf as nounOfWord, wordSet } from './words.ts'

const PHRASE_ENDS = wordSet('with + plus , ) ( ; but and however > <= <')

const LEFT_ENDS = new Set([',', ';', ')', 'but', 'however', 'while', '>', '<='])

/** Returns the nearest noun among the words of the same phrase. */
function nounAmong(words: readonly string[], stops: ReadonlySet<string>, reach: number): Noun | undefined {
  for (const word of words.slice(0, reach)) {
    if (stops.has(word)) return undefined
    const noun = nounOfWord(word)
    if (noun) return noun
  }
  return undefined
}

/** Returns the quantity that a number with this role counts, by the words before and after it. */
export function nounOf(left: readonly string[], right: readonly string[], role: Role): Noun | undefined {
  const after = nounAmong(head(right), PHRASE_ENDS, role === 'limit' ? 4 : 3)
  if (role !== 'limit') {
    const before = nounBefore(left, role)
    // `the prompt has N tokens in total`
    if (after === 'total' && before === 'input') return before
    return after === 'window' ? before : (after ?? before)
  }
  return after && after !== 'window' && cueOf(head(right)[0] ?? '') !== 'exceed'
    ? after
    : (nounBefore(left, role) ?? after)
}

/** Returns the quantity that the words before a number name; `input context length` is a window too. */
function nounBefore(left: readonly string[], role: Role): Noun | undefined {
  const phrase: string[] = []
  for (const word of left) {
    if (LEFT_ENDS.has(word) || (role === 'limit' && cueOf(word) === 'exceed')) break
    phrase.push(word)
  }
  const nouns = phrase.flatMap((word) => nounOfWord(word) ?? [])
  const isBoth = nouns.includes('input') && nouns.includes('output')
  if (isBoth || (nouns.includes('total') && !nouns.includes('input') && !nouns.includes('output')))
    return 'total'
  const strong = phrase.find((word) =>
    /^(?:context|window|n_ctx|context_length|sequence|max_model_len|max_seq_len)$/.test(word),
  )
  if (role === 'limit' && strong) return 'window'
  const isTokensAsked =
    /(?:^| )(?:max|maximum) tokens? (?:you )?(?:requested|must|is|are|value|parameter|should|cannot|[:=(])/.test(
      phrase.toReversed().join(' '),
    )
  const asks = /(?:^| )(?:max|maximum) tokens?(?: of| is)?(?: [:=(])?$/.test(phrase.toReversed().join(' '))
  if (isTokensAsked || (role === 'value' && asks)) return 'output'
  // `the prompt (total length N)` is a prompt.
  return nouns.find((noun) => noun !== 'window' && noun !== 'total') ?? nouns[0]
}

const PLUS = new Set(['+', 'plus'])

/** True for A and B in `A + B > C` and in `input (A) + output (B)`. */
export function isSummand(sentence: Sentence, at: number): boolean {
  const right = rightOf(sentence, at)
  const plus = head(right)
    .slice(0, 4)
    .findIndex((word) => PLUS.has(word))
  if (plus !== -1 && isNumber(sentence[at + right.length + 1]) && !endsBefore(right)) return true
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

/** True if another phrase begins before the plus. */
function endsBefore(right: readonly string[]): boolean {
  for (const word of right) {
    if (PLUS.has(word)) return false
    if (word === ',' || MODALS.has(word) || cueOf(word) === 'exceed') return true
  }
  return false
}

/** The most atoms before a number that are searched, because each number of a sentence searches for itself. */
const REACH_BACK = 60

function wordsBefore(sentence: Sentence, at: number): string[] {
  return sentence
    .slice(Math.max(0, at - REACH_BACK), at)
    .flatMap((atom) => (atom.kind === 'word' ? [atom.word] : []))
}

/** Returns the quantity of a summand: input or output. */
export function summandNoun(sentence: Sentence, at: number): Noun {
  const left = leftOf(sentence, at)
  const isFollowed = head(rightOf(sentence, at))
    .slice(0, 4)
    .some((word) => PLUS.has(word))
  const plus = isFollowed ? -1 : left.findIndex((word) => PLUS.has(word))
  const nearest = nounBefore(plus === -1 ? left : left.slice(0, plus), 'value')
  if (nearest === 'input' || nearest === 'output') return nearest
  const isFirst = plus === -1
  const named = wordsBefore(sentence, at)
    .map((word) => nounOfWord(word))
    .find((noun) => noun === 'input' || noun === 'output')
  return isFirst === (named === 'output') ? 'output' : 'input'
}

/** Returns the quantity right after a number: `1000 in the messages`, `204186 input`. */
export function partNoun(rest: readonly string[]): Noun | undefined {
  const noun = nounAmong(rest, PHRASE_ENDS, 3)
  return noun === 'input' || noun === 'output' ? noun : undefined
}

/** Returns the quantity of the range that ends at a number. */
export function rangeNoun(sentence: Sentence, at: number): Noun | undefined {
  const words = wordsBefore(sentence, at).filter((word) => word !== ',')
  return nounBefore(words.toReversed(), 'limit')
}
