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
export interface ToolCallRecord {
  readonly tool: string
  readonly call: Hash
  /** Empty where there was no result. */
  readonly resultHash: Hash | ''
  /** It waits for something, or its result says that work goes on. */
  readonly isPoll: boolean
  /** It changes something. */
  readonly isChange: boolean
  /** Its result is too short to show any progress. */
  readonly isTerse: boolean
}

export interface HistoryEntry extends ToolCallRecord {
  /** Number of the response it was in. */
  readonly step: number
  /** Neither a call nor an outcome that the window knew. */
  readonly isNew: boolean
  /** Part of a loop that was found: known, but not counted again. */
  readonly isHandled: boolean
}

/** How often the newest call has been made in a row since a loop was found, window or not. */
interface RepeatCount {
  readonly call: Hash
  readonly resultHash: Hash | ''
  readonly isPoll: boolean
  /** With this outcome. */
  readonly same: number
  /** With any. */
  readonly any: number
}

/** Plain data of bounded size. */
export interface CallHistory {
  /** Oldest first. */
  readonly window: readonly HistoryEntry[]
  /** Unset before the first. */
  readonly repeats: RepeatCount | undefined
  /** How many responses it has seen. */
  readonly steps: number
  /** The newest of them that brought something new, or that a loop was found in. */
  readonly newsAt: number
}

export const EMPTY_HISTORY: CallHistory = { window: [], repeats: undefined, steps: 0, newsAt: 0 }

/** Names are only shown. */
const MAX_NAME = 64

export const isSamePair = (a: ToolCallRecord | RepeatCount, b: ToolCallRecord | RepeatCount) =>
  a.call === b.call && a.resultHash === b.resultHash

function extended(
  repeats: RepeatCount | undefined,
  { call, resultHash, isPoll }: ToolCallRecord,
): RepeatCount {
  if (repeats?.call !== call) return { call, resultHash, isPoll, same: 1, any: 1 }
  const same = repeats.resultHash === resultHash ? repeats.same + 1 : 1
  return { call, resultHash, isPoll: isPoll || repeats.isPoll, same, any: repeats.any + 1 }
}

/** How many of the newest calls are compared, */
export const WINDOW = 10
/** and however many calls responses make, no more than this. */
const MAX_WINDOW = 64

/**
 * How many calls are kept. Calls side by side may be more than a window holds: of those, as many responses as make a
 * repetition.
 */
function sizeOf(window: CallHistory['window'], step: number, { repetitionThreshold }: LoopLimits): number {
  if (window.length < WINDOW) return WINDOW
  const first = window.findIndex((entry) => entry.step > step - Math.min(repetitionThreshold, WINDOW))
  const size = first === -1 ? 0 : window.length - first + 1
  return Math.max(WINDOW, Math.min(size, MAX_WINDOW))
}

/** Takes one call into the trail. `step` is the number of the response that made it. */
export function addToHistory(
  history: CallHistory,
  record: ToolCallRecord,
  step: number,
  limits: LoopLimits,
): CallHistory {
  const isNew = !history.window.some((known) => isSamePair(known, record))
  const { call, resultHash, isPoll, isChange, isTerse } = record
  const tool = record.tool.slice(0, MAX_NAME)
  const entry: HistoryEntry = {
    tool,
    call,
    resultHash,
    isPoll,
    isChange,
    isTerse,
    step,
    isNew,
    isHandled: false,
  }
  return {
    window: withNewest(history.window, entry, sizeOf(history.window, step, limits)),
    repeats: extended(history.repeats, record),
    steps: step,
    newsAt: isNew ? step : history.newsAt,
  }
}

/** Gives an outcome of a call another name. */
export function renameResult(history: CallHistory, call: Hash, from: Hash | '', to: Hash): CallHistory {
  const renamed = <T extends Pick<ToolCallRecord, 'call' | 'resultHash'>>(one: T): T =>
    one.call === call && one.resultHash === from ? { ...one, resultHash: to } : one
  const { window, repeats } = history
  return { ...history, window: window.map(renamed), repeats: repeats && renamed(repeats) }
}

/**
 * The trail after a loop in it was dealt with: what was counted counts no more. A pattern that may not block leaves the
 * equal outcomes in a row counted: a threshold of theirs above its own would never be reached.
 */
export function markHandled({ window, repeats, steps }: CallHistory, mayBlock = true): CallHistory {
  const same = mayBlock ? 0 : (repeats?.same ?? 0)
  return {
    window: window.map((entry) => (entry.isHandled ? entry : { ...entry, isHandled: true })),
    repeats: repeats && { ...repeats, same, any: 0 },
    steps,
    newsAt: steps,
  }
}
