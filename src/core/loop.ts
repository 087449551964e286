/**
 * Whether a run goes round in circles: a trail of its last tool calls, and the patterns to be seen in it.
 *
 * Two calls are the same where tool and arguments are, and nothing new has come of it where the outcome is the same
 * as well. What tells work from loops best is a different call in between that was new and changed something.
 */
import type { Hash } from './hash.ts'
import { withNewest } from './newest.ts'

/**
 * `repetition`: one call, with one outcome. `ping_pong`: two in turn. `cycle`: three or four in turn.
 * `same_call`: one call, whatever came of it.
 */
export type Pattern = 'repetition' | 'ping_pong' | 'cycle' | 'same_call'

export interface LoopLimits {
  /** How many of the newest calls are compared. */
  readonly windowSize: number
  /** From how many equal calls with equal outcomes on it is a repetition. */
  readonly repetitionThreshold: number
  /** From how many equal calls in a row on, whatever their outcomes. */
  readonly sameCallThreshold: number
  /** Calls that look like polling may be repeated so many times as often. */
  readonly pollMultiplier: number
}

/** One call that was made and what came of it. */
export interface Strike {
  readonly tool: string
  readonly call: Hash
  /** Empty where there was no result. */
  readonly outcome: Hash | ''
  /** It asks how something is going. */
  readonly isPoll: boolean
  /** It changes something. */
  readonly isChange: boolean
  /** Its result says little: that it was done, and not what is to be seen now. */
  readonly isBrief?: boolean
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
}

export const EMPTY_TRAIL: Trail = { window: [], streak: undefined, steps: 0 }

/** A loop that is there. */
export interface Loop {
  readonly pattern: Pattern
  /** The calls it is made of, in order, and their tools. */
  readonly calls: readonly [Hash, ...Hash[]]
  readonly tools: readonly [string, ...string[]]
  /** How often each of them was made. */
  readonly count: number
  /** How many calls there were from the first of them to the last. */
  readonly span: number
}

/** Names are only shown. */
const MAX_NAME = 64

const isSamePair = (a: Strike | Streak, b: Strike | Streak) => a.call === b.call && a.outcome === b.outcome

function extended(streak: Streak | undefined, { call, outcome, isPoll }: Strike): Streak {
  if (streak?.call !== call) return { call, outcome, isPoll, same: 1, any: 1 }
  const same = streak.outcome === outcome ? streak.same + 1 : 1
  return { call, outcome, isPoll: isPoll || streak.isPoll, same, any: streak.any + 1 }
}

/** However many calls responses make, no more than this is looked at. */
const MAX_WINDOW = 64

/**
 * How many of the newest calls are compared. Calls side by side may be more than a window holds: of those, as many
 * responses as make a repetition.
 */
function sizeOf(
  window: Trail['window'],
  step: number,
  { windowSize, repetitionThreshold }: LoopLimits,
): number {
  if (window.length < windowSize) return windowSize
  const responses = Math.min(repetitionThreshold, windowSize)
  const first = window.findIndex((trace) => trace.step > step - responses)
  const size = first === -1 ? 0 : window.length - first + 1
  return Math.max(windowSize, Math.min(size, MAX_WINDOW))
}

/** Takes one call into the trail. `step` is the number of the response that made it. */
export function follow(trail: Trail, strike: Strike, step: number, limits: LoopLimits): Trail {
  const isNew = !trail.window.some((known) => isSamePair(known, strike))
  const { call, outcome, isPoll, isChange, isBrief = false } = strike
  const tool = strike.tool.slice(0, MAX_NAME)
  const trace: Trace = { tool, call, outcome, isPoll, isChange, isBrief, step, isNew, isSpent: false }
  return {
    window: withNewest(trail.window, trace, sizeOf(trail.window, step, limits)),
    streak: extended(trail.streak, strike),
    steps: step,
  }
}

/** Was this call among the newest, or made last? */
export function isInTrail({ window, streak }: Trail, call: Hash): boolean {
  if (streak?.call === call) return true
  for (const trace of window) if (trace.call === call) return true
  return false
}

/** The trail whose newest call has turned out to ask how something is going. */
export function withPoll({ window, streak, steps }: Trail): Trail {
  return { window, streak: streak && { ...streak, isPoll: true }, steps }
}

/** Gives an outcome of a call another name. */
export function renameOutcome(trail: Trail, call: Hash, from: Hash | '', to: Hash): Trail {
  const renamed = <T extends Pick<Strike, 'call' | 'outcome'>>(one: T): T =>
    one.call === call && one.outcome === from ? { ...one, outcome: to } : one
  const { window, streak, steps } = trail
  return { window: window.map(renamed), streak: streak && renamed(streak), steps }
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
  }
}

