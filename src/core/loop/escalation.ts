/**
 * How the loop guard reacts to a run in a loop, live or recorded: it warns the model, warns again with advice to wait,
 * then blocks the repeated calls, and ends a run that makes no others. No call is blocked without a warning about it.
 */
import type { Hash } from '../hash.ts'
import { addToHistory, type CallHistory, EMPTY_HISTORY, MAX_CALLS, type ToolCallRecord } from './call-history.ts'
import { BACK_OFF_SECONDS, loopNotice } from './loop-notices.ts'
import { findLoop, isExempt, type Loop, type LoopPolicy, PATTERNS, type Pattern } from './patterns.ts'
import { hashOfAll } from './tool-call.ts'

/** One call of a response, with the id that its reader gives it. */
export interface LoopCall extends ToolCallRecord {
  readonly id: string
}

/** The loop guard's memory of a run: plain JSON of bounded size. */
export interface LoopMemory {
  readonly history: CallHistory
  /** The loops that were found, the newest last, by the hash of their calls; `count` up to when each was found last. */
  readonly loops: readonly (Pick<Loop, 'pattern' | 'count'> & { readonly loop: Hash })[]
  /** How many warnings the model got about loops of a pattern; 0 again once it did something new. */
  readonly levels: Readonly<Partial<Record<Pattern, number>>>
  /** The calls that the model was warned about, the newest last. */
  readonly warnedCalls: readonly Hash[]
  /** The newest equal answers to a call that waits: when each came, in milliseconds, oldest first. */
  readonly answers?: { readonly call: Hash; readonly times: readonly number[] } | undefined
  /** The loop whose calls are blocked; unset while there is none. */
  readonly blockedLoop?: Pick<Loop, 'pattern' | 'calls' | 'count'> | undefined
  readonly blocks: number
}

export const NO_LOOP: LoopMemory = {
  history: EMPTY_HISTORY,
  loops: [],
  levels: {},
  warnedCalls: [],
  answers: undefined,
  blockedLoop: undefined,
  blocks: 0,
}

/** A loop that was found, with the notice about it. */
export interface LoopFinding extends Loop {
  /** Id of the call that completed it. */
  readonly id: string
  readonly tools: readonly string[]
  /** Its calls, and all others of the same response that brought nothing new: the model is warned about each. */
  readonly warnedCalls: readonly Hash[]
  /** How often the model was warned, this time included. */
  readonly warnings: number
  readonly notice: string
}

/** A call that must not reach the client. `count`: how often it was made before. */
export interface BlockedCall extends Pick<Loop, 'pattern' | 'count'> {
  readonly tool: string
  /** Hash of the call, or of all calls of a response that has too many to compare one by one. */
  readonly call: Hash
}

/** A run ends when so many of its responses had calls blocked. */
export const MAX_BLOCKS = 3

/** A call that waits is blocked after so many equal answers within so many milliseconds. */
const MAX_ANSWERS = 40
const ANSWERS_WITHIN = 600_000

/** The most loops, and calls that the model was warned about, that are remembered. */
const MAX_LOOPS = 16
const MAX_WARNED_CALLS = 64

/** The memory after a response, and the loop that it completes if the model gets a notice about that. */
type Observed = { readonly memory: LoopMemory; readonly finding: LoopFinding | undefined }

/** True if the run did something that may be new since a loop was found. */
const madeProgress = ({ history }: LoopMemory) => history.mayBeNewsAt > history.handledAt

/** True if the model was warned about a loop in this run. */
const isWarned = ({ levels }: LoopMemory) => Object.keys(levels).length > 0

/** True if the model has ignored enough warnings about such loops, and some of them were about this call of a loop. */
function mayBlockLoop(
  { history, levels, warnedCalls }: LoopMemory,
  { pattern, calls, hasNews, isWaiting }: Loop,
  call: Hash,
  { mode, maxWarningsBeforeBlock }: LoopPolicy,
): boolean {
  if (mode !== 'enforce' || !PATTERNS[pattern].mayBlock || hasNews || isWaiting) return false
  const isTerse = history.window.every((entry) => entry.isTerse || !calls.includes(entry.call))
  // Results that are too short to show any progress need twice the warnings.
  const least = maxWarningsBeforeBlock * (isTerse ? 2 : 1)
  return (levels[pattern] ?? 0) >= least && (least === 0 || warnedCalls.includes(call))
}

/**
 * Returns the memory after a loop was found, whose calls are not counted again, and the finding if the model gets a
 * notice about it. `id`: the call that completed it. A notice is due about a loop
 * - that may be work, because something new came in between or may have: once;
 * - that waits: again whenever it has asked twice as often;
 * - of any other kind: each time; but after something new only if it goes on without anything new.
 */
