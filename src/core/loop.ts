/**
 * Whether a run goes round in circles: a trail of its last tool calls, and the patterns to be seen in it.
 *
 * Two calls are the same where tool and arguments are, and nothing new has come of it where the outcome is the same
 * as well. What tells work from loops best is a different call in between that was new and changed something.
 */
import type { Hash } from './hash.ts'
import { withNewest } from './newest.ts'

/**
 * `repetition`: one call, with one outcome. `ping_pong`: two in turn. `cycle`: responses that bring nothing new.
 * `same_call`: one call, whatever came of it.
 */
export type Pattern = 'repetition' | 'ping_pong' | 'cycle' | 'same_call'

export interface LoopLimits {
  /** From how many equal calls with equal outcomes on it is a repetition. */
  readonly repetitionThreshold: number
  /** From how many responses in a row on that bring nothing new it is a cycle. */
  readonly standstill: number
  /** From how many equal calls in a row on, whatever their outcomes. */
  readonly sameCallThreshold: number
  /** Calls that wait for something may be repeated so many times as often. */
  readonly pollMultiplier: number
}

/** One call that was made and what came of it. */
export interface Strike {
  readonly tool: string
  readonly call: Hash
  /** Empty where there was no result. */
  readonly outcome: Hash | ''
  /** It waits for something, or its result says that work goes on. */
  readonly isPoll: boolean
  /** It changes something. */
  readonly isChange: boolean
  /** Its result is too short to show any progress. */
  readonly isTerse: boolean
}

interface Trace extends Strike {
  /** Number of the response it was in. */
  readonly step: number
  /** Neither a call nor an outcome that the window knew. */
  readonly isNew: boolean
  /** Part of a loop that was found: known, but not counted again. */
  readonly isSpent: boolean
}

/** How often the newest call has been made in a row since a loop was found, window or not. */
interface Streak {
  readonly call: Hash
  readonly outcome: Hash | ''
  readonly isPoll: boolean
  /** With this outcome. */
  readonly same: number
  /** With any. */
  readonly any: number
}

/** Plain data of bounded size. */
export interface Trail {
  /** Oldest first. */
  readonly window: readonly Trace[]
  /** Unset before the first. */
  readonly streak: Streak | undefined
  /** How many responses it has seen. */
  readonly steps: number
  /** The newest of them that brought something new, or that a loop was found in. */
  readonly newsAt: number
}

export const EMPTY_TRAIL: Trail = { window: [], streak: undefined, steps: 0, newsAt: 0 }

