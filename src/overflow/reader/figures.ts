/**
 * Finds the role of each number in a sentence by the words around it: the limit, the request, a part, or the excess.
 */
import { isSummand, nounAmong, nounsIn, quantityOf, rangeNoun, summandNoun } from './nouns.ts'
import { isNumberAt, type Place, placeAt, type Sentence } from './sentence.ts'
import {
  type Cue,
  cueOf,
  hasAny,
  MODALS,
  type Noun,
  nounOf,
  OTHER_UNITS,
  type Role,
  TOKENS,
  until,
  without,
  wordSet,
} from './words.ts'

/** A number of tokens in a text, and its role. */
export interface Figure {
  readonly role: Role
  readonly value: number
  /** The quantity, as far as the words beside the number say. */
  readonly noun: Noun | undefined
  /** It is one of the summands of a request: `1000 in the messages`. */
  readonly isPart: boolean
  /** The text gives the unit, or a word that is always counted in tokens. */
  readonly isCounted: boolean
  /** It is a lower bound: `at least 1000`. */
  readonly isAtLeast: boolean
  readonly at: number
}

export function figuresOf(sentence: Sentence): Figure[] {
  return sentence.flatMap((atom, at) => {
    const isSize = typeof atom === 'number' && atom > 0
    return (isSize && figureAt(placeAt(sentence, at), atom)) || []
  })
}

/** Returns the first figure with a role, and with one of the nouns if there are any. */
export function find(
  figures: readonly Figure[],
  role: Role,
  ...nouns: readonly (Noun | undefined)[]
): Figure | undefined {
  return figures.find((figure) => figure.role === role && (nouns.length === 0 || nouns.includes(figure.noun)))
}

function figureAt(place: Place, value: number): Figure | undefined {
  const { sentence, at, left, right, rest, between } = place
  if (hasOtherUnit(place, value)) return undefined
  // Both numbers in `2048 - 1024`: the difference is stated elsewhere.
  if (left[0] === '-' || (right[0] === '-' && isNumberAt(sentence, at + 2))) return undefined
  // The sum in `1024 + 2048 = 3072` says nothing new.
  if (left.length === 1 && left[0] === '=' && place.isLed && isSummand(placeAt(sentence, at - 2))) return undefined
  const range = rangeAt(place)
  if (range === 'start') return undefined
  const isTerm = isSummand(place)
  const role = range ? 'limit' : roleOf(place, isTerm)
  if (!role) return undefined
  // `1000 in the messages`, `204186 input`
  const next = nounAmong(rest, 3)
  const part = next === 'input' || next === 'output' ? next : undefined
  let noun = range ? rangeNoun(place) : quantityOf(place, role)
  if (isTerm) noun = part ?? summandNoun(place)
  return {
    role,
    value: range && between.slice(0, 3).includes('exclusive') ? value - 1 : value,
    noun,
    isPart: role === 'value' && (isTerm || part !== undefined),
    isCounted:
      hasAny(right.slice(0, 3), TOKENS) ||
      /token|context|_ctx|seq_len|model_len|(?:^| )toks?(?: |$)/.test(left.slice(0, 8).join(' ')) ||
      (noun !== undefined && noun !== 'total'),
    isAtLeast: left.slice(0, 2).includes('least'),
    at,
  }
}

/** Words before an HTTP status or the number of an error. */
const STATUS_WORDS = wordSet('failed status http code errno')

const NO_COUNT = wordSet('$ € code status error http')

const PARTS = wordSet('input prompt total text output')

/** True if a number counts something other than tokens: another unit, a status, an id or an amount of money. */
function hasOtherUnit({ left, right }: Place, value: number): boolean {
  const [unit = '', next = ''] = right
  if (value >= 400 && value < 600) {
    // `400` at the start of a text, in `Error: 400 …` and in `BadRequestError: 400 …`.
    if (left.length === 0 && !TOKENS.has(unit)) return true
    if (left[0]?.endsWith('error') || left[1]?.endsWith('error')) return true
  }
  if (left[0] === '<' && unit === '>') return true
  // An id, unless the word before it counts: `tokens [9001]`.
  if (left[0] === '[' && unit === ']') return !TOKENS.has(left[1] ?? '')
  if (hasAny(left.slice(0, 3), STATUS_WORDS) && !TOKENS.has(unit)) return true
  if (OTHER_UNITS.has(unit)) return !TOKENS.has(next)
  return (PARTS.has(unit) && OTHER_UNITS.has(next)) || NO_COUNT.has(left[0] ?? '')
}

