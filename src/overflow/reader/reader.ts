/**
 * Reads sentences about too much that no quirk knows: is this an overflow, over which word, and which number is the
 * limit, which the request, which a part of it. Works by tables of words, in time that grows with the text.
 */
import { type Overflow, overInput, overOutput, overTotal, overWindow } from '../../core/overflow.ts'
import { type Atom, type Sentence, sentencesOf } from './atoms.ts'
import { wordAt } from './place.ts'
import { type Figure, figuresOf } from './roles.ts'
import { ADVICE, cueOf, FULL, glossed, type Noun, nounOf, SIZES, TOKENS } from './words.ts'

const wordsOf = (sentence: Sentence): string[] =>
  sentence.flatMap((atom: Atom) => (atom.kind === 'word' ? [atom.word] : []))

/** What is said, without what is advised: `please` opens advice anywhere, other verbs at the start of a sentence. */
function withoutAdvice(sentence: Sentence): Sentence {
  const first = sentence.find((atom) => atom.kind === 'word' && /\w/.test(atom.word))
  if (first?.kind === 'word' && ADVICE.has(first.word)) return []
  const please = sentence.findIndex((atom) => atom.kind === 'word' && atom.word === 'please')
  return please === -1 ? sentence : sentence.slice(0, please)
}

/** Words that are about a context; others that a table calls nouns may be about anything. */
const STRONG = new Set(
  `context prompt prompts input inputs tokens token(s) window context_length context_window n_ctx ctx conversation messages sequence seq transcript completion
  max_tokens max_completion_tokens max_output_tokens maxoutputtokens max_new_tokens num_predict max_model_len max_seq_len input_tokens
  prompt_tokens max_input_tokens max_prompt_tokens max_total_tokens completions kv history chat
  kontext kontextlänge contexto contexte контекст контекста контекстного eingabe entrada entrée запрос токенов tokens. fichas jetons`.split(
    /\s+/,
  ),
)

/** A single token is a key, unless it is counted. */
function isStrong(word: string, next: string): boolean {
  if (OUTPUT_FIELD.test(word)) return true
  if (word === 'message' || word === 'text') return false
  if (word === 'token') return /^(?:limit|count|length|budget|window|size|limits|quota)$/.test(next)
  return STRONG.has(word) || (word.includes('_') && nounOf(word) !== undefined)
}

/** `the message is too long`: what else a text may be too much in is no matter of context. */
function isLongMessage(words: readonly string[]): boolean {
  return /\b(?:message|text)\b(?: \w+){0,5} too (?:long|large)\b/.test(words.join(' '))
}

/** What is counted, and is no part of a context. */
const THINGS =
  /^(?:images?|pages?|tools?|functions?|files?|pixels?|px|documents?|properties|parameters?|attachments?|choices|videos?|audios?)$/

/** Numbers of images, tools or pages, and none of tokens: too much of something else. */
function countsThings(sentence: Sentence): boolean {
  const words = wordsOf(sentence)
  if (words.some((word) => /token|context/.test(word))) return false
  if (
    /\bnumber of (?:\w{1,30} )?(?:texts|inputs|items|messages|images|tools|documents|files)\b/.test(
      words.join(' '),
    )
  )
    return true
  return sentence.some(
    (atom, at) => atom.kind === 'number' && [1, 2].some((on) => THINGS.test(wordAt(sentence, at + on))),
  )
}

/** A bound stated in tokens, where nothing but a refusal for it would say it. */
function statesBound(sentence: Sentence, isTooMuch: boolean): boolean {
  const words = wordsOf(sentence)
  const isBound = (at: number) =>
    TOKENS.has(wordAt(sentence, at + 1)) || wordAt(sentence, at + 1) === '-token'
  const isStated = figuresOf(sentence).some(
    ({ role, value, noun, at }) =>
      role === 'limit' && value >= 256 && isBound(at) && (isTooMuch || noun === 'input' || noun === 'window'),
  )
  return (
    isStated &&
    words.some((word) => MOST.has(word)) &&
    !words.some((word) => word === 'not' || word.endsWith("n't"))
  )
}

const MOST = new Set(['max', 'maximum', 'limit', 'limited', 'most', 'only'])

function isModelLength(words: readonly string[]): boolean {
  return /\b(?:model|session)(?:'s)? (?:max(?:imum)? )?length\b|\bmax(?:imum)? (?:model|total|token) length\b/.test(
    words.join(' '),
  )
}

const OVER_WHAT = new Set(['the', 'limit', 'maximum', 'budget', 'model', 'max', 'its', 'our', 'this', 'your'])

