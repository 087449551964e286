/** The patterns of loops: how each is found, what its notice says, whether its calls may be blocked. */

import type { Hash } from '../hash.ts'
import { namesOf } from '../names.ts'
import { matchesAny } from '../text/glob.ts'
import { type CallHistory, type HistoryEntry, isSamePair, WINDOW } from './call-history.ts'

/** `observe` only finds loops, `warn` warns the model, `enforce` also blocks calls. */
export type LoopMode = 'observe' | 'warn' | 'enforce'

/** `default` masks what is volatile in results and sorts their lines; `none` compares results letter by letter. */
export type MaskMode = 'default' | 'none'

export interface LoopPolicy {
  readonly enabled: boolean
  readonly mode: LoopMode
  /** How many equal calls with equal results make a repetition. */
  readonly repetitionThreshold: number
  /** How many responses in a row without anything new make a cycle. */
  readonly standstill: number
  /** How many equal calls in a row get a warning, whatever their results. */
  readonly sameCallAnyResult: number
  /** The factor by which calls that wait for something may repeat more often. */
  readonly pollMultiplier: number
  /** How many warnings about a loop the model may ignore before its calls are blocked. */
  readonly maxWarningsBeforeBlock: number
  /** A run ends when so many of its responses had calls that were to be blocked. */
  readonly maxBlocks: number
  /** Globs of tools whose calls do not count. */
  readonly exemptTools: readonly string[]
  readonly volatile: MaskMode
}

/** Returns the loop guard's policy with the mode that an operator has set, if any. */
export function inMode(policy: LoopPolicy, mode: LoopMode | undefined): LoopPolicy {
  return mode === undefined || mode === policy.mode ? policy : { ...policy, mode }
}

/** True if the calls of a tool do not count. */
export function isExempt(tool: string, { exemptTools }: LoopPolicy): boolean {
  return matchesAny(exemptTools, tool)
}

/** A loop as its pattern finds it. */
interface FoundLoop {
  /** Hashes of its different calls, in order. */
  readonly calls: readonly [Hash, ...Hash[]]
  /** How often each call was made; for a cycle, how many responses brought nothing new. */
  readonly count: number
  /** The number of calls from the first to the last of the loop. */
  readonly span: number
  /** Something new came in between, or may have come: the loop may be work. */
  readonly hasNews: boolean
  readonly isWaiting: boolean
}

interface SearchContext extends CallHistory {
  readonly last: HistoryEntry
  readonly limits: LoopPolicy
  /** By how many repetitions the thresholds are lower: 1 after a warning, else 0. */
  readonly less: number
}

/**
 * Returns the loop that the newest call completes; `undefined` if it completes none. `isCertain`: results are compared
 * for certain equality; if false, results that are perhaps equal are equal.
 */
type Find = (context: SearchContext, isCertain: boolean) => FoundLoop | undefined

/** Returns how often is too often: more for a loop that waits, `less`, but at least 2, for another. */
function patience(threshold: number, isWaiting: boolean, { limits, less }: Pick<SearchContext, 'limits' | 'less'>) {
  return isWaiting ? threshold * limits.pollMultiplier : Math.max(2, threshold - less)
}

/** Equal calls and results in a row, or in the window with one new call between that changes nothing. */
const equalCalls: Find = (context, isCertain) => {
  const { window, last, repeats, limits, handledAt } = context
  const calls: FoundLoop['calls'] = [last.call]
  let isWaiting = repeats.isPoll
  let count = isCertain ? repeats.equal : repeats.similar
  if (count >= patience(limits.repetitionThreshold, isWaiting, context))
    return { calls, count, span: count, hasNews: false, isWaiting }
  count = 0
  let hasNews = false
  let isNewBetween = false
  // New calls in the response of the oldest stand beside it, unless such may come with each of the calls.
  let beside = 0
  let step = last.step
  for (const [at, entry] of [...window.entries()].reverse()) {
    if (entry.step <= handledAt) return undefined
    const isSame = isSamePair(entry, last, isCertain)
    const isOldest = isSame && count + 1 === patience(limits.repetitionThreshold, isWaiting, context)
    if (entry.step < step || (isSame && (!isOldest || count < 2))) {
      hasNews ||= beside > 0
      if (beside > (isNewBetween ? 0 : 1)) return undefined
      isNewBetween ||= beside > 0
      beside = 0
      step = entry.step
    }
    if (isOldest) return { calls, count: count + 1, span: window.length - at, hasNews, isWaiting }
    if (isSame) {
      count++
      isNewBetween = false
      continue
    }
    if (isCertain ? entry.mayBeNew : entry.isNew) {
      if (entry.isChange) return undefined
      beside++
    } else if (entry.isPoll) isWaiting = true
  }
  return undefined
}

const LAPS = 2

