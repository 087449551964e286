/**
 * The last tool calls of a run, in which patterns are looked for.
 *
 * Two calls are equal if tool and arguments are equal. Their results are compared twice:
 * - They are certainly equal if they are so letter by letter, apart from what a harness adds to every result.
 * - They are perhaps equal if they are so once times, ids and the like are masked: such a value may be all that the
 *   call is there to bring.
 */
import type { Hash } from '../hash.ts'

/** One call that was made, with its result. */
export interface ToolCallRecord {
  readonly tool: string
  readonly call: Hash
  /** Equal for results that are certainly equal; empty for a missing or unknown result, which equals no other. */
  readonly resultHash: Hash | ''
  /** Equal for results that are perhaps equal; unset where it is the same hash. */
  readonly maskedHash?: Hash | '' | undefined
  /** The call waits for something, or its result says that work goes on. */
  readonly isPoll?: boolean | undefined
  /** The call changes something. */
  readonly isChange?: boolean | undefined
  /** The result is too short to show any progress. */
  readonly isTerse?: boolean | undefined
}

/** A call in the window. What is false is unset: a store keeps the window as text. */
export interface HistoryEntry extends ToolCallRecord {
  /** Number of its response in the run. */
  readonly step: number
  /** No entry of the window had this call with a result that is perhaps equal. */
  readonly isNew?: true | undefined
  /** No entry of the window had this call with a result that is certainly equal. */
  readonly mayBeNew?: true | undefined
}

/** The newest calls of a run, oldest first: plain data of bounded size. */
export interface CallHistory {
  readonly window: readonly HistoryEntry[]
  /** How often the newest call was made in a row since the last loop was found; the window does not bound it. */
  readonly repeats: {
    /** With a result that is certainly equal, perhaps equal, and any. */
    readonly equal: number
    readonly similar: number
    readonly any: number
    readonly isPoll: boolean
  }
  /** How many responses were added. */
  readonly steps: number
  /** Numbers of the newest responses that brought something new, or something that may be new. */
  readonly newsAt: number
  readonly mayBeNewsAt: number
  /** Number of the newest response in which a loop was found: calls up to it are not counted again. */
  readonly handledAt: number
}

export const EMPTY_HISTORY: CallHistory = {
  window: [],
  repeats: { equal: 0, similar: 0, any: 0, isPoll: false },
  steps: 0,
  newsAt: 0,
  mayBeNewsAt: 0,
  handledAt: 0,
}

/** Characters that are kept of a tool's name, which is only shown. */
const MAX_NAME = 64
/** How many of the newest calls are compared; up to `MAX_WINDOW` where responses make many calls side by side. */
export const WINDOW = 10
const MAX_WINDOW = 64
/** The calls of a larger response count as one, all together: three equal responses would not fit into the window. */
export const MAX_CALLS = 31

/** True if both are the same call with results that are equal: certainly so, or perhaps. */
export function isSamePair(a: ToolCallRecord, b: ToolCallRecord, isCertain: boolean): boolean {
  if (a.call !== b.call) return false
  if (isCertain) return a.resultHash === b.resultHash && a.resultHash !== ''
  return (a.maskedHash ?? a.resultHash) === (b.maskedHash ?? b.resultHash)
}

/**
 * True if all calls of a full window are the same one and its results change again and again, in no fixed order: it
 * reads a value that changes by itself.
 */
function readsChangingValue(calls: readonly ToolCallRecord[]): boolean {
  const [first] = calls
  if (calls.length < WINDOW || !calls.every(({ call }) => call === first?.call)) return false
  const results = calls.map(({ resultHash, maskedHash = resultHash }) => maskedHash)
  if (results.filter((result, at) => at > 0 && result !== results[at - 1]).length < 2) return false
  for (let period = 2; 2 * period <= WINDOW; period++)
    if (results.every((result, at) => at < period || result === results[at - period])) return false
  return true
}

/**
 * Returns the history with one more call. `step`: the number of its response. It keeps the newest calls, and all of the
 * newest `responses`, which could make a repetition with it. A call that reads a changing value waits.
 */
export function addToHistory(history: CallHistory, made: ToolCallRecord, step: number, responses: number): CallHistory {
  const { window, repeats } = history
  const { tool, call, resultHash, maskedHash, isChange, isTerse } = made
  const isPoll = made.isPoll || readsChangingValue([...window.slice(1 - WINDOW), made])
  const isNew = !window.some((entry) => isSamePair(entry, made, false))
  const mayBeNew = isNew || !window.some((entry) => isSamePair(entry, made, true))
  const last = window.at(-1)
  const isRow = last?.call === call
  const entry: HistoryEntry = {
    tool: tool.slice(0, MAX_NAME),
    call,
    resultHash,
    maskedHash: maskedHash === resultHash ? undefined : maskedHash,
    isPoll: isPoll || undefined,
    isChange: isChange || undefined,
    isTerse: isTerse || undefined,
    step,
    isNew: isNew || undefined,
    mayBeNew: mayBeNew || undefined,
  }
  const oldest = step - Math.min(responses, WINDOW) - 1
  const kept = window.filter((one, at) => at > window.length - WINDOW || one.step > oldest)
  return {
    window: [...kept.slice(1 - MAX_WINDOW), entry],
    repeats: {
      equal: last && isSamePair(last, made, true) ? repeats.equal + 1 : 1,
      similar: last && isSamePair(last, made, false) ? repeats.similar + 1 : 1,
      any: isRow ? repeats.any + 1 : 1,
      isPoll: isPoll || (isRow && repeats.isPoll),
    },
    steps: step,
    newsAt: isNew ? step : history.newsAt,
    mayBeNewsAt: mayBeNew ? step : history.mayBeNewsAt,
    handledAt: history.handledAt,
  }
}

/** True if none of the last five calls, with its result, was new. */
export function isStagnating({ window }: CallHistory): boolean {
  const newest = window.slice(-5)
  return newest.length === 5 && !newest.some(({ isNew }) => isNew)
}