/** A call whose outcomes have kept changing is watching something, though it has come to rest now. */
function hasKeptChanging(window: Trail['window'], call: Hash): boolean {
  const outcomes = window.filter((trace) => trace.call === call).map(({ outcome }) => outcome)
  return outcomes.filter((outcome, at) => at > 0 && outcome !== outcomes[at - 1]).length >= 2
}

function inARow({ window, streak }: Trail, threshold: number): Loop | undefined {
  const last = window.at(-1)
  if (!last || !streak || streak.same < threshold) return undefined
  const { same } = streak
  return { pattern: 'repetition', calls: [last.call], tools: [last.tool], count: same, span: same }
}

/** Was a call of the window made before in it? One that is new had another outcome then. */
function wasMadeBefore(window: Trail['window'], at: number): boolean {
  return window.findIndex(({ call }) => call === window[at]?.call) < at
}

/**
 * The last `threshold` equal calls of the window. From one to the next there may be one other that is new, but none
 * that is new and changes something: to look again after that is no repetition. Nor is what may well be a change, by its
 * words or its brief result, where each time something new is seen after it, and by a call that saw something else before:
 * scrolling, say. What is waited for between is polling.
 */
function inTheWindow({ window }: Trail, threshold: number, pollThreshold: number): Loop | undefined {
  const last = window.at(-1)
  if (!last) return undefined
  // How many of them were followed by something new, and whether it was another view of the same.
  let followed = 0
  let hasEffect = false
  let needed = threshold
  let count = 0
  let isNewBetween = false
  for (let at = window.length - 1; at >= 0; at--) {
    const trace = window[at]
    if (!trace || trace.isSpent) return undefined
    if (isSamePair(trace, last)) {
      count++
      if (isNewBetween) followed++
      isNewBetween = false
      if (count === needed) {
        const mayBeChange = last.isChange || last.isBrief === true
        if (mayBeChange && hasEffect && followed === count - 1) return undefined
        return {
          pattern: 'repetition',
          calls: [last.call],
          tools: [last.tool],
          count,
          span: window.length - at,
        }
      }
    } else if (trace.isNew) {
      if (isNewBetween || trace.isChange) return undefined
      isNewBetween = true
      hasEffect ||= wasMadeBefore(window, at)
    } else if (trace.isPoll) needed = Math.max(needed, pollThreshold)
  }
  return undefined
}

/** Do the newest calls go round in laps of `period`? */
function inTurn(
  { window }: Trail,
  period: number,
  { windowSize, pollMultiplier }: LoopLimits,
): Loop | undefined {
  const last = window.at(-1)
  const previous = window.at(-1 - period)
  if (!last || !previous || !isSamePair(last, previous)) return undefined
  const lap = window.slice(-period)
  const [first, ...others] = lap
  if (!first || lap.length < period || others.every((trace) => isSamePair(trace, first))) return undefined
  const isPoll = lap.some((trace) => trace.isPoll || hasKeptChanging(window, trace.call))
  const laps = Math.max(2, Math.min(isPoll ? 2 * pollMultiplier : 2, Math.floor(windowSize / period)))
  const turns = window.slice(-period * laps)
  if (turns.length < period * laps) return undefined
  const isTurn = turns.every((trace, at) => {
    const before = turns[at - 1]
    // Calls of one response are made side by side and not in turn.
    if (trace.isSpent || before?.step === trace.step) return false
    const earlier = turns[at - period]
    return !earlier || isSamePair(earlier, trace)
  })
  if (!isTurn) return undefined
  return {
    pattern: period === 2 ? 'ping_pong' : 'cycle',
    calls: [first.call, ...others.map(({ call }) => call)],
    tools: [first.tool, ...others.map(({ tool }) => tool)],
    count: laps,
    span: turns.length,
  }
}

function whateverCameOfIt({ window, streak }: Trail, threshold: number): Loop | undefined {
  const last = window.at(-1)
  if (!last || !streak || streak.any < threshold) return undefined
  const { any } = streak
  return { pattern: 'same_call', calls: [last.call], tools: [last.tool], count: any, span: any }
}

/** The loop that the newest call completes, if it does. */
export function findLoop(trail: Trail, limits: LoopLimits): Loop | undefined {
  const last = trail.window.at(-1)
  // Nothing goes round where the newest call has not been made before.
  if (!last || (last.isNew && trail.streak?.any === 1)) return undefined
  const asPoll = (threshold: number, isPoll: boolean) => threshold * (isPoll ? limits.pollMultiplier : 1)
  const isPoll = last.isPoll || trail.streak?.isPoll === true
  const threshold = asPoll(limits.repetitionThreshold, isPoll || hasKeptChanging(trail.window, last.call))
  return (
    inARow(trail, threshold) ??
    inTurn(trail, 2, limits) ??
    inTurn(trail, 3, limits) ??
    inTurn(trail, 4, limits) ??
    inTheWindow(trail, threshold, asPoll(limits.repetitionThreshold, true)) ??
    whateverCameOfIt(trail, asPoll(limits.sameCallThreshold, isPoll))
  )
}
