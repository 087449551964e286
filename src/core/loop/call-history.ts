/**
 * The last tool calls of a run, in which patterns are looked for.
 *
 * Two calls are the same where tool and arguments are, and nothing new has come of it where the outcome is the same
 * as well. What tells work from loops best is a different call in between that was new and changed something.
 */
import type { Hash } from '../hash.ts'
import { withNewest } from '../newest.ts'

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

export interface Trace extends Strike {
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

/** Names are only shown. */
const MAX_NAME = 64

export const isSamePair = (a: Strike | Streak, b: Strike | Streak) =>
  a.call === b.call && a.outcome === b.outcome

function extended(streak: Streak | undefined, { call, outcome, isPoll }: Strike): Streak {
  if (streak?.call !== call) return { call, outcome, isPoll, same: 1, any: 1 }
  const same = streak.outcome === outcome ? streak.same + 1 : 1
  return { call, outcome, isPoll: isPoll || streak.isPoll, same, any: streak.any + 1 }
}

/** How many of the newest calls are compared, */
export const WINDOW = 10
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
 * The trail after a loop in it was dealt with: what was counted counts no more. A pattern that may not block leaves the
 * equal outcomes in a row counted: a threshold of theirs above its own would never be reached.
 */
export function spend({ window, streak, steps }: Trail, mayBlock = true): Trail {
  const same = mayBlock ? 0 : (streak?.same ?? 0)
  return {
    window: window.map((trace) => (trace.isSpent ? trace : { ...trace, isSpent: true })),
    streak: streak && { ...streak, same, any: 0 },
    steps,
    newsAt: steps,
  }
}