function saysTooMuch(words: readonly string[]): boolean {
  return words.some((word, at) => {
    const next = words[at + 1] ?? ''
    const after = words[at + 2] ?? ''
    if (word === 'too' || word === 'zu' || word === 'trop' || word === 'demasiado' || word === 'слишком')
      return SIZES.has(next) || SIZES.has(after)
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

/** Words by which a field of the request is held to a bound. */
const HELD = new Set([
  'must',
  'should',
  'range',
  'most',
  'supports',
  'support',
  '<=',
  '<',
  '≤',
  'maximum',
  'less',
  'exceed',
  'limit',
  'supported',
  'allowed',
  'between',
  'limited',
  'capped',
  'cap',
])
/** The request's field for the output cap, by its own name. */
const OUTPUT_FIELD =
  /^(?:max_?(?:completion_|output_|new_|gen_|generated_)?tokens(?:_to_sample)?|max-tokens|maxoutputtokens|maxtokencount|max_(?:gen|output|decode)_len(?:gth)?|num_predict|n_predict)$/

function holdsOutput(words: readonly string[], figures: readonly Figure[]): boolean {
  const phrase = words.join(' ')
  const namesIt =
    words.some((word) => OUTPUT_FIELD.test(word)) ||
    /\bmax(?:imum)? (?:output |completion |new )?tokens\b/.test(phrase)
  const isBound = figures.some(({ role, value }) => role === 'limit' && value >= 16)
  return (
    namesIt &&
    isBound &&
    words.some((word) => HELD.has(word)) &&
    !words.includes('least') &&
    !words.includes('greater')
  )
}

/** The request is larger than the limit, whatever verb says so. */
function isOver(figures: readonly Figure[]): boolean {
  const values = figures.filter(({ role }) => role === 'value')
  const parts = values.filter(({ isPart }) => isPart).reduce((sum, { value }) => sum + value, 0)
  return figures.some((limit) => {
    if (limit.role === 'room')
      return values.some(({ noun, value }) => noun === 'output' && value > limit.value)
    // A bound without a unit has that of what it is compared with.
    const isBare = !limit.isCounted && limit.value < 256
    if (limit.role !== 'limit' || isBare || limit.value < 16) return false
    if (parts > limit.value) return true
    const isKnown = limit.isCounted && limit.noun !== undefined
    return values.some(({ value, isCounted }) => (isCounted || isKnown) && value > limit.value)
  })
}

/** Numbers without a unit may be a status or an id. */
function mayBeTokens({ isCounted, value }: Figure): boolean {
  return isCounted || (value >= 256 && value <= 50_000_000 && !(value >= 400 && value < 600))
}

interface Read {
  readonly figures: readonly Figure[]
  /** What was too much: nouns of the sentences that say so, in order. */
  readonly subjects: readonly Noun[]
  readonly saysRequest: boolean
}

/** The nouns up to the word that says "too much": what follows it is the bound. */
function subjectsOf(words: readonly string[]): Noun[] {
  const verb = words.findIndex(
    (word, at) =>
      cueOf(word) === 'exceed' || word === 'too' || (word === 'must' && at > 0) || word === 'cannot',
  )
  const before = verb <= 0 ? words : words.slice(0, verb)
  const phrase = before.join(' ')
  if (
    /\bmax(?:imum)? tokens? (?:you )?(?:requested|is|are|value|parameter)\b/.test(phrase) ||
    /^max tokens?$/.test(phrase)
  )
    return ['output']
  const nouns = before.flatMap((word): Noun[] => {
    const noun = nounOf(word)
    return noun ? [noun] : TOKENS.has(word) ? [] : []
  })
  return nouns.length > 0 || verb <= 0 ? nouns : words.flatMap((word) => nounOf(word) ?? [])
}

const sum = (figures: readonly Figure[]): number | undefined =>
  figures.length === 0 ? undefined : figures.reduce((total, { value }) => total + value, 0)

function interpret({ figures, subjects, saysRequest }: Read): Overflow {
  const limits = figures.filter(({ role }) => role === 'limit')
  const values = figures.filter(({ role }) => role === 'value')
  const excess = figures.find(({ role }) => role === 'excess')?.value
  const limitOf = (...nouns: readonly (Noun | undefined)[]) =>
    limits.find(({ noun }) => nouns.includes(noun))?.value
  const outputBound = limitOf('output')
  const limit = limitOf('window', 'total') ?? limitOf('input') ?? limitOf(undefined)
  const inputs = values.filter(({ noun }) => noun === 'input')
  const parts = inputs.filter(({ isPart }) => isPart)
  const input = sum(parts.length > 0 ? parts : inputs.slice(0, 1))
  const room = figures.find(({ role }) => role === 'room')?.value
  const output = values.find(({ noun }) => noun === 'output')?.value
  const isAbout = (noun: Noun) => subjects.includes(noun)
  const isOutputOnly = isAbout('output') && !isAbout('input') && !isAbout('total')
  const isBoth = isAbout('output') === isAbout('input') && (isAbout('total') || isAbout('output'))

  if (room !== undefined && (output !== undefined || isOutputOnly)) {
    return {
      ...overOutput(room),
      ...(limit === undefined ? {} : { limit }),
      ...(input === undefined ? {} : { promptTokens: input }),
    }
  }
  if (limit !== undefined && input !== undefined && output !== undefined) {
    return inputs.some(({ isAtLeast }) => isAtLeast) ? overTotal(limit) : overWindow(input, limit)
  }
  if (outputBound !== undefined && !(limit !== undefined && input !== undefined && input > limit))
    return overOutput(outputBound)
  if (limit !== undefined) {
    if (input !== undefined) {
      // Less than the limit, and refused: something else came on top.
      return input >= limit && !inputs.some(({ isAtLeast }) => isAtLeast)
        ? overInput(limit, input)
        : overTotal(limit)
    }
    const other = values.find(({ noun }) => noun !== 'output' && noun !== 'input')
    if (other?.noun === 'total' || (other && isBoth)) return overTotal(limit)
    if (output !== undefined || isOutputOnly)
      return boundOutput(
        limits.find(({ value }) => value === limit),
        limit,
      )
    if (other)
      return other.noun === undefined && saysRequest && !isAbout('input')
        ? overTotal(limit)
        : overInput(limit, other.value)
    if (excess !== undefined) return { recovery: 'shrink_context', limit, overflowBy: excess }
    return isBoth ? overTotal(limit) : overInput(limit, undefined)
  }
  if (excess !== undefined) return { recovery: 'compress_only', overflowBy: excess }
  if (isOutputOnly || (output !== undefined && input === undefined)) return overOutput(undefined)
  const value = input ?? values.find(({ noun }) => noun === undefined || noun === 'window')?.value
  if (value !== undefined) return overInput(undefined, value)
  return isAbout('input') || (isAbout('window') && !isBoth)
    ? overInput(undefined, undefined)
    : overTotal(undefined)
}

/** A bound of the output where nothing says what it is a bound of; a window that the output alone exceeds is one of the window. */
function boundOutput(figure: Figure | undefined, limit: number): Overflow {
  return figure?.noun === 'window' || figure?.noun === 'total'
    ? { recovery: 'clamp_output_only', limit }
    : overOutput(limit)
}

/** Words of a path or an address are about nothing, but for the field that a JSON pointer ends with; `<400>`, tags and arrows compare nothing. */
function withoutPaths(text: string): string {
  return text
    .replace(/#\/(?:[\w.-]{1,60}\/){0,6}([\w-]{1,60})/g, '$1')
    .replace(/<\/?[a-z][^<>\n]{0,80}>|<\d{3}>|[-=]>/g, ' ')
    .replace(/(?:https?:)?\/{1,2}[\w.-]{1,100}(?:\/[\w.-]{1,100}){1,20}/g, ' ')
}

/**
 * What a text (in normal form) says was too much; `undefined` where it says nothing of the kind. `isSure`: something else than the text says that
 * it is an overflow.
 */
export function readOverflow(text: string, isSure = false): Overflow | undefined {
  const sentences = sentencesOf(
    glossed(
      withoutPaths(
        text.replace(
          /\b(?:input|prompt|request) (should|validation|error|schema)\b|\b(?:malformed|invalid) input(?: request| argument)?\b/g,
          'value $1',
        ),
      ),
    ),
  )
    .map(withoutAdvice)
    .filter((sentence) => sentence.length > 0 && !countsThings(sentence))
  const isTooMuch = sentences.some((sentence) => saysTooMuch(wordsOf(sentence)))
  const figures = sentences.flatMap(figuresOf)
  const telling = sentences.filter((sentence) => {
    const words = wordsOf(sentence)
    const isAboutContext =
      words.some((word, at) => isStrong(word, words[at + 1] ?? '')) ||
      isLongMessage(words) ||
      isModelLength(words)
    return (
      (isAboutContext && (saysTooMuch(words) || isFull(words) || holdsOutput(words, figuresOf(sentence)))) ||
      statesBound(sentence, isTooMuch)
    )
  })
  if (!isSure && telling.length === 0 && !isOver(figures)) return undefined
  const about = telling.length > 0 ? telling : sentences
  const words = about.flatMap(wordsOf)
  return interpret({
    figures: figures.filter(mayBeTokens),
    subjects: about.flatMap((sentence) => subjectsOf(wordsOf(sentence))),
    saysRequest:
      words.some((word) => word === 'requested' || word === 'requesting' || word === 'answering') ||
      wordsOf(sentences.flat()).includes('requested'),
  })
}
