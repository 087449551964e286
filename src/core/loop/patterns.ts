/** The patterns of a run that goes round in circles: how each is found, what the model is told, what may follow. */
import type { Hash } from '../hash.ts'
import { type CallHistory, type HistoryEntry, isSamePair, type LoopLimits, WINDOW } from './call-history.ts'

/** A loop, before its pattern is named. */
export interface FoundLoop {
  /** The calls it is made of, in order, and their tools. */
  readonly calls: readonly [Hash, ...Hash[]]
  readonly tools: readonly [string, ...string[]]
  /** How often each of them was made; of a cycle, how many responses brought nothing new. */
  readonly count: number
  /** How many calls there were from the first of them to the last. */
  readonly span: number
  /** Something new came in between. */
  readonly hasNews: boolean
  /** It waits for something. */
  readonly isWaiting: boolean
  /** All its results are too short to show any progress. */
  readonly isTerse: boolean
}

/** The trail that a loop is looked for in, and how much patience there is with it. */
interface Looking extends CallHistory {
  readonly last: HistoryEntry
  readonly limits: LoopLimits
  /** So many repetitions less are enough: the model has been warned. */
  readonly less: number
}

/** What is made once or seen once is no repetition, however little patience is left. */
const LEAST = 2

/** How often is too often. What waits for something gets more patience, and no less of it after a warning. */
function patience(threshold: number, isWaiting: boolean, { limits, less }: Looking): number {
  return isWaiting ? threshold * limits.pollMultiplier : Math.max(LEAST, threshold - less)
}

function loopOf({ last, repeats }: Looking, found: Pick<FoundLoop, 'count' | 'span'>): FoundLoop {
  const isWaiting = last.isPoll || repeats?.isPoll === true
  const { call, tool, isTerse } = last
  return { calls: [call], tools: [tool], hasNews: false, isWaiting, isTerse, ...found }
}

/** One pair of call and outcome, again and again with nothing between. */
function inARow(looking: Looking): FoundLoop | undefined {
  const { same = 0 } = looking.repeats ?? {}
  const loop = loopOf(looking, { count: same, span: same })
  return same < patience(looking.limits.repetitionThreshold, loop.isWaiting, looking) ? undefined : loop
}

const LAPS = 2

/** Do the newest calls alternate between two? After a warning, laps that it was about are gone on with by one. */
function inTurn(looking: Looking): FoundLoop | undefined {
  const { window, limits, less } = looking
  const [first, second] = window.slice(-2)
  if (!first || !second || isSamePair(first, second)) return undefined
  const isWaiting = first.isPoll || second.isPoll
  const laps = isWaiting ? Math.min(LAPS * limits.pollMultiplier, WINDOW / 2) : LAPS
  const fresh = isWaiting ? laps : laps - less
  const turns = window.slice(-2 * laps)
  const isTurn = turns.every((entry, at) => {
    if (entry.isHandled && at >= turns.length - 2 * fresh) return false
    // Calls of one response are made side by side and not in turn.
    if (turns[at - 1]?.step === entry.step) return false
    const earlier = turns[at - 2]
    return !earlier || isSamePair(earlier, entry)
  })
  if (!isTurn || turns.length < 2 * laps) return undefined
  return {
    calls: [first.call, second.call],
    tools: [first.tool, second.tool],
    count: laps,
    span: turns.length,
    hasNews: false,
    isWaiting,
    isTerse: first.isTerse && second.isTerse,
  }
}

/** Responses in a row that call only what was called before, with the outcomes that it had. */
function standstill(looking: Looking): FoundLoop | undefined {
  const { window, steps, newsAt, limits } = looking
  const responses = steps - newsAt
  const recent = window.filter(({ step }) => step > newsAt)
  const isWaiting = recent.some(({ isPoll }) => isPoll)
  if (responses < patience(limits.standstill, isWaiting, looking)) return undefined
  // The newest last, each once.
  const tools = new Map(recent.toReversed().map(({ call, tool }) => [call, tool]))
  const [newest = looking.last.call, ...others] = tools.keys()
  const toolOf = (call: Hash) => tools.get(call) ?? ''
  const calls = others.toReversed().concat(newest)
  return {
    calls: calls as [Hash, ...Hash[]],
    tools: calls.map(toolOf) as [string, ...string[]],
    count: responses,
    span: recent.length,
    hasNews: false,
    isWaiting,
    isTerse: recent.every(({ isTerse }) => isTerse),
  }
}

/** One call in a row, whatever came of it. A warning about anything else makes it no worse. */
function whateverCameOfIt(looking: Looking): FoundLoop | undefined {
  const { window, repeats, limits } = looking
  const { any = 0 } = repeats ?? {}
  const loop = loopOf(looking, { count: any, span: any })
  if (any < patience(limits.sameCallThreshold, loop.isWaiting, { ...looking, less: 0 })) return undefined
  return { ...loop, hasNews: window.slice(1 - any).some(({ isNew }) => isNew) }
}

