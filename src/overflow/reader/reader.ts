/**
 * Reads overflow errors that no row knows: whether the text states an overflow, of what, and which number is the limit,
 * the request, or a part of it. It works by tables of words, in linear time.
 */
import { type Overflow, overInput, overWindow } from '../overflow.ts'
import { type Figure, figuresOf } from './figures.ts'
import { nounsIn } from './nouns.ts'
import { isNumberAt, type Sentence, sentencesOf, upTo, wordAt, wordsOf } from './sentence.ts'
import { type Clause, countsThings, saysTooMuch, statesOverflow } from './telling.ts'
import { cueOf, glossed, hasAny, MODALS, type Noun, nounOf, type Role, TOKENS, wordSet } from './words.ts'

/** `input` and `prompt` as names of a fault, not of what is too large. */
const INVALID_INPUT =
  /\b(?:input|prompt|request) (should|validation|error|schema)\b|\b(?:malformed|invalid) input(?: request| argument)?\b/g

const REQUESTED = wordSet('requested requesting answering')

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
  for (const whole of sentencesOf(glossed(plain))) {
    const sentence = withoutMarks(withoutAdvice(whole))
    const words = wordsOf(sentence)
    if (!countsThings(sentence, words)) clauses.push({ sentence, words, figures: figuresOf(sentence) })
  }
  const isTooMuch = clauses.some(({ words }) => saysTooMuch(words))
  const figures = clauses.flatMap((clause) => clause.figures)
  const telling = clauses.filter((clause) => statesOverflow(clause, isTooMuch))
  if (!isSure && telling.length === 0 && !isOver(figures)) return undefined
  const about = telling.length > 0 ? telling : clauses
  // A number without a unit may be a status or an id.
  const sizes = figures.filter(
    ({ isCounted, value }) => isCounted || (value >= 256 && value <= 50_000_000 && !(value >= 400 && value < 600)),
  )
  return interpret(sizes, {
    subjects: about.flatMap(({ words }) => subjectsOf(words)),
    saysRequest:
      about.some(({ words }) => hasAny(words, REQUESTED)) || clauses.some(({ words }) => words.includes('requested')),
    isHeld: about.some(({ words }) => hasAny(words, MODALS)),
  })
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
  const isCounted = (at: number) => {
    const word = wordAt(sentence, at)
    return isNumberAt(sentence, at) || word === ')' || TOKENS.has(word) || nounOf(word) !== undefined
  }
  return sentence.filter(
    (atom, at) =>
      !(atom === '>' || atom === '>>') ||
      (isCounted(at - 1) && (isCounted(at + 1) || cueOf(wordAt(sentence, at + 1)) === 'bound')),
  )
}

/** True if the numbers say that the request is larger than the limit, whatever the words. */
function isOver(figures: readonly Figure[]): boolean {
  const values = figures.filter(({ role }) => role === 'value')
  const parts = sumOf(values.filter(({ isPart }) => isPart))
  const input = values.find(({ noun }) => noun === 'input')?.value
  const output = values.find(({ noun }) => noun === 'output')?.value
  const both = input !== undefined && output !== undefined ? input + output : 0
  return figures.some((limit) => {
    if (limit.role === 'room') return values.some(({ noun, value }) => noun === 'output' && value > limit.value)
    // A small limit without a unit may be a count of something else.
    if (limit.role !== 'limit' || limit.value < (limit.isCounted ? 16 : 256)) return false
    if (parts > limit.value || (limit.noun === 'window' && both > limit.value)) return true
    const isKnown = limit.isCounted && limit.noun !== undefined
    return values.some(({ value, isCounted }) => (isCounted || isKnown) && value > limit.value)
  })
}

function sumOf(figures: readonly Figure[]): number {
  return figures.reduce((sum, { value }) => sum + value, 0)
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

/** What the words of an overflow say. */
interface Wording {
  /** The nouns of what is too much, in order. */
  readonly subjects: readonly Noun[]
  readonly saysRequest: boolean
  /** The text states a rule for a field, rather than that it is exceeded: `cannot be greater than`. */
  readonly isHeld: boolean
}

function interpret(figures: readonly Figure[], { subjects, saysRequest, isHeld }: Wording): Overflow {
  const find = (role: Role, ...nouns: readonly (Noun | undefined)[]) =>
    figures.find((figure) => figure.role === role && nouns.includes(figure.noun))
  const first = (role: Role) => figures.find((figure) => figure.role === role)?.value
  const [excess, room] = [first('excess'), first('room')]
  const outputBound = find('limit', 'output')?.value
  const limit = (find('limit', 'window', 'total') ?? find('limit', 'input') ?? find('limit', undefined))?.value
  const inputs = figures.filter(({ role, noun }) => role === 'value' && noun === 'input')
  const parts = inputs.filter(({ isPart }) => isPart)
  const input = parts.length > 0 ? sumOf(parts) : inputs[0]?.value
  const isAtLeast = inputs.some((figure) => figure.isAtLeast)
  const output = find('value', 'output')?.value
  const [ofInput, ofOutput, ofTotal] = [
    subjects.includes('input'),
    subjects.includes('output'),
    subjects.includes('total'),
  ]
  const isOutputOnly = ofOutput && !ofInput && !ofTotal
  const isBoth = ofOutput === ofInput && (ofTotal || ofOutput)

  if (room !== undefined && (output !== undefined || isOutputOnly))
    return { recovery: 'clamp_output_only', maxOutput: room, limit, promptTokens: input }
  if (limit !== undefined && input !== undefined && output !== undefined)
    return isAtLeast ? { recovery: 'unknown_overflow', limit } : overWindow(input, limit)
  if (outputBound !== undefined && !(limit !== undefined && input !== undefined && input > limit))
    return { recovery: 'clamp_output_only', maxOutput: outputBound }
  if (limit === undefined) {
    if (excess !== undefined) return { recovery: 'compress_only', overflowBy: excess }
    if (isOutputOnly || (output !== undefined && input === undefined)) return { recovery: 'clamp_output_only' }
    const value = input ?? find('value', undefined, 'window')?.value
    const isOfInput = value !== undefined || ofInput || (subjects.includes('window') && !isBoth)
    return isOfInput ? overInput(undefined, value) : { recovery: 'unknown_overflow' }
  }
  // An input below the limit was refused: something else was added to it.
  if (input !== undefined)
    return input >= limit && !isAtLeast ? overInput(limit, input) : { recovery: 'unknown_overflow', limit }
  const value = find('value', undefined, 'window', 'total')
  if (value?.noun === 'total' || (value && isBoth)) return { recovery: 'unknown_overflow', limit }
  if (output !== undefined || isOutputOnly) {
    // The limit is one of the window, else of the output.
    const noun = figures.find(({ role, value }) => role === 'limit' && value === limit)?.noun
    if (noun !== 'window' && noun !== 'total') return { recovery: 'clamp_output_only', maxOutput: limit }
    return { recovery: 'clamp_output_only', limit, maxOutput: isHeld ? limit : undefined }
  }
  if (value) {
    const mayBeTotal = value.noun === undefined && saysRequest && !ofInput
    return mayBeTotal ? { recovery: 'unknown_overflow', limit } : overInput(limit, value.value)
  }
  if (excess !== undefined) return { recovery: 'shrink_context', limit, overflowBy: excess }
  return isBoth ? { recovery: 'unknown_overflow', limit } : overInput(limit, undefined)
}
