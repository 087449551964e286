/**
 * The last tool calls of a run, in which patterns are looked for.
 *
 * Two calls are equal if tool and arguments are equal. Their results are compared twice:
 * - They are certainly equal if they are so letter by letter, apart from what a harness adds to every result.
 * - They are perhaps equal if they are so once times, ids and the like are masked: such a value may be all that the call
 *   is there to bring.
 */
import type { Hash } from '../hash.ts'
import { withNewest } from '../newest.ts'
import type { LoopLimits } from './policy.ts'

/** One call that was made, with its result. */
export interface ToolCallRecord {
  readonly tool: string
  readonly call: Hash
  /** Equal for results that are certainly equal; empty for a result that is missing or unknown, which equals no other. */
  readonly resultHash: Hash | ''
  /** Equal for results that are perhaps equal. */
  readonly maskedHash: Hash | ''
  /** The call waits for something, or its result says that work goes on. */
  readonly isPoll: boolean
  /** The call changes something. */
  readonly isChange: boolean
  /** The result is too short to show any progress. */
  readonly isTerse: boolean
  /** It stands for all calls of a response, which are too many to be compared one by one. */
  readonly isBatch: boolean
}

export interface HistoryEntry extends ToolCallRecord {
  /** Number of its response in the run. */
  readonly step: number
  /** No entry of the window had this call with a result that is perhaps equal. */
  readonly isNew: boolean
  /** No entry of the window had this call with a result that is certainly equal. */
  readonly mayBeNew: boolean
  /** A loop was found that this call is part of: it is not counted again. */
  readonly isHandled: boolean
}

/** How often the newest call was made in a row since the last loop was found; the window does not bound it. */
interface RepeatCount extends Pick<HistoryEntry, 'call' | 'resultHash' | 'maskedHash' | 'isPoll' | 'step'> {
  /** How often with a result that is certainly equal. */
  readonly equal: number
  /** How often with a result that is perhaps equal. */
  readonly similar: number
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
  /** The same for something that may be new. */
  readonly mayBeNewsAt: number
}

export const EMPTY_HISTORY: CallHistory = {
  window: [],
  repeats: undefined,
  steps: 0,
  newsAt: 0,
  mayBeNewsAt: 0,
}

/** Characters that are kept of a tool's name, which is only shown. */
const MAX_NAME = 64

/** How many of the newest calls are compared. */
export const WINDOW = 10
/** The same where responses make many calls side by side. */
const MAX_WINDOW = 64
/** The calls of a larger response count as one, all together: three equal responses would not fit into the window. */
export const MAX_CALLS = 31

type Compared = Pick<ToolCallRecord, 'call' | 'resultHash' | 'maskedHash'>

/** True if both are the same call with results that are certainly equal. */
export function isEqualPair(a: Compared, b: Compared): boolean {
  return a.call === b.call && a.resultHash === b.resultHash && a.resultHash !== ''
}

/** True if both are the same call with results that are perhaps equal. */
export function isSimilarPair(a: Compared, b: Compared): boolean {
  return a.call === b.call && a.maskedHash === b.maskedHash
}

function extended(before: RepeatCount | undefined, record: ToolCallRecord, step: number): RepeatCount {
  const { call, resultHash, maskedHash, isPoll } = record
  const isRow = before?.call === call
  return {
    call,
    resultHash,
    maskedHash,
    isPoll: isPoll || (isRow && before.isPoll),
    step,
    equal: before && isEqualPair(before, record) ? before.equal + 1 : 1,
    similar: before && isSimilarPair(before, record) ? before.similar + 1 : 1,
    any: isRow ? before.any + 1 : 1,
  }
}

/** Returns how many calls are kept: at least as many as the newest responses made that could make a repetition. */
function sizeOf(window: CallHistory['window'], step: number, { repetitionThreshold }: LoopLimits): number {
  if (window.length < WINDOW) return WINDOW
  const first = window.findIndex((entry) => entry.step > step - Math.min(repetitionThreshold, WINDOW))
  const size = first === -1 ? 0 : window.length - first + 1
  return Math.max(WINDOW, Math.min(size, MAX_WINDOW))
}

/** Returns the history with one more call. `step`: the number of its response. Spelled out: a spread takes ten times as long. */
export function addToHistory(
  { window, repeats, newsAt, mayBeNewsAt }: CallHistory,
  record: ToolCallRecord,
  step: number,
  limits: LoopLimits,
): CallHistory {
  const isNew = !window.some((entry) => isSimilarPair(entry, record))
  const mayBeNew = isNew || !window.some((entry) => isEqualPair(entry, record))
  const entry: HistoryEntry = {
    tool: record.tool.slice(0, MAX_NAME),
    call: record.call,
    resultHash: record.resultHash,
    maskedHash: record.maskedHash,
    isPoll: record.isPoll,
    isChange: record.isChange,
    isTerse: record.isTerse,
    isBatch: record.isBatch,
    step,
    isNew,
    mayBeNew,
    isHandled: false,
  }
  return {
    window: withNewest(window, entry, sizeOf(window, step, limits)),
    repeats: extended(repeats, record, step),
    steps: step,
    newsAt: isNew ? step : newsAt,
    mayBeNewsAt: mayBeNew ? step : mayBeNewsAt,
  }
}

/** Returns the history in which the results `from` of `call` have other hashes. */
export function renameResult(
  history: CallHistory,
  call: Hash,
  from: Hash,
  to: Pick<ToolCallRecord, 'resultHash' | 'maskedHash'>,
): CallHistory {
  const renamed = <T extends Compared>(record: T): T =>
    record.call === call && record.resultHash === from ? { ...record, ...to } : record
  const { window, repeats } = history
  return { ...history, window: window.map(renamed), repeats: repeats && renamed(repeats) }
}

/**
 * Returns the history after a loop in it was handled: its calls are not counted again. If the pattern may not block,
 * equal results in a row still count, because a threshold above the pattern's own would never be reached otherwise.
 */
export function markHandled({ window, repeats, steps }: CallHistory, mayBlock = true): CallHistory {
  return {
    window: window.map((entry) => (entry.isHandled ? entry : { ...entry, isHandled: true })),
    repeats: repeats && { ...repeats, ...(mayBlock ? { equal: 0, similar: 0 } : {}), any: 0 },
    steps,
    newsAt: steps,
    mayBeNewsAt: steps,
  }
}

/** A run stagnates after so many calls without anything new. */
const STAGNATION_CALLS = 5

/** True if none of the last calls, with its result, was new. */
export function isStagnating({ window }: CallHistory): boolean {
  return window.length >= STAGNATION_CALLS && window.slice(-STAGNATION_CALLS).every(({ isNew }) => !isNew)
}
