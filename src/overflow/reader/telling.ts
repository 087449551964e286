/** Finds the sentences that say that a context is too large. */
import { MODALS } from './phrases.ts'
import { type Figure, figuresOf } from './roles.ts'
import { type Sentence, wordAt, wordsOf } from './sentence.ts'
import { cueOf, FULL, nounOf, type Role, SIZES, TOKENS, wordSet } from './words.ts'

/** Words that are certainly about a context. */
const STRONG = wordSet(`
  context prompt prompts input inputs tokens token(s) window context_length context_window n_ctx ctx
  conversation messages sequence seq transcript completion max_tokens max_completion_tokens max_output_tokens
  maxoutputtokens max_new_tokens num_predict max_model_len max_seq_len input_tokens prompt_tokens
  max_input_tokens max_prompt_tokens max_total_tokens completions kv history chat`)

/** Names of the request's field for the output cap. */
const OUTPUT_FIELD = new RegExp(
  [
    '^(?:max_?(?:completion_|output_|new_|gen_|generated_)?tokens(?:_to_sample)?',
    'max-tokens',
    'maxoutputtokens',
    'maxtokencount',
    'max_(?:gen|output|decode)_len(?:gth)?',
    'num_predict',
    'n_predict)$',
  ].join('|'),
)

/** True if a word is certainly about a context; a single `token` may be a key. */
function isStrong(word: string, next: string): boolean {
  if (OUTPUT_FIELD.test(word)) return true
  if (word === 'message' || word === 'text') return false
  if (word === 'token') return /^(?:limit|count|length|budget|window|size|limits|quota)$/.test(next)
  return STRONG.has(word) || (word.includes('_') && nounOf(word) !== undefined)
}

/** A message that is too long; one that is otherwise too much is no matter of context. */
const LONG_MESSAGE = /\b(?:message|text)\b(?: \w+){0,5} too (?:long|large)\b/

const MODEL_LENGTH =
  /\b(?:model|session)(?:'s)? (?:max(?:imum)? )?length\b|\bmax(?:imum)? (?:model|total|token) length\b/

/** Things that a request may have too many of, besides tokens. */
const THINGS = wordSet(`
  image images page pages tool tools function functions file files pixel pixels px document documents
  properties parameter parameters attachment attachments choices video videos audio audios`)

const NUMBER_OF_THINGS = /\bnumber of (?:\w{1,30} )?(?:texts|inputs|items|messages|images|tools|documents|files)\b/

/** True if a sentence counts images, tools or pages, and no tokens. */
export function countsThings(sentence: Sentence): boolean {
  const words = wordsOf(sentence)
  if (words.some((word) => /token|context/.test(word))) return false
  if (NUMBER_OF_THINGS.test(words.join(' '))) return true
  return sentence.some(
    (atom, at) =>
      atom.kind === 'number' &&
      // `a prompt with 5 documents`: not the documents are too many.
      wordAt(sentence, at - 1) !== 'with' &&
      [1, 2].some((on) => THINGS.has(wordAt(sentence, at + on))),
  )
}

/** Words about limits of a part of the request. */
const PARTS = wordSet('system prediction description descriptions instructions truncation cache caching')

const MOST = wordSet('max maximum limit limited most only')

/** True if a sentence states a limit in tokens that only an overflow error would state. */
function statesBound(sentence: Sentence, figures: readonly Figure[], isTooMuch: boolean): boolean {
  const words = wordsOf(sentence)
  const isStated = figures.some(({ role, value, noun, at }) => {
    if (role !== 'limit' || value < 256 || !(isTooMuch || noun === 'input' || noun === 'window')) return false
    // `8192 tokens`, `8192 input tokens`
    return TOKENS.has(wordAt(sentence, nounOf(wordAt(sentence, at + 1)) === 'input' ? at + 2 : at + 1))
  })
  return (
    isStated &&
    words.some((word) => MOST.has(word)) &&
    !words.some((word) => word === 'not' || word.endsWith("n't") || (!isTooMuch && PARTS.has(word)))
  )
}

const OVER_WHAT = wordSet('the limit maximum budget model max its our this your')

const NEGATIONS = wordSet("not n't doesn't don't cannot can't won't didn't")

/** True if the words say that something is too much. */
export function saysTooMuch(words: readonly string[]): boolean {
  return words.some((word, at) => {
    const next = words[at + 1] ?? ''
    const after = words[at + 2] ?? ''
    if (word === 'too') return SIZES.has(next) || SIZES.has(after)
    if (word === 'over' || word === 'above' || word === 'beyond') return OVER_WHAT.has(next)
    if (word === 'more') return next === 'than'
    if (word === 'out') return next === 'of' && (after === 'context' || after === 'tokens')
    if (word === 'fit') return words.slice(Math.max(0, at - 3), at).some((before) => NEGATIONS.has(before))
    if (word === 'length_exceeded' || word === 'context_length_exceeded') return true
    return cueOf(word) === 'exceed'
  })
}

/** Words that state a limit of a field. */
const HELD = wordSet(`
  must should range most supports support <= < ≤ maximum less exceed limit supported allowed between limited
  capped cap`)

/** True for a rule of a field: `max_tokens must be at most 4096`, `input length should be within [1, 8192]`. */
function statesRule(words: readonly string[], phrase: string, figures: readonly Figure[]): boolean {
  // A lower bound.
  if (words.includes('least') || words.includes('greater')) return false
  const limits = figures.filter(({ role }) => role === 'limit')
  const isOutput =
    words.some((word) => OUTPUT_FIELD.test(word)) || /\bmax(?:imum)? (?:output |completion |new )?tokens\b/.test(phrase)
  if (isOutput && limits.some(({ value }) => value >= 16) && words.some((word) => HELD.has(word))) return true
  return (
    /\b(?:input|prompt|context|messages) (?:length|tokens?|size)\b/.test(phrase) &&
    limits.some(({ value, noun }) => value >= 256 && noun !== 'output') &&
    words.some((word) => MODALS.has(word))
  )
}

/** True if a sentence states an overflow. `isTooMuch`: some sentence of the text says that something is too much. */
export function statesOverflow(sentence: Sentence, isTooMuch: boolean): boolean {
  const words = wordsOf(sentence)
  const phrase = words.join(' ')
  const figures = figuresOf(sentence)
  const has = (role: Role) => figures.some((figure) => figure.role === role)
  const most = Math.max(0, ...figures.map(({ value }) => value))
  // The compared numbers are too small to be tokens.
  if (has('limit') && (most < 16 || (has('value') && most < 100))) return false
  const isAboutContext =
    words.some((word, at) => isStrong(word, words[at + 1] ?? '')) ||
    LONG_MESSAGE.test(phrase) ||
    MODEL_LENGTH.test(phrase)
  const isFull =
    (words.includes('context') || words.includes('window')) &&
    words.some((word, at) => FULL.has(word) && words[at - 1] !== 'deadline')
  return (
    (isAboutContext && (saysTooMuch(words) || isFull || statesRule(words, phrase, figures))) ||
    statesBound(sentence, figures, isTooMuch)
  )
}
