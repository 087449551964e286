/** The patterns of loops: how each is found, what its notice says, whether its calls may be blocked. */
import type { Hash } from '../hash.ts'
import { type CallHistory, type HistoryEntry, isEqualPair, isSimilarPair, WINDOW } from './call-history.ts'
import type { LoopLimits } from './policy.ts'

/** A loop that one pattern found. */
interface FoundLoop {
  /** Hashes of its different calls, in order. */
  readonly calls: readonly [Hash, ...Hash[]]
  /** How often each call was made; for a cycle, how many responses brought nothing new. */
  readonly count: number
  /** The number of calls from the first to the last of the loop. */
  readonly span: number
  /** Something new came in between, or may have come: the loop may be work. */
  readonly hasNews: boolean
  /** The loop waits for something. */
  readonly isWaiting: boolean
}

/** The history in which a loop is looked for, with the limits that hold now. */
interface SearchContext extends CallHistory {
  readonly last: HistoryEntry
  readonly limits: LoopLimits
  /** By how many repetitions the thresholds are lower: 1 after a warning, else 0. */
  readonly less: number
  /** Results are compared for certain equality; if false, results that are perhaps equal are equal. */
  readonly isCertain: boolean
}

const isSame = ({ isCertain }: SearchContext, a: HistoryEntry, b: HistoryEntry) =>
  isCertain ? isEqualPair(a, b) : isSimilarPair(a, b)

/** The least number of equal calls that is a repetition. */
const LEAST = 2

/** Returns how often is too often: more for a loop that waits for something, one less for another after a warning. */
function patience(threshold: number, isWaiting: boolean, { limits, less }: SearchContext): number {
  return isWaiting ? threshold * limits.pollMultiplier : Math.max(LEAST, threshold - less)
}

/**
 * Equal calls with equal results: in a row, however long, or in the window. There, one new call may stand between two of
 * them, unless it changes something: to look again after a change is no repetition. If a call between them waits, the
 * loop waits.
 */
function equalCalls(context: SearchContext): FoundLoop | undefined {
  const { window, last, repeats, limits, isCertain, handledAt } = context
  const calls: FoundLoop['calls'] = [last.call]
  let isWaiting = repeats.isPoll
  let count = isCertain ? repeats.equal : repeats.similar
  if (count >= patience(limits.repetitionThreshold, isWaiting, context))
    return { calls, count, span: count, hasNews: false, isWaiting }
  count = 0
  let hasNews = false
  let isNewBetween = false
  for (const [at, entry] of [...window.entries()].reverse()) {
    if (entry.step <= handledAt) return undefined
    if (isSame(context, entry, last)) {
      count++
      isNewBetween = false
      if (count === patience(limits.repetitionThreshold, isWaiting, context))
        return { calls, count, span: window.length - at, hasNews, isWaiting }
    } else if (isCertain ? entry.mayBeNew : entry.isNew) {
      if (isNewBetween || entry.isChange) return undefined
      isNewBetween = true
      hasNews = true
    } else if (entry.isPoll) isWaiting = true
  }
  return undefined
}

const LAPS = 2

/** Two calls in turn (ABAB). After a warning, one new lap is enough. */
function twoInTurn(context: SearchContext): FoundLoop | undefined {
  const { window, limits, less, handledAt } = context
  const [first, second] = window.slice(-2)
  if (!first || !second || isSame(context, first, second)) return undefined
  const isWaiting = first.isPoll || second.isPoll
  const laps = isWaiting ? Math.min(LAPS * limits.pollMultiplier, WINDOW / 2) : LAPS
  const fresh = isWaiting ? laps : laps - less
  const turns = window.slice(-2 * laps)
  const isTurn = turns.every((entry, at) => {
    if (entry.step <= handledAt && at >= turns.length - 2 * fresh) return false
    // Calls of one response are made side by side, not in turn.
    if (turns[at - 1]?.step === entry.step) return false
    const earlier = turns[at - 2]
    return !earlier || isSame(context, earlier, entry)
  })
  if (!isTurn || turns.length < 2 * laps) return undefined
  return { calls: [first.call, second.call], count: laps, span: turns.length, hasNews: false, isWaiting }
}

/** Responses in a row whose calls and results all occurred before. */
function standstill(context: SearchContext): FoundLoop | undefined {
  const { window, steps, limits, isCertain, last, handledAt } = context
  const since = Math.max(handledAt, isCertain ? context.mayBeNewsAt : context.newsAt)
  const recent = window.filter(({ step }) => step > since)
  const isWaiting = recent.some(({ isPoll }) => isPoll)
  const count = steps - since
  if (count < patience(limits.standstill, isWaiting, context)) return undefined
  // The newest call last, each call once.
  const [newest = last.call, ...others] = new Set(recent.map(({ call }) => call).reverse())
  const calls = others.reverse().concat(newest) as [Hash, ...Hash[]]
  return { calls, count, span: recent.length, hasNews: false, isWaiting }
}

