/** Finds the quantity that a number counts: the input, the output, both together, or the window. */
import { isNumberAt, leftOf, rightOf, type Sentence, upTo, withoutUnit, wordsOf } from './sentence.ts'
import { cueOf, hasAny, MODALS, type Noun, nounOf, type Role, wordSet } from './words.ts'

const PHRASE_ENDS = wordSet('with + plus , ) ( ; but and however > <= <')

const LEFT_ENDS = wordSet(', ; ) but however while > <=')

export function nounsIn(words: readonly string[]): Noun[] {
  return words.flatMap((word) => nounOf(word) ?? [])
}

/** Returns the first noun among the next words of the same phrase. */
function nounAmong(words: readonly string[], reach: number): Noun | undefined {
  const near = words.slice(0, reach)
  const end = near.findIndex((word) => PHRASE_ENDS.has(word))
  return nounsIn(upTo(near, end))[0]
}

/** Returns the quantity that a number with this role counts, by the words before it and after its unit. */
export function quantityOf(left: readonly string[], rest: readonly string[], role: Role): Noun | undefined {
  const before = nounBefore(left, role)
  const after = nounAmong(rest, role === 'limit' ? 4 : 3)
  if (role === 'limit') {
    const isElsewhere = after === 'window' || cueOf(rest[0] ?? '') === 'exceed'
    return isElsewhere ? (before ?? after) : (after ?? before)
  }
  // `the prompt has N tokens in total`
  const isElsewhere = after === 'window' || (after === 'total' && before === 'input')
  return isElsewhere ? before : (after ?? before)
}

const ASKED_OUTPUT =
  /(?:^| )(?:max|maximum) tokens? (?:you )?(?:requested|must|is|are|value|parameter|should|cannot|[:=(])/

const WINDOW = wordSet('context window n_ctx context_length sequence max_model_len max_seq_len')

/** Returns the quantity that the words before a number name; `input context length` is a window too. */
function nounBefore(left: readonly string[], role: Role): Noun | undefined {
  const end = left.findIndex((word) => LEFT_ENDS.has(word) || (role === 'limit' && cueOf(word) === 'exceed'))
  const phrase = upTo(left, end)
  const nouns = nounsIn(phrase)
  const [hasInput, hasOutput] = [nouns.includes('input'), nouns.includes('output')]
  if (hasInput === hasOutput && (hasInput || nouns.includes('total'))) return 'total'
  if (role === 'limit' && hasAny(phrase, WINDOW)) return 'window'
  const text = phrase.toReversed().join(' ')
  if (ASKED_OUTPUT.test(text)) return 'output'
  if (role === 'value' && /(?:^| )(?:max|maximum) tokens?(?: of| is)?(?: [:=(])?$/.test(text)) return 'output'
  // `the prompt (total length N)` is a prompt.
  return nouns.find((noun) => noun !== 'window' && noun !== 'total') ?? nouns[0]
}

const PLUS = wordSet('+ plus')

/** True for A and B in `A + B > C` and in `input (A) + output (B)`. */
export function isSummand(sentence: Sentence, at: number): boolean {
  const right = rightOf(sentence, at)
  // The next summand follows, unless another phrase begins before the plus.
  const mark = right.find((word) => PLUS.has(word) || word === ',' || MODALS.has(word) || cueOf(word) === 'exceed')
  if (isBeforePlus(right) && PLUS.has(mark ?? '') && isNumberAt(sentence, at + right.length + 1)) return true
  const left = leftOf(sentence, at)
  // The other summand must be a number before the plus.
  if (!isNumberAt(sentence, at - left.length - 1)) return false
  for (const word of left.slice(0, 6)) {
    if (PLUS.has(word)) return true
    if (word === ')' && left[0] === ')') return false
    if (MODALS.has(word) || word === '<=' || word === '=' || cueOf(word) === 'exceed') return false
  }
  return false
}

function isBeforePlus(right: readonly string[]): boolean {
  return hasAny(withoutUnit(right).slice(0, 4), PLUS)
}

/** The most atoms before a number that are searched, because each number of a sentence searches for itself. */
const REACH_BACK = 60

function wordsBefore(sentence: Sentence, at: number): string[] {
  return wordsOf(sentence.slice(Math.max(0, at - REACH_BACK), at))
}

export function summandNoun(sentence: Sentence, at: number): Noun {
  const left = leftOf(sentence, at)
  const plus = isBeforePlus(rightOf(sentence, at)) ? -1 : left.findIndex((word) => PLUS.has(word))
  const nearest = nounBefore(upTo(left, plus), 'value')
  if (nearest === 'input' || nearest === 'output') return nearest
  const named = nounsIn(wordsBefore(sentence, at)).find((noun) => noun === 'input' || noun === 'output')
  return (plus === -1) === (named === 'output') ? 'output' : 'input'
}

/** Returns the quantity right after a number: `1000 in the messages`, `204186 input`. */
export function partNoun(rest: readonly string[]): Noun | undefined {
  const noun = nounAmong(rest, 3)
  return noun === 'input' || noun === 'output' ? noun : undefined
}

export function rangeNoun(sentence: Sentence, at: number): Noun | undefined {
  const words = wordsBefore(sentence, at).filter((word) => word !== ',')
  return nounBefore(words.reverse(), 'limit')
}
