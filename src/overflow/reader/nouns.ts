/** What a number is a number of: the input, the output, both together, or the window. */
import type { Sentence } from './atoms.ts'
import { MODALS } from './phrases.ts'
import { head, isNumber, leftOf, rightOf } from './place.ts'
import type { Role } from './role.ts'
import { cueOf, type Noun, nounOf as nounOfWord, wordSet } from './words.ts'

const PHRASE_ENDS = wordSet('with + plus , ) ( ; but and however > <= <')

const LEFT_ENDS = new Set([',', ';', ')', 'but', 'however', 'while', '>', '<='])

/** The nearest noun, among words that belong to the same phrase. */
function nounAmong(words: readonly string[], stops: ReadonlySet<string>, reach: number): Noun | undefined {
  for (const word of words.slice(0, reach)) {
    if (stops.has(word)) return undefined
    const noun = nounOfWord(word)
    if (noun) return noun
  }
  return undefined
}

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

/** What is named before a number; `context length` is a window, `input context length` one all the same. */
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

/** `A + B > C`, `input (A) + output (B)`: the summands. */
export function isSummand(sentence: Sentence, at: number): boolean {
  const right = rightOf(sentence, at)
  const plus = head(right)
    .slice(0, 4)
    .findIndex((word) => PLUS.has(word))
  if (plus !== -1 && isNumber(sentence[at + right.length + 1]) && !endsBefore(right)) return true
  const left = leftOf(sentence, at)
  // What is added to is a number too, and not what one number is the sum of.
  if (!isNumber(sentence[at - left.length - 1])) return false
  for (const word of left.slice(0, 6)) {
    if (PLUS.has(word)) return true
    if (word === ')' && left[0] === ')') return false
    if (MODALS.has(word) || word === '<=' || word === '=' || cueOf(word) === 'exceed') return false
  }
  return false
}

/** Another phrase begins before the plus. */
function endsBefore(right: readonly string[]): boolean {
  for (const word of right) {
    if (PLUS.has(word)) return false
    if (word === ',' || MODALS.has(word) || cueOf(word) === 'exceed') return true
  }
  return false
}

/** How far back a sentence is looked through for what its numbers are of: each number looks for itself. */
const REACH_BACK = 60

function wordsBefore(sentence: Sentence, at: number): string[] {
  return sentence
    .slice(Math.max(0, at - REACH_BACK), at)
    .flatMap((atom) => (atom.kind === 'word' ? [atom.word] : []))
}

export function summandNoun(sentence: Sentence, at: number): Noun {
  const left = leftOf(sentence, at)
  const isFollowed = head(rightOf(sentence, at))
    .slice(0, 4)
    .some((word) => PLUS.has(word))
  const plus = isFollowed ? -1 : left.findIndex((word) => PLUS.has(word))
  const own = nounBefore(plus === -1 ? left : left.slice(0, plus), 'value')
  if (own === 'input' || own === 'output') return own
  const isFirst = plus === -1
  const named = wordsBefore(sentence, at)
    .map((word) => nounOfWord(word))
    .find((noun) => noun === 'input' || noun === 'output')
  return isFirst === (named === 'output') ? 'output' : 'input'
}

/** The noun right after a number: `1000 in the messages`, `204186 input`. */
export function partNoun(rest: readonly string[]): Noun | undefined {
  const noun = nounAmong(rest, PHRASE_ENDS, 3)
  return noun === 'input' || noun === 'output' ? noun : undefined
}

export function rangeNoun(sentence: Sentence, at: number): Noun | undefined {
  const words = wordsBefore(sentence, at).filter((word) => word !== ',')
  return nounBefore(words.toReversed(), 'limit')
}
