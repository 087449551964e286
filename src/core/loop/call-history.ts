/**
 * The last tool calls of a run, in which patterns are looked for.
 *
 * Two calls are equal if tool and arguments are equal; if the results are equal too, the second brought nothing new. The
 * best sign of work rather than a loop is a call in between that was new and changed something.
 */
import type { Hash } from '../hash.ts'
import { withNewest } from '../newest.ts'

export interface LoopLimits {
  /** How many equal calls with equal results make a repetition. */
  readonly repetitionThreshold: number
  /** How many responses in a row without anything new make a cycle. */
  readonly standstill: number
  /** How many equal calls in a row get a warning, whatever their results. */
  readonly sameCallThreshold: number
  /** The factor by which calls that wait for something may repeat more often. */
  readonly pollMultiplier: number
}

/** One call that was made, with its result. */
export interface ToolCallRecord {
  readonly tool: string
  readonly call: Hash
  /** Empty if there was no result. */
  readonly resultHash: Hash | ''
  /** The call waits for something, or its result says that work goes on. */
  readonly isPoll: boolean
  /** The call changes something. */
  readonly isChange: boolean
  /** The result is too short to show any progress. */
  readonly isTerse: boolean
}

export interface HistoryEntry extends ToolCallRecord {
  /** Number of its response in the run. */
  readonly step: number
  /** No entry of the window had this call with this result. */
  readonly isNew: boolean
  /** A loop was found that this call is part of: it is not counted again. */
  readonly isHandled: boolean
}

/** How often the newest call was made in a row since the last loop was found; the window does not bound it. */
interface RepeatCount {
  readonly call: Hash
  readonly resultHash: Hash | ''
  readonly isPoll: boolean
  /** How often with this result. */
  readonly same: number
  /** How often with any result. */
  readonly any: number
}

/** The newest calls of a run: plain data of bounded size. */
export interface CallHistory {
  /** Oldest first. */
  readonly window: readonly HistoryEntry[]
  /** Unset before the first call. */
  readonly repeats: RepeatCount | undefined
  /** How many responses were added. */
  readonly steps: number
  /** Number of the newest response that brought something new, or in which a loop was found. */
  readonly newsAt: number
}

export const EMPTY_HISTORY: CallHistory = { window: [], repeats: undefined, steps: 0, newsAt: 0 }

/** Characters that are kept of a tool's name, which is only shown. */
const MAX_NAME = 64

/** True if both have the same call with the same result. */
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

/** How many of the newest calls are compared. */
export const WINDOW = 10
/** The same where responses make many calls side by side. */
const MAX_WINDOW = 64

/** Returns how many calls are kept: at least as many as the newest responses made that could make a repetition. */
function sizeOf(window: CallHistory['window'], step: number, { repetitionThreshold }: LoopLimits): number {
  if (window.length < WINDOW) return WINDOW
  const first = window.findIndex((entry) => entry.step > step - Math.min(repetitionThreshold, WINDOW))
  const size = first === -1 ? 0 : window.length - first + 1
  return Math.max(WINDOW, Math.min(size, MAX_WINDOW))
}

/** Returns the history with one more call. `step`: the number of its response. */
export function addToHistory(
  history: CallHistory,
  record: ToolCallRecord,
  step: number,
  limits: LoopLimits,
): CallHistory {
  const isNew = !history.window.some((entry) => isSamePair(entry, record))
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

/** Returns the history in which the result `from` of `call` has the hash `to`. */
export function renameResult(history: CallHistory, call: Hash, from: Hash | '', to: Hash): CallHistory {
  const renamed = <T extends Pick<ToolCallRecord, 'call' | 'resultHash'>>(record: T): T =>
    record.call === call && record.resultHash === from ? { ...record, resultHash: to } : record
  const { window, repeats } = history
  return { ...history, window: window.map(renamed), repeats: repeats && renamed(repeats) }
}

/**
 * Returns the history after a loop in it was handled: its calls are not counted again. If the pattern may not block,
 * equal results in a row still count, because a threshold above the pattern's own would never be reached otherwise.
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
