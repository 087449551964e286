/** Finds the sentences that say that a context is too large. */
import { type Figure, find } from './figures.ts'
import { isNumberAt, type Sentence, wordAt } from './sentence.ts'
import { cueOf, hasAny, MODALS, nounOf, TOKENS, until, wordSet } from './words.ts'

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

const OUTPUT_FIELD = new RegExp(
  '(?:^| )(?:max_?(?:completion_|output_|new_|gen_|generated_)?tokens(?:_to_sample)?|max-tokens|maxoutputtokens' +
    '|maxtokencount|max_(?:gen|output|decode)_len(?:gth)?|num_predict|n_predict)(?: |$)',
)

/** Phrases that are certainly about a context. */
const ABOUT_CONTEXT = new RegExp(
  [
    OUTPUT_FIELD.source,
    // A single `token` may be a key.
    '(?:^| )token (?:limits?|count|length|budget|window|size|quota)(?: |$)',
    // A message that is otherwise too much is no matter of context.
    '\\b(?:message|text)\\b(?: \\w+){0,5} too (?:long|large)\\b',
    "\\b(?:model|session)(?:'s)? (?:max(?:imum)? )?length\\b",
    '\\bmax(?:imum)? (?:model|total|token) length\\b',
  ].join('|'),
)

/** Things that a request may have too many of, besides tokens. */
const THINGS = wordSet(`
  image images page pages tool tools function functions file files pixel pixels px document documents
  properties parameter parameters attachment attachments choices video videos audio audios`)

const MESSAGES = wordSet('messages turns items')

/** What follows these says where too much of something else is. */
const PLACES = wordSet('in of for from across within among per')

const NUMBER_OF_THINGS =
  /\bnumber of (?:\w{1,30} )?(?:texts|inputs|items|messages|turns|images|tools|documents|files)\b/

/** `too many total images`, `too many identical tool calls`, `too many turns`. */
function saysTooManyThings({ words }: Clause): boolean {
  return words.some((word, at) => {
    const things = word === 'many' && words[at - 1] === 'too' ? until(words.slice(at + 1, at + 4), PLACES) : []
    return hasAny(things, THINGS) || hasAny(things, MESSAGES)
  })
}

/** True if a sentence counts images, tools or pages, and no tokens. */
export function countsThings(clause: Clause): boolean {
  const { sentence, phrase } = clause
  if (/token|context/.test(phrase)) return false
  if (NUMBER_OF_THINGS.test(phrase) || saysTooManyThings(clause)) return true
  return sentence.some((_, at) => {
    // `a prompt with 5 documents`: not the documents are too many.
    const isCount = isNumberAt(sentence, at) && wordAt(sentence, at - 1) !== 'with'
    return isCount && hasAny([wordAt(sentence, at + 1), wordAt(sentence, at + 2)], THINGS)
  })
}

const NEGATIONS = "not|n't|doesn't|don't|cannot|can't|won't|didn't"

const TOO_MUCH = new RegExp(
  '(?:^| )(?:too (?:\\S+ )?(?:long|large|many|big|lengthy|much|high)|more than|out of (?:context|tokens)' +
    '|(?:over|above|beyond) (?:the|limit|maximum|budget|model|max|its|our|this|your)' +
    `|(?:${NEGATIONS}) (?:\\S+ ){0,2}fit)(?: |$)`,
)

export function saysTooMuch({ words, phrase }: Clause): boolean {
  return TOO_MUCH.test(phrase) || words.some((word) => word !== 'beyond' && cueOf(word) === 'exceed')
}

const FULL = wordSet('full exhausted overflow overflowed overflows depleted filled reached hit overrun exceeded')

/** True if a sentence states an overflow. `isTooMuch`: some sentence of the text says that something is too much. */
export function statesOverflow(clause: Clause, isTooMuch: boolean): boolean {
  const { words, phrase, figures } = clause
  const most = Math.max(0, ...figures.map(({ value }) => value))
  // The compared numbers are too small to be tokens.
  const isSmall = most < 16 || (most < 100 && find(figures, 'value'))
  if (isSmall && find(figures, 'limit')) return false
  if (statesBound(clause, isTooMuch)) return true
  const isStrong = (word: string) => STRONG.has(word) || (word.includes('_') && nounOf(word) !== undefined)
  if (!ABOUT_CONTEXT.test(phrase) && !words.some(isStrong)) return false
  const isFull = words.some((word, at) => FULL.has(word) && words[at - 1] !== 'deadline')
  if (isFull && (words.includes('context') || words.includes('window'))) return true
  return saysTooMuch(clause) || statesRule(clause)
}

/** Words about limits of a part of the request. */
const PARTS = wordSet('system prediction description descriptions instructions truncation cache caching')

const MOST = wordSet('max maximum limit limited most only')

/** True if a sentence states a limit in tokens that only an overflow error would state. */
function statesBound({ sentence, words, phrase, figures }: Clause, isTooMuch: boolean): boolean {
  if (!hasAny(words, MOST) || (!isTooMuch && hasAny(words, PARTS))) return false
  if (/(?:^| )not(?: |$)|n't(?: |$)/.test(phrase)) return false
  return figures.some(({ role, value, noun, at }) => {
    const isBound = role === 'limit' && value >= 256 && (isTooMuch || noun === 'input' || noun === 'window')
    // `8192 tokens`, `8192 input tokens`
    return isBound && TOKENS.has(wordAt(sentence, nounOf(wordAt(sentence, at + 1)) === 'input' ? at + 2 : at + 1))
  })
}

const HELD = wordSet(`
  must should range most supports support <= < ≤ maximum less exceed limit supported allowed between limited
  capped cap`)

/** True for a rule of a field: `max_tokens must be at most 4096`, `input length should be within [1, 8192]`. */
function statesRule({ words, phrase, figures }: Clause): boolean {
  // A lower bound.
  if (words.includes('least') || words.includes('greater')) return false
  const namesOutput = OUTPUT_FIELD.test(phrase) || /\bmax(?:imum)? (?:output |completion |new )?tokens\b/.test(phrase)
  const isOfOutput = namesOutput && hasAny(words, HELD)
  const namesInput = /\b(?:input|prompt|context|messages) (?:length|tokens?|size)\b/.test(phrase)
  const isOfInput = namesInput && hasAny(words, MODALS)
  return figures.some(({ role, value, noun }) => {
    const isHeld = (isOfOutput && value >= 16) || (isOfInput && value >= 256 && noun !== 'output')
    return role === 'limit' && isHeld
  })
}
