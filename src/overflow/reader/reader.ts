/**
 * Reads overflow errors that no row knows: whether the text states an overflow, of what, and which number is the limit,
 * the request, or a part of it. It works by tables of words, in linear time.
 */
import { type Overflow, overInput, overOutput, overTotal, overWindow } from '../overflow.ts'
import { MODALS } from './phrases.ts'
import { type Figure, figuresOf } from './roles.ts'
import { isNumber, type Sentence, sentencesOf, wordAt, wordsOf } from './sentence.ts'
import { countsThings, saysTooMuch, statesOverflow } from './telling.ts'
import { ADVICE, cueOf, glossed, type Noun, nounOf, TOKENS } from './words.ts'

/** Returns the sentence without advice: `please` begins advice anywhere, other verbs at the start of a sentence. */
function withoutAdvice(sentence: Sentence): Sentence {
  const first = sentence.find((atom) => atom.kind === 'word' && /\w/.test(atom.word))
  if (first?.kind === 'word' && ADVICE.has(first.word)) return []
  const please = sentence.findIndex((atom) => atom.kind === 'word' && atom.word === 'please')
  return please === -1 ? sentence : sentence.slice(0, please)
}

/** Returns the sentence without each `>` that compares neither numbers nor counted nouns. */
function withoutMarks(sentence: Sentence): Sentence {
  const isCounted = (at: number) => {
    const word = wordAt(sentence, at)
    return isNumber(sentence[at]) || word === ')' || TOKENS.has(word) || nounOf(word) !== undefined
  }
  return sentence.filter(
    (atom, at) =>
      atom.kind === 'number' ||
      !/^>{1,2}$/.test(atom.word) ||
      (isCounted(at - 1) && (isCounted(at + 1) || cueOf(wordAt(sentence, at + 1)) === 'bound')),
  )
}

/** True if the numbers say that the request is larger than the limit, whatever the words. */
function isOver(figures: readonly Figure[]): boolean {
  const values = figures.filter(({ role }) => role === 'value')
  const parts = sumOf(values.filter(({ isPart }) => isPart))
  return figures.some((limit) => {
    if (limit.role === 'room') return values.some(({ noun, value }) => noun === 'output' && value > limit.value)
    // A small limit without a unit may be a count of something else.
    const isBare = !limit.isCounted && limit.value < 256
    if (limit.role !== 'limit' || isBare || limit.value < 16) return false
    if (parts > limit.value) return true
    const input = values.find(({ noun }) => noun === 'input')
    const output = values.find(({ noun }) => noun === 'output')
    if (input && output && limit.noun === 'window' && input.value + output.value > limit.value) return true
    const isKnown = limit.isCounted && limit.noun !== undefined
    return values.some(({ value, isCounted }) => (isCounted || isKnown) && value > limit.value)
  })
}

/** The facts that an overflow is made of. */
interface Facts {
  readonly figures: readonly Figure[]
  /** The nouns of what is too much, in order. */
  readonly subjects: readonly Noun[]
  readonly saysRequest: boolean
  /** The text states a rule for a field, rather than that it is exceeded: `cannot be greater than`. */
  readonly isHeld: boolean
}

/** Returns the nouns before the word that says "too much": after it stands the limit. */
function subjectsOf(words: readonly string[]): Noun[] {
  const verb = words.findIndex(
    (word, at) => cueOf(word) === 'exceed' || word === 'too' || (word === 'must' && at > 0) || word === 'cannot',
  )
  const before = verb <= 0 ? words : words.slice(0, verb)
  const phrase = before.join(' ')
  if (/\bmax(?:imum)? tokens? (?:you )?(?:requested|is|are|value|parameter)\b|^max tokens?$/.test(phrase))
    return ['output']
  const nouns = before.flatMap((word) => nounOf(word) ?? [])
  return nouns.length > 0 || verb <= 0 ? nouns : words.flatMap((word) => nounOf(word) ?? [])
}

