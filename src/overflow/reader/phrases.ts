/** Tells what the words before and after a number say about it. */
import { withoutUnit } from './sentence.ts'
import { type Cue, cueOf, type Noun, nounOf, OTHER_UNITS, TOKENS, wordSet } from './words.ts'

const COMPARES = wordSet(
  'exceeds exceed exceeded exceeding surpasses surpassed overflows > >= vs versus over above beyond /',
)

/** Verbs of rules: `must be at most N`. */
export const MODALS = new Set(['must', 'should', 'cannot', 'can', 'may', 'needs'])

const LIMIT_AFTER = wordSet('maximum max limit limits window context allowed cap budget capacity or')

/** Words that may stand between a number and a comparison. */
const LEADS_TO_VERB = wordSet('is are was were has have would will which that and long')

const MARKS = new Set([',', ':', '}', '{', '?', '!'])

/** True for the words after `N` in `N tokens exceeds …`, `(N) is greater than …`, `N must be at most …`. */
export function isCompared(right: readonly string[]): boolean {
  const rest = withoutUnit(right).filter((word) => !MARKS.has(word))
  const [first = '', second = '', third = ''] = rest
  if (COMPARES.has(first) || MODALS.has(first)) return true
  if (!LEADS_TO_VERB.has(first)) return false
  if (second === 'not' || COMPARES.has(second) || MORE.has(second) || cueOf(second) === 'exceed') return true
  return ['is', 'been', 'already'].includes(second) && cueOf(third) === 'exceed'
}

/** Words and marks at which another phrase begins. */
const BREAKS = new Set([',', ';', ')', 'but', 'and', 'while', 'however', ':'])

/**
 * True for the words after `N` in `N maximum`, `N token limit`, `N-token context window`. A phrase that leads to the
 * next number belongs to that one.
 */
export function isLimitAfter(right: readonly string[], leadsToNumber: boolean): boolean {
  const end = right.findIndex((word) => BREAKS.has(word))
  if (end === -1 && leadsToNumber) return false
  const rest = (end === -1 ? right : right.slice(0, end)).filter((word) => !TOKENS.has(word) && word !== '-')
  const [first = '', second = ''] = rest
  if (first === 'or') return second === 'less' || second === 'fewer'
  if (nounOf(first) === 'output' || nounOf(first) === 'input') {
    return LIMIT_AFTER.has(second) && second !== 'context'
  }
  return LIMIT_AFTER.has(first)
}

/** True for the words after `N` in `N has been exceeded`: N is the limit. */
export function isPassive(right: readonly string[]): boolean {
  const [first = '', second = '', third = ''] = withoutUnit(right)
  if (['has', 'have', 'had'].includes(first)) return second === 'been' && /^(?:exceeded|reached)$/.test(third)
  return ['was', 'is', 'were'].includes(first) && second === 'exceeded'
}

const ROOM = new Set(['remain', 'remains', 'remaining', 'left', 'leaving', 'leaves', 'room'])

/** True for what is left of a window: `leaving N`, `N remain`. Words before a colon belong to something else. */
export function isRoom(left: readonly string[], right: readonly string[]): boolean {
  const colon = left.indexOf(':')
  const near = left.slice(0, colon === -1 || colon === 0 ? 4 : Math.min(4, colon))
  return near.some((word) => ROOM.has(word)) || /^(?:remain|remains|remaining|left)$/.test(withoutUnit(right)[0] ?? '')
}

/** Words after a number that was requested: `9001 tokens received`. */
export const ASKED = wordSet('received requested given provided sent used submitted needed')

/** Words that say that a size is the request's own. */
const PRESENT = wordSet('current currently actual actually your estimated request requested requests')

const EACH = new Set(['per', 'each', 'every', 'any', 'single'])

