/** Finds the sentences that say that a context is too large. */
import type { Sentence } from './atoms.ts'
import { MODALS } from './phrases.ts'
import { wordAt, wordsOf } from './place.ts'
import { type Figure, figuresOf } from './roles.ts'
import { cueOf, FULL, nounOf, SIZES, TOKENS, wordSet } from './words.ts'

/** True if the compared numbers are too small to be tokens. */
function isTiny(figures: readonly Figure[]): boolean {
  const has = (role: Figure['role']) => figures.some((figure) => figure.role === role)
  const most = Math.max(0, ...figures.map(({ value }) => value))
  return has('limit') && (most < 16 || (has('value') && most < 100))
}

/** Words that are certainly about a context. */
const STRONG = wordSet(
  `context prompt prompts input inputs tokens token(s) window context_length context_window n_ctx ctx conversation messages sequence seq transcript
  completion max_tokens max_completion_tokens max_output_tokens maxoutputtokens max_new_tokens num_predict max_model_len max_seq_len input_tokens
  prompt_tokens max_input_tokens max_prompt_tokens max_total_tokens completions kv history chat`,
)

/** True if a word is certainly about a context; a single `token` may be a key. */
function isStrong(word: string, next: string): boolean {
  if (OUTPUT_FIELD.test(word)) return true
  if (word === 'message' || word === 'text') return false
  if (word === 'token') return /^(?:limit|count|length|budget|window|size|limits|quota)$/.test(next)
  return STRONG.has(word) || (word.includes('_') && nounOf(word) !== undefined)
}

/** True for `the message is too long`; a message that is otherwise too much is no matter of context. */
function isLongMessage(words: readonly string[]): boolean {
  return /\b(?:message|text)\b(?: \w+){0,5} too (?:long|large)\b/.test(words.join(' '))
}

/** Things that a request may have too many of, besides tokens. */
const THINGS =
  /^(?:images?|pages?|tools?|functions?|files?|pixels?|px|documents?|properties|parameters?|attachments?|choices|videos?|audios?)$/

/** True if a sentence counts images, tools or pages, and no tokens. */
export function countsThings(sentence: Sentence): boolean {
  const words = wordsOf(sentence)
  if (words.some((word) => /token|context/.test(word))) return false
  if (
    /\bnumber of (?:\w{1,30} )?(?:texts|inputs|items|messages|images|tools|documents|files)\b/.test(
      words.join(' '),
    )
  )
    return true
  return sentence.some(
    (atom, at) =>
      atom.kind === 'number' &&
      // `a prompt with 5 documents`: not the documents are too many.
      wordAt(sentence, at - 1) !== 'with' &&
      [1, 2].some((on) => THINGS.test(wordAt(sentence, at + on))),
  )
}

/** True if a sentence states a limit in tokens that only an overflow error would state. */
function statesBound(sentence: Sentence, isTooMuch: boolean): boolean {
  const words = wordsOf(sentence)
  // `8192 tokens`, `8192 input tokens`
  const isBound = (at: number) =>
    TOKENS.has(wordAt(sentence, nounOf(wordAt(sentence, at + 1)) === 'input' ? at + 2 : at + 1))
  const isStated = figuresOf(sentence).some(
    ({ role, value, noun, at }) =>
      role === 'limit' && value >= 256 && isBound(at) && (isTooMuch || noun === 'input' || noun === 'window'),
  )
  return (
    isStated &&
    words.some((word) => MOST.has(word)) &&
    !words.some((word) => word === 'not' || word.endsWith("n't") || (!isTooMuch && PARTS.has(word)))
  )
}

/** Words about limits of a part of the request. */
const PARTS = wordSet(`system prediction description descriptions instructions truncation cache caching`)

const MOST = new Set(['max', 'maximum', 'limit', 'limited', 'most', 'only'])

function isModelLength(words: readonly string[]): boolean {
  return /\b(?:model|session)(?:'s)? (?:max(?:imum)? )?length\b|\bmax(?:imum)? (?:model|total|token) length\b/.test(
    words.join(' '),
  )
}

const OVER_WHAT = new Set(['the', 'limit', 'maximum', 'budget', 'model', 'max', 'its', 'our', 'this', 'your'])

/** True if the words say that something is too much. */
export function saysTooMuch(words: readonly string[]): boolean {
  return words.some((word, at) => {
    const next = words[at + 1] ?? ''
    const after = words[at + 2] ?? ''
    if (word === 'too') return SIZES.has(next) || SIZES.has(after)
    if (word === 'over' || word === 'above' || word === 'beyond') return OVER_WHAT.has(next)
    if (word === 'more' || word === 'fewer') return next === 'than' && word === 'more'
    if (word === 'out') return next === 'of' && (after === 'context' || after === 'tokens')
    if (word === 'fit')
      return words
        .slice(Math.max(0, at - 3), at)
        .some((before) => /^(?:not|n't|doesn't|don't|cannot|can't|won't|didn't)$/.test(before))
    if (word === 'length_exceeded' || word === 'context_length_exceeded') return true
    return cueOf(word) === 'exceed'
  })
}

function isFull(words: readonly string[]): boolean {
  return (
    words.some((word) => word === 'context' || word === 'window') &&
    words.some((word, at) => FULL.has(word) && words[at - 1] !== 'deadline')
  )
}

/** Words that state a limit of a field. */
const HELD = wordSet(
  `must should range most supports support <= < ≤ maximum less exceed limit supported allowed between limited capped cap`,
)
/** Names of the request's field for the output cap. */
const OUTPUT_FIELD =
  /^(?:max_?(?:completion_|output_|new_|gen_|generated_)?tokens(?:_to_sample)?|max-tokens|maxoutputtokens|maxtokencount|max_(?:gen|output|decode)_len(?:gth)?|num_predict|n_predict)$/

/** True for a lower bound: `at least`, `must be greater than`. */
function isFloor(words: readonly string[]): boolean {
  return words.includes('least') || words.includes('greater')
}

function holdsOutput(words: readonly string[], figures: readonly Figure[]): boolean {
  const phrase = words.join(' ')
  const namesIt =
    words.some((word) => OUTPUT_FIELD.test(word)) ||
    /\bmax(?:imum)? (?:output |completion |new )?tokens\b/.test(phrase)
  const isBound = figures.some(({ role, value }) => role === 'limit' && value >= 16)
  return namesIt && isBound && words.some((word) => HELD.has(word)) && !isFloor(words)
}

/** True for `input length should be within [1, 8192]` and `prompt tokens must not be more than 8192`. */
function holdsInput(words: readonly string[], figures: readonly Figure[]): boolean {
  return (
    /\b(?:input|prompt|context|messages) (?:length|tokens?|size)\b/.test(words.join(' ')) &&
    figures.some(({ role, value, noun }) => role === 'limit' && value >= 256 && noun !== 'output') &&
    words.some((word) => MODALS.has(word)) &&
    !isFloor(words)
  )
}

/** True if a sentence states an overflow. `isTooMuch`: some sentence of the text says that something is too much. */
export function statesOverflow(sentence: Sentence, isTooMuch: boolean): boolean {
  const words = wordsOf(sentence)
  const figures = figuresOf(sentence)
  if (isTiny(figures)) return false
  const isAboutContext =
    words.some((word, at) => isStrong(word, words[at + 1] ?? '')) ||
    isLongMessage(words) ||
    isModelLength(words)
  return (
    (isAboutContext &&
      (saysTooMuch(words) || isFull(words) || holdsOutput(words, figures) || holdsInput(words, figures))) ||
    statesBound(sentence, isTooMuch)
  )
}
