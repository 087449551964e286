/** Finds the quantity that a number counts: the input, the output, both together, or the window. */
import { type Place, withoutUnit, wordsOf } from './sentence.ts'
import { cueOf, hasAny, MODALS, type Noun, nounOf, type Role, until, upTo, wordSet } from './words.ts'

const PHRASE_ENDS = wordSet('with + plus , ) ( ; but and however > <= <')

const LEFT_ENDS = wordSet(', ; ) but however while > <=')

export function nounsIn(words: readonly string[]): Noun[] {
  return words.flatMap((word) => nounOf(word) ?? [])
}

/** Returns the first noun among the next words of the same phrase. */
export function nounAmong(words: readonly string[], reach: number): Noun | undefined {
  return nounsIn(until(words.slice(0, reach), PHRASE_ENDS))[0]
}

/** Returns the quantity that a number with this role counts, by the words before it and after its unit. */
export function quantityOf({ left, rest }: Place, role: Role): Noun | undefined {
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
  const isEnd = (word: string) => LEFT_ENDS.has(word) || (role === 'limit' && cueOf(word) === 'exceed')
  const phrase = upTo(left, left.findIndex(isEnd))
  const nouns = nounsIn(phrase)
  const [hasInput, hasOutput] = [nouns.includes('input'), nouns.includes('output')]
  if (hasInput === hasOutput && (hasInput || nouns.includes('total'))) return 'total'
  if (role === 'limit' && hasAny(phrase, WINDOW)) return 'window'
  const text = phrase.toReversed().join(' ')
  if (ASKED_OUTPUT.test(text)) return 'output'
  if (role === 'value' && /(?:^| )(?:max|maximum) tokens?(?: of| is)?(?: [:=(])?$/.test(text)) return 'output'
  // `the prompt (total length N)` is a prompt.
  if (hasInput) return 'input'
  return hasOutput ? 'output' : nouns[0]
}

const PLUS = wordSet('+ plus')

/** True for A and B in `A + B > C` and in `input (A) + output (B)`. */
export function isSummand({ left, isLed, between, leads }: Place): boolean {
  const isVerb = (word: string) => MODALS.has(word) || cueOf(word) === 'exceed'
  // The next summand follows, unless another phrase begins before the plus.
  const next = between.find((word) => PLUS.has(word) || word === ',' || isVerb(word))
  if (leads && isBeforePlus(between) && next && PLUS.has(next)) return true
  // The other summand must be a number before the plus.
  const isBracketed = left[0] === ')'
  const isEnd = (word: string) => (isBracketed && word === ')') || word === '<=' || word === '=' || isVerb(word)
  const before = left.slice(0, 6).find((word) => PLUS.has(word) || isEnd(word))
  return isLed && before !== undefined && PLUS.has(before)
}

function isBeforePlus(between: readonly string[]): boolean {
  return hasAny(withoutUnit(between).slice(0, 4), PLUS)
}

/** The most atoms before a number that are searched, because each number of a sentence searches for itself. */
const REACH_BACK = 60

function wordsBefore({ sentence, at }: Place): string[] {
  return wordsOf(sentence.slice(Math.max(0, at - REACH_BACK), at))
}

export function summandNoun(place: Place): Noun {
  const { left, between } = place
  const phrase = isBeforePlus(between) ? left : until(left, PLUS)
  const nearest = nounBefore(phrase, 'value')
  if (nearest === 'input' || nearest === 'output') return nearest
  const nouns = nounsIn(wordsBefore(place))
  const named = nouns.find((noun) => noun === 'input' || noun === 'output')
  const isFirst = phrase.length === left.length
  return isFirst === (named === 'output') ? 'output' : 'input'
}

export function rangeNoun(place: Place): Noun | undefined {
  const words = wordsBefore(place).filter((word) => word !== ',')
  return nounBefore(words.reverse(), 'limit')
}
