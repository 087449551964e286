/**
 * Reads overflow errors that no row knows: whether the text states an overflow, of what, and which number is the limit,
 * the request, or a part of it. It works by tables of words, in linear time.
 */
import { type Overflow, overInput } from '../meaning.ts'
import { type Figure, figuresOf, find } from './figures.ts'
import { nounsIn } from './nouns.ts'
import { isNumberAt, type Sentence, sentencesOf, wordAt, wordsOf } from './sentence.ts'
import { type Clause, countsThings, saysTooMuch, statesOverflow } from './telling.ts'
import { cueOf, glossed, hasAny, MODALS, type Noun, nounOf, TOKENS, upTo, wordSet } from './words.ts'

/** `input` and `prompt` as names of a fault, not of what is too large. */
const INVALID_INPUT =
  /\b(?:input|prompt|request) (should|validation|error|schema)\b|\b(?:malformed|invalid) input(?: request| argument)?\b/g

const REQUESTED = wordSet('requesting answering')

/**
 * Returns the overflow that a text in normal form states; `undefined` if it states none. `isSure`: something other than
 * the text says that it is an overflow.
 */
export function readOverflow(text: string, isSure = false): Overflow | undefined {
  // Without tags, arrows, paths and addresses; of a JSON pointer the last field stays.
  const plain = text
    .replace(INVALID_INPUT, 'value $1')
    .replace(/#\/(?:[\w.-]{1,60}\/){0,6}([\w-]{1,60})/g, '$1')
    .replace(/<\/?[a-z][^<>\n]{0,80}>|<\d{3}>|[-=]>/g, ' ')
    .replace(/(?:https?:)?\/{1,2}[\w.-]{1,100}(?:\/[\w.-]{1,100}){1,20}/g, ' ')
  const clauses: Clause[] = []
  const figures: Figure[] = []
  let isTooMuch = false
  let saysRequest = false
  const read = new Set<string>()
  for (const whole of sentencesOf(glossed(plain))) {
    // Gateways repeat what a provider said: the parts of a request count once.
    const key = JSON.stringify(whole)
    if (read.has(key)) continue
    read.add(key)
    const sentence = withoutMarks(withoutAdvice(whole))
    const words = wordsOf(sentence)
    const clause = { sentence, words, phrase: words.join(' '), figures: figuresOf(sentence) }
    if (countsThings(clause)) continue
    clauses.push(clause)
    figures.push(...clause.figures)
    isTooMuch ||= saysTooMuch(clause)
    saysRequest ||= words.includes('requested')
  }
  const telling = clauses.filter((clause) => statesOverflow(clause, isTooMuch))
  if (!isSure && telling.length === 0 && !isOver(figures)) return undefined
  // A number without a unit may be a status or an id.
  const sizes = figures.filter(({ isCounted, value }) => {
    return isCounted || (value >= 256 && value <= 50_000_000 && !(value >= 400 && value < 600))
  })
  return interpret(sizes, telling.length > 0 ? telling : clauses, saysRequest)
}

/** Words that begin advice, which does not say what went wrong. */
const ADVICE = wordSet(`
  please reduce reducing try consider shorten decrease increase increasing adjust lower truncate truncating
  compress split remove use start enable upgrade see visit contact refer learn check switch set ensure make
  retry`)

/** Returns the sentence without advice: `please` begins advice anywhere, other verbs at the start of a sentence. */
function withoutAdvice(sentence: Sentence): Sentence {
  const first = wordsOf(sentence).find((word) => /\w/.test(word))
  return first !== undefined && ADVICE.has(first) ? [] : upTo(sentence, sentence.indexOf('please'))
}

/** Returns the sentence without each `>` that compares neither numbers nor counted nouns. */
function withoutMarks(sentence: Sentence): Sentence {
  return sentence.filter((atom, at) => {
    if (atom !== '>' && atom !== '>>') return true
    const isCompared = isCounted(sentence, at + 1) || cueOf(wordAt(sentence, at + 1)) === 'bound'
    return isCounted(sentence, at - 1) && isCompared
  })
}

function isCounted(sentence: Sentence, at: number): boolean {
  const word = wordAt(sentence, at)
  return isNumberAt(sentence, at) || word === ')' || TOKENS.has(word) || nounOf(word) !== undefined
}

/** True if the numbers say that the request is larger than the limit, whatever the words. */
function isOver(figures: readonly Figure[]): boolean {
  const parts = sumOfParts(figures)
  const input = find(figures, 'value', 'input')?.value ?? Number.NaN
  const output = find(figures, 'value', 'output')?.value ?? Number.NaN
  for (const { role, value: most, noun, isCounted } of figures) {
    // A small limit without a unit may be a count of something else.
    const isLimit = role === 'limit' && most >= (isCounted ? 16 : 256)
    if (!isLimit && role !== 'room') continue
    if (isLimit && (parts > most || (noun === 'window' && input + output > most))) return true
    const isKnown = isCounted && noun !== undefined
    for (const one of figures) {
      if (one.role !== 'value' || one.value <= most) continue
      if (isLimit ? one.isCounted || isKnown : one.noun === 'output') return true
    }
  }
  return false
}

function sumOfParts(figures: readonly Figure[], noun?: Noun): number {
  const parts = figures.filter((figure) => figure.isPart && (!noun || figure.noun === noun))
  return parts.reduce((sum, { value }) => sum + value, 0)
}

/** Returns the nouns before the word that says "too much": after it stands the limit. */
function subjectsOf(words: readonly string[]): readonly Noun[] {
  const verb = words.findIndex(
    (word, at) => cueOf(word) === 'exceed' || word === 'too' || (word === 'must' && at > 0) || word === 'cannot',
  )
  const before = verb <= 0 ? words : words.slice(0, verb)
  const phrase = before.join(' ')
  if (/\bmax(?:imum)? tokens? (?:you )?(?:requested|is|are|value|parameter)\b|^max tokens?$/.test(phrase))
    return ['output']
  const nouns = nounsIn(before)
  return nouns.length > 0 ? nouns : nounsIn(words)
}

/**
 * Returns what the figures of a text mean. `about`: what states the overflow; `saysRequest`: the text says `requested`.
 */
function interpret(figures: readonly Figure[], about: readonly Clause[], saysRequest: boolean): Overflow {
  const words = about.flatMap((clause) => clause.words)
  const subjects = about.flatMap((clause) => subjectsOf(clause.words))
  const excess = find(figures, 'excess')?.value
  const room = find(figures, 'room')?.value
  const outputBound = find(figures, 'limit', 'output')?.value
  const ofWindow = find(figures, 'limit', 'window', 'total')
  const limit = (ofWindow ?? find(figures, 'limit', 'input') ?? find(figures, 'limit', undefined))?.value
  const output = find(figures, 'value', 'output')?.value
  const input = sumOfParts(figures, 'input') || find(figures, 'value', 'input')?.value
  const isAtLeast = figures.some((figure) => figure.isAtLeast && figure.role === 'value' && figure.noun === 'input')
  const [ofInput, ofOutput] = [subjects.includes('input'), subjects.includes('output')]
  const ofTotal = subjects.includes('total')
  const isOutputOnly = ofOutput && !ofInput && !ofTotal
  const isBoth = ofOutput === ofInput && (ofTotal || ofOutput)

  if (room !== undefined && (output !== undefined || isOutputOnly))
    return { recovery: 'clamp_output_only', maxOutput: room, limit, promptTokens: input }
  if (limit !== undefined && input !== undefined && output !== undefined) {
    if (isAtLeast) return { recovery: 'unknown_overflow', limit }
    if (input >= limit) return overInput(limit, input)
    return { recovery: 'clamp_output_only', limit, promptTokens: input, maxOutput: limit - input }
  }
  if (outputBound !== undefined && !(limit !== undefined && input !== undefined && input > limit))
    return { recovery: 'clamp_output_only', maxOutput: outputBound }
  if (limit === undefined) {
    if (excess !== undefined) return { recovery: 'compress_only', overflowBy: excess }
    if (isOutputOnly || (output !== undefined && input === undefined)) return { recovery: 'clamp_output_only' }
    const value = input ?? find(figures, 'value', undefined, 'window')?.value
    const isOfInput = value !== undefined || ofInput || (subjects.includes('window') && !isBoth)
    return isOfInput ? overInput(undefined, value) : { recovery: 'unknown_overflow' }
  }
  // An input below the limit was refused: something else was added to it.
  if (input !== undefined)
    return input >= limit && !isAtLeast ? overInput(limit, input) : { recovery: 'unknown_overflow', limit }
  const value = find(figures, 'value', undefined, 'window', 'total')
  if (value?.noun === 'total' || (value && isBoth)) return { recovery: 'unknown_overflow', limit }
  if (output !== undefined || isOutputOnly) {
    // The limit is one of the window, else of the output.
    const noun = figures.find(({ role, value }) => role === 'limit' && value === limit)?.noun
    if (noun !== 'window' && noun !== 'total') return { recovery: 'clamp_output_only', maxOutput: limit }
    // A rule of a field states it, rather than that it is exceeded: `cannot be greater than`.
    return { recovery: 'clamp_output_only', limit, maxOutput: hasAny(words, MODALS) ? limit : undefined }
  }
  if (value) {
    const mayBeTotal = value.noun === undefined && !ofInput && (saysRequest || hasAny(words, REQUESTED))
    return mayBeTotal ? { recovery: 'unknown_overflow', limit } : overInput(limit, value.value)
  }
  if (excess !== undefined) return { recovery: 'shrink_context', limit, overflowBy: excess }
  return isBoth ? { recovery: 'unknown_overflow', limit } : overInput(limit, undefined)
}