const RANGE_OPENS = wordSet('[ from between ( range')
const IN_RANGE = /^(?:(?:,|to|-|and|\(|inclusive|exclusive|\)|~|\.\.)(?: |$))+$/

/** Returns whether a number starts or ends a range: `[1, 8192]`, `from 1 to 8192`. */
function rangeAt({ sentence, at, left, isLed, between, leads }: Place): 'start' | 'end' | undefined {
  if (leads && IN_RANGE.test(between.join(' ')) && hasAny(left.slice(0, 2), RANGE_OPENS)) return 'start'
  if (!isLed || !IN_RANGE.test(left.join(' '))) return undefined
  const start = placeAt(sentence, at - left.length - 1)
  return hasAny(start.left.slice(0, 2), RANGE_OPENS) ? 'end' : undefined
}

/** Words after a number that was requested: `9001 tokens received`. */
const ASKED = wordSet('received requested given provided sent used submitted needed')
const OFFERED = wordSet('available allowed supported permitted maximum max')

/** `N has been exceeded`: N is the limit. */
const PASSIVE = /^(?:(?:has|have|had) been (?:exceeded|reached)|(?:was|is|were) exceeded)(?= |$)/

/** `N tokens were sent` */
const WERE_ASKED = /^(?:was|were) (?:given|sent|provided|received|requested|submitted|supplied|passed)(?= |$)/

/** `a limit of N exceeded by a prompt`, `exceeded, but …` */
const NEXT_PHRASE = wordSet('but by with')

function roleOf(place: Place, isTerm: boolean): Role | undefined {
  const { sentence, at, left, right, rest } = place
  const [before = ''] = left
  const [first = '', second = ''] = rest
  const leadsToNumber = place.leads && right.length === place.between.length
  if (isExcess(place)) return 'excess'
  if (isTerm) return 'value'
  if ((before === '/' || before === 'of') && isNumberAt(sentence, at - 2)) return 'limit'
  if (right[0] === 'of' && isNumberAt(sentence, at + 2)) return 'value'
  if (isRoom(left, first)) return 'room'
  // `: N requested, M available`: the words after each number belong to it.
  if (before === ':' || before === ',') {
    if (ASKED.has(first)) return 'value'
    if (OFFERED.has(first)) return 'limit'
  }
  const after = rest.join(' ')
  if (PASSIVE.test(after)) return 'limit'
  if (WERE_ASKED.test(after)) return 'value'
  const cue = cueBefore(left)
  // `the maximum of N exceeded`, also before `: M`, and languages in which the verb comes last.
  const endsPhrase = first === 'exceeded' && second !== ''
  const endsInVerb =
    (!leadsToNumber || endsPhrase) && cueOf(first) === 'exceed' && (!/\w/.test(second) || NEXT_PHRASE.has(second))
  if (endsInVerb && cue === 'bound') return 'limit'
  if (isCompared(rest) || (before === '(' && ASKED.has(first))) return 'value'
  // `N maximum context length`
  const isMaximum = /^max(?:imum)?$/.test(right[0] ?? '') && nounOf(right[1] ?? '') === 'window'
  if ((cue !== 'value' || isMaximum) && isLimitAfter(right, leadsToNumber)) return 'limit'
  if (cue) return cue === 'value' ? 'value' : 'limit'
  const noun = quantityOf(place, 'value')
  return noun && (noun === 'window' ? 'limit' : 'value')
}

const MORE = wordSet('over above beyond more longer larger greater bigger')

const ABOUT = wordSet('about approximately ~ roughly least at : ( around')

/** True for an excess: `too large by N`, `N over the limit`. */
function isExcess({ sentence, at, left, rest }: Place): boolean {
  const [first = '', second = ''] = without(left, ABOUT)
  if (first === 'by' || first === 'excess') return true
  if ((first === 'of' || first === 'is') && (second === 'excess' || second === 'overflow')) return true
  const [after = ''] = rest
  if (after === 'too' || after === 'excess') return true
  if (!MORE.has(after)) return false
  const [value, next] = sentence.slice(at).filter((atom) => typeof atom === 'number')
  return next === undefined || Number(value) < Math.abs(next)
}