function react(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): Observed {
  const { pattern, hasNews, isWaiting } = loop
  const { history, loops, levels, warnedCalls } = memory
  const { mayBlock } = PATTERNS[pattern]
  const hash = hashOfAll(loop.calls)
  const known = loops.find((other) => other.loop === hash)
  if (hasNews && (known || loop.calls.every((call) => warnedCalls.includes(call))))
    return { memory, finding: undefined }
  const before = known?.count ?? 0
  const count = before + loop.count
  const doublings = (times: number) => Math.floor(Math.log2(times / loop.count))
  const isDue = isWaiting && !hasNews ? doublings(count) > doublings(before) : !known || !madeProgress(memory)
  const calls: [Hash, ...Hash[]] = [...loop.calls]
  for (const { call, step, mayBeNew } of history.window)
    if (step === history.steps && !mayBeNew && !calls.includes(call)) calls.push(call)
  const next: LoopMemory = {
    ...memory,
    // A pattern that may not block leaves equal results in a row, else a threshold above its own were never reached.
    history: {
      ...history,
      repeats: { ...history.repeats, any: 0, ...(mayBlock ? { equal: 0, similar: 0 } : {}) },
      handledAt: history.steps,
    },
    loops: [...loops.filter((other) => other !== known).slice(1 - MAX_LOOPS), { loop: hash, pattern, count }],
    // The call should have been blocked, but its result is there already.
    blockedLoop: mayBlockLoop(memory, loop, loop.calls.at(-1) ?? loop.calls[0], policy)
      ? { pattern, calls, count }
      : memory.blockedLoop,
  }
  if (!isDue) return { memory: next, finding: undefined }
  const warnings = hasNews ? 1 : isWaiting ? doublings(count) + 1 : (levels[pattern] ?? 0) + 1
  const advised = isWaiting || !mayBlock ? warnings : warnings - 1
  const described = isWaiting ? { ...loop, count, span: loop.span + before * loop.calls.length } : loop
  const toolOf = (call: Hash) => history.window.findLast((entry) => entry.call === call)?.tool ?? ''
  const finding = {
    ...described,
    id,
    tools: loop.calls.map(toolOf),
    warnedCalls: calls,
    warnings,
    notice: loopNotice(
      { ...described, tools: calls.map(toolOf) },
      BACK_OFF_SECONDS[Math.min(advised, BACK_OFF_SECONDS.length) - 1],
    ),
  }
  return { memory: next, finding }
}

/** Returns the memory after the model got the notice of a finding. Only such a warning can be ignored. */
export function warningSent(memory: LoopMemory, { pattern, warnedCalls, hasNews, isWaiting }: LoopFinding): LoopMemory {
  const others = memory.warnedCalls.filter((call) => !warnedCalls.includes(call))
  const { levels } = memory
  return {
    ...memory,
    levels: hasNews || isWaiting ? levels : { ...levels, [pattern]: (levels[pattern] ?? 0) + 1 },
    warnedCalls: [...others, ...new Set(warnedCalls)].slice(-MAX_WARNED_CALLS),
  }
}

/** Returns the loop that was found last; `undefined` if the run did something that may be new since. */
export function currentLoop(memory: LoopMemory): Pick<Loop, 'pattern' | 'count'> | undefined {
  const newest = madeProgress(memory) ? undefined : memory.loops.at(-1)
  return newest && { ...newest, count: newest.count + memory.history.repeats.equal }
}

/**
 * Returns the memory with the calls of one response and their results, and the loop that they complete: at most one.
 * Equal calls of one response count once. `now`: when the results came, in milliseconds; unset if that is not known.
 * `isPast`: later responses are known already, so no notice could reach the model in time.
 */
export function observeStep(
  memory: LoopMemory,
  calls: readonly LoopCall[],
  policy: LoopPolicy,
  now?: number,
  isPast = false,
): Observed {
  const step = memory.history.steps + 1
  const counted = new Set<Hash>()
  const distinct = calls.filter(({ call }) => !counted.has(call) && counted.add(call))
  let next = memory
  let found: { readonly loop: Loop; readonly id: string } | undefined
  for (const [at, record] of distinct.entries()) {
    const { call, id, isPoll } = record
    const { levels, blockedLoop } = next
    const history = addToHistory(next.history, record, step, policy.repetitionThreshold)
    const mayBeNew = history.window.at(-1)?.mayBeNew === true
    const answers = mayBeNew ? undefined : next.answers
    const isAnswer = isPoll && now !== undefined && (!answers || answers.call === call)
    next = {
      ...next,
      history,
      levels:
        mayBeNew && isWarned(next) ? Object.fromEntries(Object.keys(levels).map((pattern) => [pattern, 0])) : levels,
      answers: isAnswer ? { call, times: [...(answers?.times ?? []), now].slice(-MAX_ANSWERS) } : answers,
      // A different call that may bring something new leaves the loop.
      blockedLoop: mayBeNew && !blockedLoop?.calls.includes(call) ? undefined : blockedLoop,
    }
    if (found || isPast) continue
    const loop = findLoop(history, policy, isWarned(next), at === distinct.length - 1)
    if (loop) found = { loop, id }
  }
  return found ? react(next, found.loop, found.id, policy) : { memory: next, finding: undefined }
}