/**
 * The last equal calls of the window. From one to the next there may be one other that is new, but none that is new and
 * changes something: to look again after that is no repetition. What is waited for between them is waiting.
 */
function inTheWindow(looking: Looking): FoundLoop | undefined {
  const { window, last, repeats, limits } = looking
  let isWaiting = last.isPoll || repeats?.isPoll === true
  let count = 0
  let hasNews = false
  let isNewBetween = false
  for (let at = window.length - 1; at >= 0; at--) {
    const entry = window[at]
    if (!entry || entry.isHandled) return undefined
    if (isSamePair(entry, last)) {
      count++
      isNewBetween = false
      if (count === patience(limits.repetitionThreshold, isWaiting, looking)) {
        const span = window.length - at
        return { ...loopOf(looking, { count, span }), hasNews, isWaiting }
      }
    } else if (entry.isNew) {
      if (isNewBetween || entry.isChange) return undefined
      isNewBetween = true
      hasNews = true
    } else if (entry.isPoll) isWaiting = true
  }
  return undefined
}

/** What every notice about a loop begins with; by it Governor knows its own notices again. */
export const REPEATING = 'You appear to be repeating the same action'

interface PatternRow {
  /** The loop that the newest call completes, if it does. */
  readonly find: (looking: Looking) => FoundLoop | undefined
  /** The same, looked for after all other patterns. */
  readonly findLast?: (looking: Looking) => FoundLoop | undefined
  /** It is looked for at the last call of a response only: before, it is not known whether that brings anything new. */
  readonly isOfResponses: boolean
  /** What the model is told, without the names of the tools; it begins with `REPEATING`. */
  readonly notice: (loop: Pick<FoundLoop, 'count' | 'span'>) => string
  /** Its calls are blocked if warnings don't help. One that only warns advises to wait from the first warning on. */
  readonly mayBlock: boolean
}

/** The patterns of a loop, in the order in which they are looked for. A new one is a row here and one in `docs/loops.md`. */
export const PATTERNS = {
  /** One call, with one outcome. */
  repetition: {
    find: inARow,
    findLast: inTheWindow,
    isOfResponses: false,
    notice: ({ count, span }) =>
      span === count
        ? `${REPEATING}. The last ${count} tool calls were identical. Try a different approach.`
        : `${REPEATING}. ${count} of the last ${span} tool calls were identical, with identical results. Try a different approach.`,
    mayBlock: true,
  },
  /** Two calls in turn. */
  ping_pong: {
    find: inTurn,
    isOfResponses: false,
    notice: ({ span }) =>
      `${REPEATING}s. The last ${span} tool calls alternated between the same two, with the same results. Try a different approach.`,
    mayBlock: true,
  },
  /** Responses that bring nothing new; its count is one of responses. */
  cycle: {
    find: standstill,
    isOfResponses: true,
    notice: ({ count }) =>
      `${REPEATING}s. The last ${count} responses made only tool calls that were made before, with the same results. Try a different approach.`,
    mayBlock: true,
  },
  /** One call, whatever came of it: where results differ it is not known that the calls are in vain. */
  same_call: {
    find: whateverCameOfIt,
    isOfResponses: false,
    notice: ({ count }) =>
      `${REPEATING}. The last ${count} tool calls were identical, though their results may differ.`,
    mayBlock: false,
  },
} as const satisfies Readonly<Record<string, PatternRow>>

export type Pattern = keyof typeof PATTERNS

export interface Loop extends FoundLoop {
  readonly pattern: Pattern
}

const ROWS = Object.entries(PATTERNS) as readonly (readonly [Pattern, PatternRow])[]

/**
 * The loop that the newest call completes, if it does. `isWarned`: the model has been warned about one before.
 * `isLast`: its response calls nothing more, so that it is known whether that brought anything new.
 */
export function findLoop(
  history: CallHistory,
  limits: LoopLimits,
  isWarned: boolean,
  isLast: boolean,
): Loop | undefined {
  const last = history.window.at(-1)
  // Nothing goes round where the newest call has not been made before.
  if (!last || (last.isNew && history.repeats?.any === 1)) return undefined
  const looking: Looking = { ...history, last, limits, less: isWarned ? 1 : 0 }
  for (const [pattern, { find, isOfResponses }] of ROWS) {
    const found = isLast || !isOfResponses ? find(looking) : undefined
    if (found) return { pattern, ...found }
  }
  for (const [pattern, { findLast }] of ROWS) {
    const found = findLast?.(looking)
    if (found) return { pattern, ...found }
  }
  return undefined
}