const ROOM = wordSet('remain remains remaining left leaving leaves room')

/** True for what is left of a window: `leaving N`, `N remain`. Words before a colon belong to something else. */
function isRoom(left: readonly string[], after: string): boolean {
  const colon = left.indexOf(':')
  const near = left.slice(0, colon <= 0 ? 4 : Math.min(4, colon))
  return hasAny(near, ROOM) || /^(?:remain|remains|remaining|left)$/.test(after)
}

/** Words that say that a size is the request's own. */
const PRESENT = wordSet('current currently actual actually your estimated request requested requests')

const EACH = wordSet('per each every any single')

/** Returns the nearest cue before a number. `too large:` and `at least` state a value. */
function cueBefore(left: readonly string[]): Cue | undefined {
  for (const [at, word] of left.entries()) {
    const before = left[at + 1] ?? ''
    const further = left.slice(at + 1)
    if (before === 'too' || word === 'least') return 'value'
    // `(prompt: 7000 tokens`: the words before the bracket belong to another number.
    const near = /^[(,:]$/.test(word) ? nounsIn(left.slice(0, at)) : []
    if (near.includes('input') || near.includes('output')) return undefined
    // `the maximum per submitted batch is N`: `submitted` says nothing about N.
    if (EACH.has(before)) continue
    // `over the limit of N`, `above the N token limit`
    if ((word === 'over' || word === 'above') && at > 0) return 'bound'
    // `more than N` and other comparatives.
    if (word === 'than') return before === 'smaller' && left[at + 2] !== 'be' ? 'value' : 'bound'
    const cue = cueOf(word)
    // `current context length N`: words such as `current` before the noun make N a value.
    if (cue === 'bound' && nounOf(word) === 'window') {
      const value = further.find((word) => cueOf(word) === 'value') ?? ''
      return PRESENT.has(value) && cueBefore(further) === 'value' ? 'value' : 'bound'
    }
    // `the max token count of N` is a bound if `max` is in the same phrase.
    if (word === 'count' && cueBefore(further.slice(0, 3)) === 'bound') return 'bound'
    if (cue) return cue
  }
  return undefined
}

const COMPARES = wordSet(
  'exceeds exceed exceeded exceeding surpasses surpassed overflows > >= vs versus over above beyond /',
)

const LEADS_TO_VERB = wordSet('is are was were has have would will which that and long')

const MARKS = wordSet(', : } { ? !')

/** True for the words after `N` in `N tokens exceeds …`, `(N) is greater than …`, `N must be at most …`. */
function isCompared(rest: readonly string[]): boolean {
  const [first = '', second = '', third = ''] = without(rest, MARKS)
  if (COMPARES.has(first) || MODALS.has(first)) return true
  if (!LEADS_TO_VERB.has(first)) return false
  if (second === 'not' || COMPARES.has(second) || MORE.has(second) || cueOf(second) === 'exceed') return true
  return /^(?:is|been|already)$/.test(second) && cueOf(third) === 'exceed'
}

/** Words and marks at which another phrase begins. */
const BREAKS = wordSet(', ; ) but and while however :')

const UNIT = new Set([...TOKENS, '-'])

const LIMIT_AFTER = wordSet('maximum max limit limits window context allowed cap budget capacity or')

/**
 * True after `N` in `N maximum`, `N-token context window`. A phrase that leads to the next number belongs to that one.
 */
function isLimitAfter(right: readonly string[], leadsToNumber: boolean): boolean {
  const phrase = until(right, BREAKS)
  if (leadsToNumber && phrase.length === right.length) return false
  const [first = '', second = ''] = without(phrase, UNIT)
  if (first === 'or') return second === 'less' || second === 'fewer'
  const isNamed = nounOf(first) === 'output' || nounOf(first) === 'input'
  return isNamed ? LIMIT_AFTER.has(second) && second !== 'context' : LIMIT_AFTER.has(first)
}