type LoopToBlock = Pick<Loop, 'pattern' | 'calls' | 'count'> & { readonly isWaiting?: boolean }

/**
 * Returns the loop that `call` would complete if it brought its last result again, if that loop is to be blocked, with
 * the count of the call. `isLast`: no other call of the response can bring anything new.
 */
function loopToBlock(
  memory: LoopMemory,
  call: Hash,
  policy: LoopPolicy,
  now: number,
  isLast: boolean,
): LoopToBlock | undefined {
  const { answers, blockedLoop, history, loops, warnedCalls } = memory
  if (policy.mode !== 'enforce' || (policy.maxWarningsBeforeBlock > 0 && !warnedCalls.includes(call))) return undefined
  const made = history.window.filter((entry) => entry.call === call)
  // A pattern that counts responses does not say how often the call was made.
  const counted = (loop: LoopToBlock) => (PATTERNS[loop.pattern].isOfResponses ? { ...loop, count: made.length } : loop)
  if (blockedLoop?.calls.includes(call)) return counted(blockedLoop)
  const { times = [] } = answers?.call === call ? answers : {}
  // An answer from the future has the time of another clock, or of one that was set back since.
  if (times.length === MAX_ANSWERS && times.every((at) => at <= now && now - at <= ANSWERS_WITHIN))
    return { pattern: 'repetition', calls: [call], isWaiting: true, count: MAX_ANSWERS }
  const last = made.at(-1)
  if (!last) return undefined
  const next = addToHistory(history, last, history.steps + 1, policy.repetitionThreshold)
  const loop = findLoop(next, policy, isWarned(memory), isLast)
  if (!loop || !mayBlockLoop(memory, loop, call, policy)) return undefined
  const hash = hashOfAll(loop.calls)
  const before = loops.find((known) => known.loop === hash)?.count ?? 0
  return counted({ ...loop, count: before + loop.count - 1 })
}

/** True if some call would be blocked at `now` (milliseconds); otherwise the response need not be read. */
export function mayBlock(memory: LoopMemory, policy: LoopPolicy, now: number): boolean {
  const { blockedLoop, warnedCalls, history } = memory
  // Nearly all runs have had no warning.
  if (policy.mode !== 'enforce' || (warnedCalls.length === 0 && policy.maxWarningsBeforeBlock > 0)) return false
  if (blockedLoop) return true
  return history.window.some(({ call }) => loopToBlock(memory, call, policy, now, true) !== undefined)
}

/**
 * Decides which calls of a response are blocked before it goes to the client. `now`: milliseconds. `blocked` has one
 * entry for each call, in order; `undefined`: the call passes. `endsRun`: so many responses had blocked calls that the
 * run ends.
 */
export function blockCalls(
  memory: LoopMemory,
  calls: readonly Pick<LoopCall, 'tool' | 'call'>[],
  policy: LoopPolicy,
  now: number,
): { readonly memory: LoopMemory; readonly blocked: readonly (BlockedCall | undefined)[]; readonly endsRun: boolean } {
  const counted = calls.filter(({ tool }) => !isExempt(tool, policy))
  const distinct = new Set(counted.map(({ call }) => call))
  const batch = distinct.size > MAX_CALLS ? hashOfAll(distinct) : undefined
  const known = new Set(memory.history.window.map(({ call }) => call))
  const isNothingNew = batch === undefined ? calls.every(({ call }) => known.has(call)) : known.has(batch)
  const loops = new Map<Hash, LoopToBlock>()
  for (const call of batch ? [batch] : distinct) {
    const loop = loopToBlock(memory, call, policy, now, isNothingNew)
    if (loop) loops.set(call, loop)
  }
  const blocked = calls.map(({ tool, call: one }): BlockedCall | undefined => {
    const call = batch ?? one
    const loop = isExempt(tool, policy) ? undefined : loops.get(call)
    return loop && { pattern: loop.pattern, tool, call, count: loop.count }
  })
  const [first] = loops.values()
  if (!first) return { memory, blocked, endsRun: false }
  const { pattern, calls: loopCalls, count, isWaiting } = first
  const blocks = memory.blocks + 1
  // A call that waits may be made again after a while.
  const blockedLoop = isWaiting ? memory.blockedLoop : { pattern, calls: loopCalls, count }
  return { memory: { ...memory, blocks, blockedLoop }, blocked, endsRun: blocks >= MAX_BLOCKS }
}

/**
 * Returns the memory of a new run, which begins when a human speaks. `isRepeated`: the words are the same as before, as
 * some harnesses send them after each step; then equal calls in a row still count.
 */
export function humanSpoke({ history }: LoopMemory, isRepeated = false): LoopMemory {
  if (!isRepeated) return NO_LOOP
  return { ...NO_LOOP, history: { ...history, window: history.window.slice(-1), handledAt: history.steps } }
}