/** Two calls in turn (ABAB). After a warning, one new lap is enough. */
const twoInTurn: Find = ({ window, limits, less, handledAt }, isCertain) => {
  const [first, second] = window.slice(-2)
  if (!first || !second || isSamePair(first, second, isCertain)) return undefined
  const isWaiting = first.isPoll === true || second.isPoll === true
  const laps = isWaiting ? Math.min(LAPS * limits.pollMultiplier, WINDOW / 2) : LAPS
  const fresh = isWaiting ? laps : laps - less
  const turns = window.slice(-2 * laps)
  if (turns.length < 2 * laps) return undefined
  for (const [at, entry] of turns.entries()) {
    if (entry.step <= handledAt && at >= turns.length - 2 * fresh) return undefined
    // Calls of one response are made side by side, not in turn.
    if (turns[at - 1]?.step === entry.step) return undefined
    const earlier = turns[at - 2]
    if (earlier && !isSamePair(earlier, entry, isCertain)) return undefined
  }
  return { calls: [first.call, second.call], count: laps, span: turns.length, hasNews: false, isWaiting }
}

/** Responses in a row whose calls and results all occurred before. */
const standstill: Find = (context, isCertain) => {
  const { window, steps, limits, handledAt } = context
  const since = Math.max(handledAt, isCertain ? context.mayBeNewsAt : context.newsAt)
  const calls = new Set<Hash>()
  let span = 0
  let isWaiting = false
  for (const { step, call, isPoll } of window) {
    if (step <= since) continue
    // In the order in which each was made last.
    calls.delete(call)
    calls.add(call)
    span++
    isWaiting ||= isPoll === true
  }
  const count = steps - since
  const [oldest, ...others] = calls
  if (!oldest || count < patience(limits.standstill, isWaiting, context)) return undefined
  return { calls: [oldest, ...others], count, span, hasNews: false, isWaiting }
}

/** One call in a row, whatever its results. A warning about another loop does not lower its threshold. */
const sameCallInARow: Find = ({ window, repeats, limits, last }) => {
  const { any: count, isPoll: isWaiting } = repeats
  if (count < patience(limits.sameCallAnyResult, isWaiting, { limits, less: 0 })) return undefined
  const hasNews = window.slice(1 - count).some(({ mayBeNew }) => mayBeNew)
  return { calls: [last.call], count, span: count, hasNews, isWaiting }
}

const CHANGE = 'Try a different approach.'

/** The name of a pattern, as in metrics and headers. */
export type Pattern = 'ping_pong' | 'cycle' | 'repetition' | 'same_call'

interface PatternRow {
  readonly find: Find
  /** The pattern counts responses, so it is looked for only at the last call of a response. */
  readonly isOfResponses?: true
  /**
   * The notice after `REPEATING`, without the names of the tools: `{count}` and `{span}` stand for those of the loop.
   */
  readonly notice: string
  /** The same if there were other calls in between. */
  readonly noticeBetween?: string
  /** Its calls are not blocked if the model ignores the warnings, and the first warning already advises to wait. */
  readonly onlyWarns?: true
  /** How many different calls a repetition of it has, if that is always the same and more than one. */
  readonly span?: number
}

/**
 * The patterns; of two loops of one length the first counts. A new one is a name, a row, and one in `docs/loops.md`.
 */
export const PATTERNS: Readonly<Record<Pattern, PatternRow>> = {
  ping_pong: {
    find: twoInTurn,
    notice: `s. The last {span} tool calls alternated between the same two, with the same results. ${CHANGE}`,
    span: 2,
  },
  cycle: {
    find: standstill,
    isOfResponses: true,
    notice: `s. The last {count} responses made only tool calls that were made before, with the same results. ${CHANGE}`,
  },
  repetition: {
    find: equalCalls,
    notice: `. The last {count} tool calls were identical. ${CHANGE}`,
    noticeBetween: `. {count} of the last {span} tool calls were identical, with identical results. ${CHANGE}`,
  },
  same_call: {
    find: sameCallInARow,
    notice: '. The last {count} tool calls were identical, though their results may differ.',
    onlyWarns: true,
  },
}

export const NAMES = namesOf(PATTERNS)

export interface Loop extends FoundLoop {
  readonly pattern: Pattern
}

/**
 * Returns the loop that the newest call completes: rather a certain one, one without news, the longest. `isWarned`:
 * after a warning; `isLast`: it is the last call of its response; `among`: the patterns that are looked for.
 */
export function findLoop(history: CallHistory, limits: LoopPolicy, isWarned: boolean, isLast: boolean, among = NAMES) {
  const last = history.window.at(-1)
  // A call that was never made before completes no loop.
  if (!last || (last.isNew && history.repeats.any === 1)) return undefined
  const context: SearchContext = { last, limits, less: isWarned ? 1 : 0, ...history }
  for (const isCertain of [true, false]) {
    let best: Loop | undefined
    for (const pattern of among) {
      const { find, isOfResponses } = PATTERNS[pattern]
      if (isOfResponses && !isLast) continue
      const found = find(context, isCertain)
      if (!found) continue
      const loop = { pattern, ...found, hasNews: found.hasNews || !isCertain }
      if (!best || (loop.hasNews === best.hasNews ? loop.span > best.span : best.hasNews)) best = loop
    }
    if (best) return best
  }
  return undefined
}