/** A loop that is there. */
export interface Loop {
  readonly pattern: Pattern
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

/** Names are only shown. */
const MAX_NAME = 64

const isSamePair = (a: Strike | Streak, b: Strike | Streak) => a.call === b.call && a.outcome === b.outcome

function extended(streak: Streak | undefined, { call, outcome, isPoll }: Strike): Streak {
  if (streak?.call !== call) return { call, outcome, isPoll, same: 1, any: 1 }
  const same = streak.outcome === outcome ? streak.same + 1 : 1
  return { call, outcome, isPoll: isPoll || streak.isPoll, same, any: streak.any + 1 }
}

/** How many of the newest calls are compared, */
const WINDOW = 10
/** and however many calls responses make, no more than this. */
const MAX_WINDOW = 64

/**
 * How many calls are kept. Calls side by side may be more than a window holds: of those, as many responses as make a
 * repetition.
 */
function sizeOf(window: Trail['window'], step: number, { repetitionThreshold }: LoopLimits): number {
  if (window.length < WINDOW) return WINDOW
  const first = window.findIndex((trace) => trace.step > step - Math.min(repetitionThreshold, WINDOW))
  const size = first === -1 ? 0 : window.length - first + 1
  return Math.max(WINDOW, Math.min(size, MAX_WINDOW))
}

/** Takes one call into the trail. `step` is the number of the response that made it. */
export function follow(trail: Trail, strike: Strike, step: number, limits: LoopLimits): Trail {
  const isNew = !trail.window.some((known) => isSamePair(known, strike))
  const { call, outcome, isPoll, isChange, isTerse } = strike
  const tool = strike.tool.slice(0, MAX_NAME)
  const trace: Trace = { tool, call, outcome, isPoll, isChange, isTerse, step, isNew, isSpent: false }
  return {
    window: withNewest(trail.window, trace, sizeOf(trail.window, step, limits)),
    streak: extended(trail.streak, strike),
    steps: step,
    newsAt: isNew ? step : trail.newsAt,
  }
}

/** Gives an outcome of a call another name. */
export function renameOutcome(trail: Trail, call: Hash, from: Hash | '', to: Hash): Trail {
  const renamed = <T extends Pick<Strike, 'call' | 'outcome'>>(one: T): T =>
    one.call === call && one.outcome === from ? { ...one, outcome: to } : one
  const { window, streak } = trail
  return { ...trail, window: window.map(renamed), streak: streak && renamed(streak) }
}

/**
 * The trail after a loop in it was dealt with: what was counted counts no more. But that a call was made again, whatever
 * came of it, does not make its equal outcomes in a row fewer: a threshold of theirs above its own would never be reached.
 */
export function spend({ window, streak, steps }: Trail, pattern?: Pattern): Trail {
  const same = pattern === 'same_call' ? (streak?.same ?? 0) : 0
  return {
    window: window.map((trace) => (trace.isSpent ? trace : { ...trace, isSpent: true })),
    streak: streak && { ...streak, same, any: 0 },
    steps,
    newsAt: steps,
  }
}

/** The trail that a loop is looked for in, and how much patience there is with it. */
interface Looking extends Trail {
  readonly last: Trace
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

function loopOf(pattern: Pattern, { last, streak }: Looking, found: Pick<Loop, 'count' | 'span'>): Loop {
  const isWaiting = last.isPoll || streak?.isPoll === true
  const { call, tool, isTerse } = last
  return { pattern, calls: [call], tools: [tool], hasNews: false, isWaiting, isTerse, ...found }
}

/** One pair of call and outcome, again and again with nothing between. */
function inARow(looking: Looking): Loop | undefined {
  const { same = 0 } = looking.streak ?? {}
  const loop = loopOf('repetition', looking, { count: same, span: same })
  return same < patience(looking.limits.repetitionThreshold, loop.isWaiting, looking) ? undefined : loop
}

const LAPS = 2

/** Do the newest calls alternate between two? After a warning, laps that it was about are gone on with by one. */
function inTurn(looking: Looking): Loop | undefined {
  const { window, limits, less } = looking
  const [first, second] = window.slice(-2)
  if (!first || !second || isSamePair(first, second)) return undefined
  const isWaiting = first.isPoll || second.isPoll
  const laps = isWaiting ? Math.min(LAPS * limits.pollMultiplier, WINDOW / 2) : LAPS
  const fresh = isWaiting ? laps : laps - less
  const turns = window.slice(-2 * laps)
  const isTurn = turns.every((trace, at) => {
    if (trace.isSpent && at >= turns.length - 2 * fresh) return false
    // Calls of one response are made side by side and not in turn.
    if (turns[at - 1]?.step === trace.step) return false
    const earlier = turns[at - 2]
    return !earlier || isSamePair(earlier, trace)
  })
  if (!isTurn || turns.length < 2 * laps) return undefined
  return {
    pattern: 'ping_pong',
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
function standstill(looking: Looking): Loop | undefined {
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
    pattern: 'cycle',
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
function whateverCameOfIt(looking: Looking): Loop | undefined {
  const { window, streak, limits } = looking
  const { any = 0 } = streak ?? {}
  const loop = loopOf('same_call', looking, { count: any, span: any })
  if (any < patience(limits.sameCallThreshold, loop.isWaiting, { ...looking, less: 0 })) return undefined
  return { ...loop, hasNews: window.slice(1 - any).some(({ isNew }) => isNew) }
}

/**
 * The last equal calls of the window. From one to the next there may be one other that is new, but none that is new and
 * changes something: to look again after that is no repetition. What is waited for between them is waiting.
 */
function inTheWindow(looking: Looking): Loop | undefined {
  const { window, last, streak, limits } = looking
  let isWaiting = last.isPoll || streak?.isPoll === true
  let count = 0
  let hasNews = false
  let isNewBetween = false
  for (let at = window.length - 1; at >= 0; at--) {
    const trace = window[at]
    if (!trace || trace.isSpent) return undefined
    if (isSamePair(trace, last)) {
      count++
      isNewBetween = false
      if (count === patience(limits.repetitionThreshold, isWaiting, looking)) {
        const span = window.length - at
        return { ...loopOf('repetition', looking, { count, span }), hasNews, isWaiting }
      }
    } else if (trace.isNew) {
      if (isNewBetween || trace.isChange) return undefined
      isNewBetween = true
      hasNews = true
    } else if (trace.isPoll) isWaiting = true
  }
  return undefined
}

/**
 * The loop that the newest call completes, if it does. `isWarned`: the model has been warned about one before.
 * `isLast`: its response calls nothing more, so that it is known whether that brought anything new.
 */
export function findLoop(
  trail: Trail,
  limits: LoopLimits,
  isWarned: boolean,
  isLast: boolean,
): Loop | undefined {
  const last = trail.window.at(-1)
  // Nothing goes round where the newest call has not been made before.
  if (!last || (last.isNew && trail.streak?.any === 1)) return undefined
  const looking: Looking = { ...trail, last, limits, less: isWarned ? 1 : 0 }
  return (
    inARow(looking) ??
    inTurn(looking) ??
    (isLast ? standstill(looking) : undefined) ??
    whateverCameOfIt(looking) ??
    inTheWindow(looking)
  )
}