function sumOf(figures: readonly Figure[]): number {
  return figures.reduce((sum, { value }) => sum + value, 0)
}

function interpret({ figures, subjects, saysRequest, isHeld }: Facts): Overflow {
  const limits = figures.filter(({ role }) => role === 'limit')
  const values = figures.filter(({ role }) => role === 'value')
  const excess = figures.find(({ role }) => role === 'excess')?.value
  const limitOf = (...nouns: readonly (Noun | undefined)[]) => limits.find(({ noun }) => nouns.includes(noun))?.value
  const outputBound = limitOf('output')
  const limit = limitOf('window', 'total') ?? limitOf('input') ?? limitOf(undefined)
  const inputs = values.filter(({ noun }) => noun === 'input')
  const parts = inputs.filter(({ isPart }) => isPart)
  const input = parts.length > 0 ? sumOf(parts) : inputs[0]?.value
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
      // An input below the limit was refused: something else was added to it.
      return input >= limit && !inputs.some(({ isAtLeast }) => isAtLeast) ? overInput(limit, input) : overTotal(limit)
    }
    const value = values.find(({ noun }) => noun !== 'output' && noun !== 'input')
    if (value?.noun === 'total' || (value && isBoth)) return overTotal(limit)
    if (output !== undefined || isOutputOnly) {
      // The limit is one of the window, else of the output.
      const noun = limits.find(({ value }) => value === limit)?.noun
      if (noun !== 'window' && noun !== 'total') return overOutput(limit)
      return { recovery: 'clamp_output_only', limit, ...(isHeld ? { maxOutput: limit } : {}) }
    }
    if (value)
      return value.noun === undefined && saysRequest && !isAbout('input')
        ? overTotal(limit)
        : overInput(limit, value.value)
    if (excess !== undefined) return { recovery: 'shrink_context', limit, overflowBy: excess }
    return isBoth ? overTotal(limit) : overInput(limit, undefined)
  }
  if (excess !== undefined) return { recovery: 'compress_only', overflowBy: excess }
  if (isOutputOnly || (output !== undefined && input === undefined)) return overOutput(undefined)
  const value = input ?? values.find(({ noun }) => noun === undefined || noun === 'window')?.value
  if (value !== undefined) return overInput(undefined, value)
  return isAbout('input') || (isAbout('window') && !isBoth) ? overInput(undefined, undefined) : overTotal(undefined)
}

/** `input` and `prompt` as names of a fault, not of what is too large. */
const INVALID_INPUT = new RegExp(
  [
    '\\b(?:input|prompt|request) (should|validation|error|schema)\\b',
    '\\b(?:malformed|invalid) input(?: request| argument)?\\b',
  ].join('|'),
  'g',
)

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
  const sentences = sentencesOf(glossed(plain))
    .map(withoutAdvice)
    .map(withoutMarks)
    .filter((sentence) => sentence.length > 0 && !countsThings(sentence))
  const isTooMuch = sentences.some((sentence) => saysTooMuch(wordsOf(sentence)))
  const figures = sentences.flatMap(figuresOf)
  const telling = sentences.filter((sentence) => statesOverflow(sentence, isTooMuch))
  if (!isSure && telling.length === 0 && !isOver(figures)) return undefined
  const about = telling.length > 0 ? telling : sentences
  const words = about.flatMap(wordsOf)
  return interpret({
    // A number without a unit may be a status or an id.
    figures: figures.filter(
      ({ isCounted, value }) => isCounted || (value >= 256 && value <= 50_000_000 && !(value >= 400 && value < 600)),
    ),
    subjects: about.flatMap((sentence) => subjectsOf(wordsOf(sentence))),
    saysRequest:
      words.some((word) => word === 'requested' || word === 'requesting' || word === 'answering') ||
      wordsOf(sentences.flat()).includes('requested'),
    isHeld: words.some((word) => MODALS.has(word)),
  })
}