/** One call in a row, whatever its results. A warning about another loop does not lower its threshold. */
function sameCallInARow(context: SearchContext): FoundLoop | undefined {
  const { window, repeats, limits, last } = context
  const { any: count, isPoll: isWaiting } = repeats
  if (count < patience(limits.sameCallAnyResult, isWaiting, { ...context, less: 0 })) return undefined
  const hasNews = window.slice(1 - count).some(({ mayBeNew }) => mayBeNew)
  return { calls: [last.call], count, span: count, hasNews, isWaiting }
}

/** How every notice about a loop begins; Governor recognises its own notices by it. */
export const REPEATING = 'You appear to be repeating the same action'
const CHANGE = 'Try a different approach.'

interface PatternRow {
  /** Returns the loop that the newest call completes; `undefined` if it completes none. */
  readonly find: (context: SearchContext) => FoundLoop | undefined
  /** The pattern counts responses, so it is looked for only at the last call of a response. */
  readonly isOfResponses: boolean
  /** Returns the notice, without the names of the tools; it begins with `REPEATING`. */
  readonly notice: (loop: Pick<FoundLoop, 'count' | 'span'>) => string
  /** Its calls are blocked if the model ignores the warnings. If false, the first warning already advises to wait. */
  readonly mayBlock: boolean
  /** How many different calls a repetition of it has, as far as that is always the same. */
  readonly span: number
}

/** The patterns; of two loops of one length the first one counts. A new one is a row here and in `docs/loops.md`. */
export const PATTERNS = {
  /** Two calls in turn. */
  ping_pong: {
    find: twoInTurn,
    isOfResponses: false,
    notice: ({ span }) =>
      `${REPEATING}s. The last ${span} tool calls alternated between the same two, with the same results. ${CHANGE}`,
    mayBlock: true,
    span: 2,
  },
  /** Responses without anything new; `count` counts responses. */
  cycle: {
    find: standstill,
    isOfResponses: true,
    notice: ({ count }) =>
      `${REPEATING}s. The last ${count} responses made only tool calls that were made before, ` +
      `with the same results. ${CHANGE}`,
    mayBlock: true,
    span: 1,
  },
  /** One call with one result. */
  repetition: {
    find: equalCalls,
    isOfResponses: false,
    notice: ({ count, span }) =>
      span === count
        ? `${REPEATING}. The last ${count} tool calls were identical. ${CHANGE}`
        : `${REPEATING}. ${count} of the last ${span} tool calls were identical, with identical results. ${CHANGE}`,
    mayBlock: true,
    span: 1,
  },
  /** One call, whatever its results: if they differ, the calls may be work. */
  same_call: {
    find: sameCallInARow,
    isOfResponses: false,
    notice: ({ count }) =>
      `${REPEATING}. The last ${count} tool calls were identical, though their results may differ.`,
    mayBlock: false,
    span: 1,
  },
} as const satisfies Readonly<Record<string, PatternRow>>

/** The name of a pattern, as in metrics and headers. */
export type Pattern = keyof typeof PATTERNS

/** A loop and the pattern that found it. */
export interface Loop extends FoundLoop {
  readonly pattern: Pattern
}

const ROWS = Object.entries(PATTERNS) as readonly (readonly [Pattern, PatternRow])[]

/**
 * Returns the loop that the newest call completes; `undefined` if it completes none. Of several, one whose results are
 * certainly equal, then one with nothing new in between, then the longest. `isWarned`: the model was warned about a
 * loop before. `isLast`: it is the last call of its response, so all that the response brought is known.
 */
export function findLoop(
  history: CallHistory,
  limits: LoopLimits,
  isWarned: boolean,
  isLast: boolean,
): Loop | undefined {
  const last = history.window.at(-1)
  // A call that was never made before completes no loop.
  if (!last || (last.isNew && history.repeats.any === 1)) return undefined
  for (const isCertain of [true, false]) {
    const context: SearchContext = { ...history, last, limits, less: isWarned ? 1 : 0, isCertain }
    const [first] = ROWS.flatMap(([pattern, { find, isOfResponses }]): Loop[] => {
      const loop = isOfResponses && !isLast ? undefined : find(context)
      return loop ? [{ pattern, ...loop, hasNews: loop.hasNews || !isCertain }] : []
    }).sort((a, b) => Number(a.hasNews) - Number(b.hasNews) || b.span - a.span)
    if (first) return first
  }
  return undefined
}
