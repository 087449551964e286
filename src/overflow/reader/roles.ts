/** Finds the role of each number in a sentence: the limit, the request, a part of it, or the excess. */
import { isSummand, nounOf, partNoun, rangeNoun, summandNoun } from './nouns.ts'
import {
  ASKED,
  cueBefore,
  hasOtherUnit,
  isCompared,
  isCounted,
  isExcess,
  isLimitAfter,
  isPassive,
  isRoom,
} from './phrases.ts'
import { isNumber, leftOf, rightOf, type Sentence, withoutUnit, wordAt } from './sentence.ts'
import { cueOf, type Noun, nounOf as nounOfWord, type Role, wordSet } from './words.ts'

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
  /** Its index in the sentence. */
  readonly at: number
}

const RANGE_OPENS = ['[', 'from', 'between', '(', 'range']
const IN_RANGE = wordSet(', to - and ( inclusive exclusive ) ~ ..')

/** Whether a number starts or ends a range: `[1, 8192]`, `from 1 to 8192`. `less`: 1 if its end is excluded. */
function rangeEnd(sentence: Sentence, at: number): { isStart: boolean; isEnd: boolean; less: number } {
  const right = rightOf(sentence, at)
  const left = leftOf(sentence, at)
  const joins = (words: readonly string[]) => words.length > 0 && words.every((word) => IN_RANGE.has(word))
  const opens = (words: readonly string[]) => RANGE_OPENS.some((word) => words.slice(0, 2).includes(word))
  const before = at - left.length - 1
  const isStart = isNumber(sentence[at + right.length + 1]) && joins(right) && opens(left)
  const isEnd = isNumber(sentence[before]) && joins(left) && opens(leftOf(sentence, before))
  return { isStart, isEnd, less: isEnd && right.slice(0, 3).includes('exclusive') ? 1 : 0 }
}

const OFFERED = new Set(['available', 'allowed', 'supported', 'permitted', 'maximum', 'max'])

function roleOf(
  sentence: Sentence,
  at: number,
  left: readonly string[],
  right: readonly string[],
  value: number,
): Role | undefined {
  const next = sentence.slice(at + 1).find(isNumber)
  if (isExcess(left, right, value, next?.kind === 'number' ? next.value : undefined)) return 'excess'
  if (isSummand(sentence, at)) return 'value'
  if (wordAt(sentence, at - 1) === '/' && isNumber(sentence[at - 2])) return 'limit'
  if (wordAt(sentence, at - 1) === 'of' && isNumber(sentence[at - 2])) return 'limit'
  if (wordAt(sentence, at + 1) === 'of' && isNumber(sentence[at + 2])) return 'value'
  if (isRoom(left, right)) return 'room'
  // `: N requested, M available`: the words after each number belong to it.
  if (left[0] === ':' || left[0] === ',') {
    const after = withoutUnit(right)[0] ?? ''
    if (ASKED.has(after)) return 'value'
    if (OFFERED.has(after)) return 'limit'
  }
  if (isPassive(right)) return 'limit'
  const before = cueBefore(left)
  // `the maximum of N exceeded`, and languages in which the verb comes last.
  const leadsToNumber = isNumber(sentence[at + right.length + 1])
  const endsInVerb =
    !leadsToNumber && cueOf(withoutUnit(right)[0] ?? '') === 'exceed' && !/\w/.test(withoutUnit(right)[1] ?? '')
  if (endsInVerb && before === 'bound') return 'limit'
  if (isCompared(right)) return 'value'
  if (left[0] === '(' && ASKED.has(withoutUnit(right)[0] ?? '')) return 'value'
  const [first = '', second = ''] = right
  // `N maximum context length`
  const isMaximum = /^max(?:imum)?$/.test(first) && nounOfWord(second) === 'window'
  if (isLimitAfter(right, leadsToNumber) && (before !== 'value' || isMaximum)) return 'limit'
  if (before) return before === 'value' ? 'value' : 'limit'
  const noun = nounOf(left, right, 'value')
  if (noun === 'window') return 'limit'
  return noun ? 'value' : undefined
}

/** Returns the words after a number that belong to it: in `input=7000 output=2000`, `output` belongs to 2000. */
function wordsAfter(sentence: Sentence, at: number): string[] {
  const all = rightOf(sentence, at)
  const bracket = all.indexOf('(')
  // `140000 tokens (input 120000 + …`: the words in the bracket belong to the numbers in it.
  const isOpen = bracket !== -1 && !all.includes(')') && isNumber(sentence[at + all.length + 1])
  const right = isOpen ? all.slice(0, bracket) : all
  const names = (right.at(-1) === '=' || right.at(-1) === ':') && right.length <= 3
  return names && isNumber(sentence[at + all.length + 1]) ? [] : right
}

/** Returns the figures of one sentence, in order. */
export function figuresOf(sentence: Sentence): Figure[] {
  return sentence.flatMap((atom, at): Figure[] => {
    if (atom.kind !== 'number' || atom.isNegative) return []
    const left = leftOf(sentence, at)
    const right = wordsAfter(sentence, at)
    if (hasOtherUnit(left, right, atom.value)) return []
    // Both numbers in `2048 - 1024`: the difference is stated elsewhere.
    if (wordAt(sentence, at - 1) === '-') return []
    if (wordAt(sentence, at + 1) === '-' && isNumber(sentence[at + 2])) return []
    // The sum in `1024 + 2048 = 3072` says nothing new.
    const isResult = left.length === 1 && left[0] === '='
    if (isResult && isNumber(sentence[at - 2]) && isSummand(sentence, at - 2)) return []
    const range = rangeEnd(sentence, at)
    if (range.isStart) return []
    const role = range.isEnd ? 'limit' : roleOf(sentence, at, left, right, atom.value)
    if (!role || atom.value === 0) return []
    const isTerm = isSummand(sentence, at)
    const noun = isTerm
      ? (partNoun(withoutUnit(right)) ?? summandNoun(sentence, at))
      : range.isEnd
        ? rangeNoun(sentence, at)
        : nounOf(left, right, role)
    return [
      {
        role,
        value: atom.value - range.less,
        noun,
        isPart: role === 'value' && (isTerm || partNoun(withoutUnit(right)) !== undefined),
        isCounted: isCounted(left, right, noun),
        isAtLeast: left.slice(0, 2).includes('least'),
        at,
      },
    ]
  })
}
