/** Finds the sentences that say that a context is too large. */
import type { Figure } from './figures.ts'
import { isNumberAt, type Sentence, wordAt } from './sentence.ts'
import { cueOf, hasAny, MODALS, nounOf, TOKENS, wordSet } from './words.ts'

export interface Clause {
  readonly sentence: Sentence
  readonly words: readonly string[]
  /** All words. */
  readonly phrase: string
  readonly figures: readonly Figure[]
}

const STRONG = wordSet(`
  context prompt prompts input inputs tokens token(s) window ctx conversation messages sequence seq transcript
  completion completions kv history chat`)

/** Names of the request's field for the output cap. */
const OUTPUT_FIELD = new RegExp(
  '(?:^| )(?:max_?(?:completion_|output_|new_|gen_|generated_)?tokens(?:_to_sample)?|max-tokens|maxoutputtokens' +
    '|maxtokencount|max_(?:gen|output|decode)_len(?:gth)?|num_predict|n_predict)(?: |$)',
)

/** Phrases that are certainly about a context. */
const ABOUT_CONTEXT = [
  OUTPUT_FIELD,
  // A single `token` may be a key.
  /(?:^| )token (?:limits?|count|length|budget|window|size|quota)(?: |$)/,
  // A message that is otherwise too much is no matter of context.
  /\b(?:message|text)\b(?: \w+){0,5} too (?:long|large)\b/,
  /\b(?:model|session)(?:'s)? (?:max(?:imum)? )?length\b|\bmax(?:imum)? (?:model|total|token) length\b/,
]

/** Things that a request may have too many of, besides tokens. */
const THINGS = wordSet(`
  image images page pages tool tools function functions file files pixel pixels px document documents
  properties parameter parameters attachment attachments choices video videos audio audios`)

const NUMBER_OF_THINGS = /\bnumber of (?:\w{1,30} )?(?:texts|inputs|items|messages|images|tools|documents|files)\b/

/** True if a sentence counts images, tools or pages, and no tokens. */
export function countsThings({ sentence, phrase }: Clause): boolean {
  if (/token|context/.test(phrase)) return false
  if (NUMBER_OF_THINGS.test(phrase)) return true
  return sentence.some(
    (_, at) =>
      isNumberAt(sentence, at) &&
      // `a prompt with 5 documents`: not the documents are too many.
      wordAt(sentence, at - 1) !== 'with' &&
      (THINGS.has(wordAt(sentence, at + 1)) || THINGS.has(wordAt(sentence, at + 2))),
  )
}

const OVER_WHAT = wordSet('the limit maximum budget model max its our this your')

const NEGATIONS = wordSet("not n't doesn't don't cannot can't won't didn't")

const SIZES = wordSet('long large many big lengthy much high')

export function saysTooMuch(words: readonly string[]): boolean {
  return words.some((word, at) => {
    const next = words[at + 1] ?? ''
    const after = words[at + 2] ?? ''
    if (word === 'too') return SIZES.has(next) || SIZES.has(after)
    if (word === 'over' || word === 'above' || word === 'beyond') return OVER_WHAT.has(next)
    if (word === 'more') return next === 'than'
    if (word === 'out') return next === 'of' && (after === 'context' || after === 'tokens')
    if (word === 'fit') return hasAny(words.slice(Math.max(0, at - 3), at), NEGATIONS)
    return word === 'length_exceeded' || word === 'context_length_exceeded' || cueOf(word) === 'exceed'
  })
}

const FULL = wordSet('full exhausted overflow overflowed overflows depleted filled reached hit overrun exceeded')

/** True if a sentence states an overflow. `isTooMuch`: some sentence of the text says that something is too much. */
export function statesOverflow(clause: Clause, isTooMuch: boolean): boolean {
  const { words, phrase, figures } = clause
  const most = Math.max(0, ...figures.map(({ value }) => value))
  // The compared numbers are too small to be tokens.
  const isSmall = most < 16 || (most < 100 && figures.some(({ role }) => role === 'value'))
  if (isSmall && figures.some(({ role }) => role === 'limit')) return false
  if (statesBound(clause, isTooMuch)) return true
  const isAboutContext =
    hasAny(words, STRONG) ||
    ABOUT_CONTEXT.some((pattern) => pattern.test(phrase)) ||
    words.some((word) => word.includes('_') && nounOf(word) !== undefined)
  if (!isAboutContext) return false
  const isFull =
    (words.includes('context') || words.includes('window')) &&
    words.some((word, at) => FULL.has(word) && words[at - 1] !== 'deadline')
  return isFull || saysTooMuch(words) || statesRule(clause)
}

/** Words about limits of a part of the request. */
const PARTS = wordSet('system prediction description descriptions instructions truncation cache caching')

const MOST = wordSet('max maximum limit limited most only')

/** True if a sentence states a limit in tokens that only an overflow error would state. */
function statesBound({ sentence, words, phrase, figures }: Clause, isTooMuch: boolean): boolean {
  if (!hasAny(words, MOST) || (!isTooMuch && hasAny(words, PARTS))) return false
  if (/(?:^| )not(?: |$)|n't(?: |$)/.test(phrase)) return false
  return figures.some(({ role, value, noun, at }) => {
    if (role !== 'limit' || value < 256 || !(isTooMuch || noun === 'input' || noun === 'window')) return false
    // `8192 tokens`, `8192 input tokens`
    return TOKENS.has(wordAt(sentence, nounOf(wordAt(sentence, at + 1)) === 'input' ? at + 2 : at + 1))
  })
}

const HELD = wordSet(`
  must should range most supports support <= < ≤ maximum less exceed limit supported allowed between limited
  capped cap`)

/** True for a rule of a field: `max_tokens must be at most 4096`, `input length should be within [1, 8192]`. */
function statesRule({ words, phrase, figures }: Clause): boolean {
  // A lower bound.
  if (words.includes('least') || words.includes('greater')) return false
  const limits = figures.filter(({ role }) => role === 'limit')
  const isOutput = OUTPUT_FIELD.test(phrase) || /\bmax(?:imum)? (?:output |completion |new )?tokens\b/.test(phrase)
  if (isOutput && limits.some(({ value }) => value >= 16) && hasAny(words, HELD)) return true
  return (
    /\b(?:input|prompt|context|messages) (?:length|tokens?|size)\b/.test(phrase) &&
    limits.some(({ value, noun }) => value >= 256 && noun !== 'output') &&
    hasAny(words, MODALS)
  )
}