/** Returns the nearest cue before a number. `too large:` and `at least` state a value. */
export function cueBefore(left: readonly string[]): Cue | undefined {
  for (const [at, word] of left.entries()) {
    const before = left[at + 1] ?? ''
    if (before === 'too') return 'value'
    // `(prompt: 7000 tokens`: the words before the bracket belong to another number.
    if (
      (word === '(' || word === ',' || word === ':') &&
      left.slice(0, at).some((near) => nounOf(near) === 'input' || nounOf(near) === 'output')
    )
      return undefined
    if (word === 'least') return 'value'
    // `the maximum per submitted batch is N`: `submitted` says nothing about N.
    if (EACH.has(before)) continue
    // `more than N` and other comparatives.
    if (word === 'than') return before === 'smaller' && left[at + 2] !== 'be' ? 'value' : 'bound'
    const cue = cueOf(word)
    // `current context length N`: words such as `current` before the noun make N a value.
    if (cue === 'bound' && nounOf(word) === 'window') {
      const further = left.slice(at + 1)
      const value = further.find((word) => cueOf(word) === 'value') ?? ''
      return cueBefore(further) === 'value' && PRESENT.has(value) ? 'value' : 'bound'
    }
    // `the max token count of N` is a bound if `max` is in the same phrase.
    if (word === 'count' && cueBefore(left.slice(at + 1, at + 4)) === 'bound') return 'bound'
    if (cue) return cue
  }
  return undefined
}

const MORE = new Set(['over', 'above', 'beyond', 'more', 'longer', 'larger', 'greater', 'bigger'])

/** True if `value` is an excess: `too large by N`, `N over the limit`. `next`: the number after it, if there is one. */
export function isExcess(
  left: readonly string[],
  right: readonly string[],
  value: number,
  next: number | undefined,
): boolean {
  const [first = '', second = ''] = left.filter((word) => !ABOUT.has(word))
  if (first === 'by' || first === 'excess') return true
  if ((first === 'of' || first === 'is') && (second === 'excess' || second === 'overflow')) return true
  const [after = ''] = withoutUnit(right)
  if (after === 'too' || after === 'excess') return true
  return MORE.has(after) && (next === undefined || value < next)
}

const ABOUT = new Set(['about', 'approximately', '~', 'roughly', 'least', 'at', ':', '(', 'around'])

/** Words before an HTTP status or the number of an error. */
const STATUS_WORDS = new Set(['failed', 'status', 'http', 'code', 'errno'])

/** True if a number counts something other than tokens: another unit, a status, an id or an amount of money. */
export function hasOtherUnit(left: readonly string[], right: readonly string[], value: number): boolean {
  const [unit = '', next = ''] = right
  if (value >= 400 && value < 600) {
    // `400` at the start of a text, in `Error: 400 …` and in `BadRequestError: 400 …`.
    if (left.length === 0 && !TOKENS.has(unit)) return true
    if (left.slice(0, 2).some((word) => word.endsWith('error'))) return true
  }
  // `<400>`
  if (left[0] === '<' && unit === '>') return true
  // An id, unless the word before it counts: `tokens [9001]`.
  if (left[0] === '[' && unit === ']') return !TOKENS.has(left[1] ?? '')
  if (left.slice(0, 3).some((word) => STATUS_WORDS.has(word)) && !TOKENS.has(unit)) return true
  if (OTHER_UNITS.has(unit)) return !TOKENS.has(next)
  if (['input', 'prompt', 'total', 'text', 'output'].includes(unit) && OTHER_UNITS.has(next)) return true
  return ['$', '€', 'code', 'status', 'error', 'http'].includes(left[0] ?? '')
}

/** True if the words beside a number, or its noun, say that it counts tokens. */
export function isCounted(left: readonly string[], right: readonly string[], noun: Noun | undefined): boolean {
  if (right.slice(0, 3).some((word) => TOKENS.has(word))) return true
  if (left.slice(0, 8).some((word) => TOKENS.has(word) || /token|context|_ctx|seq_len|model_len/.test(word)))
    return true
  return noun !== undefined && noun !== 'total'
}
