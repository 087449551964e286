/**
 * How the loop guard reacts to a run in a loop: it warns the model, warns again with advice to wait, then blocks the
 * repeated calls, and ends a run that makes no others.
 *
 * The same functions serve live runs, request by request, and recorded ones.
 */

import type { ToolCall } from '../conversation.ts'
import { globMatches } from '../glob.ts'
import { type Hash, hashOf } from '../hash.ts'
import { withNewest } from '../newest.ts'
import type { Work } from '../work.ts'
import { callHash } from './call-hash.ts'
import {
  addToHistory,
  type CallHistory,
  EMPTY_HISTORY,
  type LoopLimits,
  markHandled,
  type ToolCallRecord,
} from './call-history.ts'
import { changes, isTerse, saysWorkGoesOn, waits, wordsOf } from './call-words.ts'
import { BACK_OFF_SECONDS, loopNotice } from './notice.ts'
import { findLoop, type Loop, PATTERNS, type Pattern } from './patterns.ts'
import { type MaskMode, maskedHash } from './result-mask.ts'

/** `observe` only finds loops, `warn` warns the model, `enforce` also blocks calls. */
export type LoopMode = 'observe' | 'warn' | 'enforce'

export interface LoopPolicy extends LoopLimits {
  readonly enabled: boolean
  readonly mode: LoopMode
  /** How many warnings about a loop the model may ignore before its calls are blocked. */
  readonly maxWarningsBeforeBlock: number
  /** Globs of tools whose calls do not count. */
  readonly exemptTools: readonly string[]
  readonly volatile: MaskMode
}

/** One call of a response, with the id that its reader gives it. */
export interface LoopCall extends ToolCallRecord {
  readonly id: string
}

/** The warnings about loops of one pattern in this run. */
interface EscalationLevel {
  /** Hash of the loop that the newest warning was about. */
  readonly loop: Hash
  readonly warnings: number
  /** How often each of its calls was made, up to the newest warning. */
  readonly count: number
}

/** A loop that waits for something. */
interface Wait extends EscalationLevel {
  /** How often each of its calls was made at the newest warning. */
  readonly warnedLoops: number
}

/** Equal answers to a call that waits, with nothing new in between. */
interface Answers {
  readonly call: Hash
  /** Milliseconds at which the newest of them came, oldest first. */
  readonly times: readonly number[]
}

/** The loop guard's memory of a run: plain JSON of bounded size. */
export interface LoopMemory {
  readonly history: CallHistory
  readonly levels: Readonly<Partial<Record<Pattern, EscalationLevel>>>
  /** Hashes of the loops that the model was warned about, the newest last. */
  readonly warnedLoops: readonly Hash[]
  readonly wait: Wait | undefined
  readonly answers: Answers | undefined
  /** The run did something new since the newest warning. */
  readonly madeProgress: boolean
  /** The loop whose calls are blocked; unset while there is none. */
  readonly blockedLoop: Pick<Loop, 'pattern' | 'calls' | 'count'> | undefined
  /** How many responses had calls blocked. */
  readonly blocks: number
}

export const NO_LOOP: LoopMemory = {
  history: EMPTY_HISTORY,
  levels: {},
  warnedLoops: [],
  wait: undefined,
  answers: undefined,
  madeProgress: false,
  blockedLoop: undefined,
  blocks: 0,
}

/** A loop that was found, with the notice about it. */
export interface LoopFinding extends Loop {
  /** Id of the call that completed it. */
  readonly id: string
  /** How often the model was warned about this loop, this time included. */
  readonly warnings: number
  readonly notice: string
}

/** A call that must not reach the client. */
export interface BlockedCall {
  readonly pattern: Pattern
  readonly tool: string
  readonly call: Hash
  /** How often the call was made before. */
  readonly count: number
}

/** A run ends when so many of its responses had calls blocked. */
export const MAX_BLOCKS = 3

/** A call that waits is blocked after so many equal answers within so many milliseconds. */
const MAX_ANSWERS = 40
const ANSWERS_WITHIN = 600_000

/** The most loops that are remembered as warned about. */
const MAX_WARNED = 16

/** The factor by which more warnings may be ignored about a loop whose results are too short to show any progress. */
const TERSE_WARNINGS = 2

function isExempt(tool: string, policy: LoopPolicy): boolean {
  return policy.exemptTools.some((glob) => globMatches(glob, tool))
}

/** All that is known of a call before its result. */
export interface CallSignature extends Pick<ToolCallRecord, 'tool' | 'call' | 'isPoll' | 'isChange'> {
  readonly isExempt: boolean
}

/** Returns the signature of a call as the model wrote it. `call`: its hash, if the caller knows it already. */
export function signatureOf(
  { name: tool, arguments: text }: Pick<ToolCall, 'name' | 'arguments'>,
  policy: LoopPolicy,
  call: Hash = callHash(tool, text),
): CallSignature {
  const words = wordsOf(tool, text)
  return {
    tool,
    call,
    isPoll: waits(words),
    isChange: changes(words),
    isExempt: isExempt(tool, policy),
  }
}

/**
 * Returns a call with its result for the loop guard; `undefined` if the tool is exempt. `result` is `undefined` if there
 * is none. Throws `TooMuchToRead`.
 */
export function loopCall(
  id: string,
  { tool, call, isPoll, isChange, isExempt }: CallSignature,
  result: string | undefined,
  policy: LoopPolicy,
  work?: Work,
): LoopCall | undefined {
  if (isExempt) return undefined
  if (result === undefined) return { id, tool, call, resultHash: '', isPoll, isChange, isTerse: true }
  const resultHash = maskedHash(result, policy.volatile, work)
  const isWaiting = isPoll || saysWorkGoesOn(result)
  return { id, tool, call, resultHash, isPoll: isWaiting, isChange, isTerse: isTerse(result) }
}

/** Hash of a loop's calls in any order, of fixed length because a cycle may have many calls. */
function loopHash({ calls: [first, ...others] }: Loop): Hash {
  return others.length === 0 ? first : hashOf([first, ...others].sort().join(' '))
}

/** How many warnings about loops of this pattern the model has ignored. */
function ignoredWarnings({ levels }: LoopMemory, { pattern }: Loop): number {
  return levels[pattern]?.warnings ?? 0
}

/** The escalation levels after the run did something new: no warning counts as ignored. */
function withoutWarnings(levels: LoopMemory['levels']): LoopMemory['levels'] {
  if (levels === NO_LOOP.levels) return levels
  const entries = Object.entries(levels).map(([pattern, { loop }]) => [
    pattern,
    { loop, warnings: 0, count: 0 },
  ])
  return Object.fromEntries(entries)
}

/** How often each of the loop's calls was made so far. */
function timesMade({ levels }: LoopMemory, loop: Loop): number {
  const level = levels[loop.pattern]
  return loop.count + (level?.loop === loopHash(loop) ? level.count : 0)
}

/** True if the loop's calls are to be blocked rather than warned about once more. */
function isToBeBlocked(
  memory: LoopMemory,
  loop: Loop,
  { mode, maxWarningsBeforeBlock }: LoopPolicy,
): boolean {
  // If something new came in between, the calls may be work.
  if (mode !== 'enforce' || !PATTERNS[loop.pattern].mayBlock || loop.hasNews || loop.isWaiting) return false
  return ignoredWarnings(memory, loop) >= maxWarningsBeforeBlock * (loop.isTerse ? TERSE_WARNINGS : 1)
}

/** Returns the finding about a loop, with the notice for warning number `warnings`. */
function findingOf(loop: Loop, id: string, warnings: number): LoopFinding {
  const advised = loop.isWaiting || !PATTERNS[loop.pattern].mayBlock ? warnings : warnings - 1
  const backOff = advised < 1 ? undefined : BACK_OFF_SECONDS[Math.min(advised, BACK_OFF_SECONDS.length) - 1]
  return { ...loop, id, warnings, notice: loopNotice(loop, backOff) }
}

type WithFinding = readonly [memory: LoopMemory, finding: LoopFinding | undefined]

/** A loop with something new in between is work more often than not: the model gets one notice. */
function noticeOnce(memory: LoopMemory, loop: Loop, id: string): WithFinding {
  if (memory.warnedLoops.includes(loopHash(loop))) return [memory, undefined]
  const history = markHandled(memory.history, PATTERNS[loop.pattern].mayBlock)
  return [
    { ...memory, history, warnedLoops: withWarnedLoop(memory, loop), madeProgress: false },
    findingOf(loop, id, 1),
  ]
}

function withWarnedLoop({ warnedLoops }: LoopMemory, loop: Loop): readonly Hash[] {
  const hash = loopHash(loop)
  return warnedLoops.includes(hash) ? warnedLoops : withNewest(warnedLoops, hash, MAX_WARNED)
}

/** A loop that waits: the model gets advice how long to wait, again whenever it has asked twice as often. */
function noticeToWait(memory: LoopMemory, loop: Loop, id: string): WithFinding {
  const hash = loopHash(loop)
  const before = memory.wait?.loop === hash ? memory.wait : { count: 0, warnedLoops: 0, warnings: 0 }
  const count = before.count + loop.count
  const isDue = count >= 2 * before.warnedLoops
  const warnings = before.warnings + (isDue ? 1 : 0)
  const wait: Wait = { loop: hash, count, warnedLoops: isDue ? count : before.warnedLoops, warnings }
  const span = loop.span + before.count * loop.calls.length
  const finding = isDue ? findingOf({ ...loop, count, span }, id, warnings) : undefined
  return [{ ...memory, history: markHandled(memory.history, PATTERNS[loop.pattern].mayBlock), wait }, finding]
}

/** A warning about a loop, whose count then starts again. */
function noticeWithWarning(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): WithFinding {
  // After a warning the model did something new: it is warned again only if it continues the loop without anything new.
  const isForgiven = memory.madeProgress && memory.warnedLoops.includes(loopHash(loop))
  const warnings = isForgiven ? 0 : ignoredWarnings(memory, loop) + 1
  const count = timesMade(memory, loop)
  const next: LoopMemory = {
    ...memory,
    history: markHandled(memory.history, PATTERNS[loop.pattern].mayBlock),
    levels: { ...memory.levels, [loop.pattern]: { loop: loopHash(loop), warnings, count } },
    warnedLoops: withWarnedLoop(memory, loop),
    madeProgress: false,
    // The call should have been blocked, but its result is there already.
    blockedLoop: isToBeBlocked(memory, loop, policy)
      ? { pattern: loop.pattern, calls: loop.calls, count }
      : memory.blockedLoop,
  }
  return [next, isForgiven ? undefined : findingOf(loop, id, warnings)]
}

function withNotice(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): WithFinding {
  if (loop.hasNews) return noticeOnce(memory, loop, id)
  return loop.isWaiting ? noticeToWait(memory, loop, id) : noticeWithWarning(memory, loop, id, policy)
}

/** The equal answers to a call that waits, with the newest one; a new result begins anew, and one without a time does not count. */
function withAnswer(
  answers: Answers | undefined,
  { call, isPoll }: LoopCall,
  isNew: boolean,
  now: number | undefined,
): Answers | undefined {
  const before = isNew ? undefined : answers
  if (!isPoll || now === undefined || (before && before.call !== call)) return before
  return { call, times: withNewest(before?.times ?? [], now, MAX_ANSWERS) }
}

function addToMemory(
  memory: LoopMemory,
  call: LoopCall,
  step: number,
  policy: LoopPolicy,
  now: number | undefined,
): LoopMemory {
  const { levels, warnedLoops, wait, madeProgress, blockedLoop, blocks } = memory
  const history = addToHistory(memory.history, call, step, policy)
  const isNew = history.window.at(-1)?.isNew === true
  // A new and different call leaves the loop: its calls no longer count.
  const isLeft = isNew && blockedLoop?.calls.includes(call.call) === false
  return {
    history: isLeft ? addToHistory(markHandled(memory.history), call, step, policy) : history,
    levels: isNew ? withoutWarnings(levels) : levels,
    warnedLoops,
    wait,
    answers: withAnswer(memory.answers, call, isNew, now),
    madeProgress: madeProgress || isNew,
    blockedLoop: isLeft ? undefined : blockedLoop,
    blocks,
  }
}

/** What one response changes. */
export interface ObservedStep {
  /** The memory once the model got the notice, if there is one. */
  readonly memory: LoopMemory
  /** The memory as long as the model did not get the notice. */
  readonly untold: LoopMemory
  readonly finding: LoopFinding | undefined
}

/**
 * Returns the memory with the calls of one response and their results, and the loop that they complete: at most one.
 * Equal calls of one response count once. `now`: when the results came, in milliseconds; unset if that is not known.
 */
export function observeStep(
  memory: LoopMemory,
  calls: readonly LoopCall[],
  policy: LoopPolicy,
  now?: number,
): ObservedStep {
  const step = memory.history.steps + 1
  const counted = new Set<Hash>()
  const distinct = calls.filter(({ call }) => !counted.has(call) && counted.add(call))
  let next = memory
  let finding: LoopFinding | undefined
  for (const [at, call] of distinct.entries()) {
    next = addToMemory(next, call, step, policy, now)
    if (finding) continue
    const loop = findLoop(next.history, policy, isWarned(next), at === distinct.length - 1)
    if (loop) [next, finding] = withNotice(next, loop, call.id, policy)
  }
  const untold = finding
    ? distinct.reduce((before, call) => addToMemory(before, call, step, policy, now), memory)
    : next
  return { memory: next, untold, finding }
}

/** True if the model was warned about a loop in this run. */
function isWarned({ levels }: LoopMemory): boolean {
  for (const _ in levels) return true
  return false
}

interface LoopToBlock {
  readonly loop: Pick<Loop, 'pattern' | 'calls'> & { readonly isWaiting?: boolean }
  readonly count: number
}

/** False if no call can be blocked: too few warnings were ignored and no call was repeated too often. */
function isBlockingPossible(memory: LoopMemory, { mode, maxWarningsBeforeBlock }: LoopPolicy): boolean {
  if (mode !== 'enforce') return false
  const { blockedLoop, answers, levels } = memory
  if (blockedLoop || maxWarningsBeforeBlock === 0 || answers?.times.length === MAX_ANSWERS) return true
  // Nearly all runs have had no warning.
  if (levels === NO_LOOP.levels) return false
  return Object.values(levels).some(({ warnings }) => warnings >= maxWarningsBeforeBlock)
}

/** True if `call` had too many equal answers in too short a time. */
function isAskedTooOften({ answers }: LoopMemory, call: Hash, now: number): boolean {
  const [first] = answers?.times ?? []
  if (first === undefined || answers?.call !== call || answers.times.length < MAX_ANSWERS) return false
  // An answer from the future has the time of another clock, or of one that was set back since.
  return first <= now && now - first <= ANSWERS_WITHIN
}

/** How often a call of a loop was made: a pattern that counts responses does not say it. */
function countOf(
  { history }: LoopMemory,
  { pattern, count }: Pick<Loop, 'pattern' | 'count'>,
  call: Hash,
): number {
  return PATTERNS[pattern].isOfResponses
    ? history.window.filter((entry) => entry.call === call).length
    : count
}

/**
 * Returns the loop that `call` would complete if it brought its last result again, if that loop is to be blocked.
 * `isLast`: no other call of the response can bring anything new.
 */
function loopToBlock(
  memory: LoopMemory,
  call: Hash,
  policy: LoopPolicy,
  now: number,
  isLast: boolean,
): LoopToBlock | undefined {
  const { blockedLoop, history } = memory
  if (blockedLoop?.calls.includes(call))
    return { loop: blockedLoop, count: countOf(memory, blockedLoop, call) }
  if (isAskedTooOften(memory, call, now))
    return { loop: { pattern: 'repetition', calls: [call], isWaiting: true }, count: MAX_ANSWERS }
  const last = history.window.findLast((entry) => entry.call === call)
  if (!last) return undefined
  const next = addToHistory(history, last, history.steps + 1, policy)
  const loop = findLoop(next, policy, isWarned(memory), isLast)
  if (!loop || !isToBeBlocked(memory, loop, policy)) return undefined
  return { loop, count: countOf(memory, { ...loop, count: timesMade(memory, loop) - 1 }, call) }
}

/** True if some call would be blocked at `now` (milliseconds); otherwise the response need not be read. */
export function mayBlock(memory: LoopMemory, policy: LoopPolicy, now: number): boolean {
  if (!isBlockingPossible(memory, policy)) return false
  if (memory.blockedLoop) return true
  const calls = new Set(memory.history.window.map(({ call }) => call))
  return [...calls].some((call) => loopToBlock(memory, call, policy, now, true) !== undefined)
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
): {
  readonly memory: LoopMemory
  readonly blocked: readonly (BlockedCall | undefined)[]
  readonly endsRun: boolean
} {
  if (!isBlockingPossible(memory, policy))
    return { memory, blocked: calls.map(() => undefined), endsRun: false }
  const { window } = memory.history
  const isNothingNew = calls.every(({ call }) => window.some((entry) => entry.call === call))
  const loops = calls.map(({ tool, call }) =>
    isExempt(tool, policy) ? undefined : loopToBlock(memory, call, policy, now, isNothingNew),
  )
  const blocked = calls.map(({ tool, call }, at): BlockedCall | undefined => {
    const blocking = loops[at]
    return blocking && { pattern: blocking.loop.pattern, tool, call, count: blocking.count }
  })
  const first = loops.find((blocking) => blocking !== undefined)
  if (!first) return { memory, blocked, endsRun: false }
  const { pattern, calls: loopCalls, isWaiting } = first.loop
  const blocks = memory.blocks + 1
  // A call that waits may be made again after a while.
  const blockedLoop = isWaiting ? memory.blockedLoop : { pattern, calls: loopCalls, count: first.count }
  return {
    memory: { ...memory, blocks, blockedLoop },
    blocked,
    endsRun: blocks >= MAX_BLOCKS,
  }
}

/**
 * Returns the memory of a new run, which begins when a human speaks. `isRepeated`: the words are the same as before, as
 * some harnesses send them after each step; then equal calls in a row still count.
 */
export function humanSpoke({ history: { repeats } }: LoopMemory, isRepeated = false): LoopMemory {
  return isRepeated ? { ...NO_LOOP, history: { ...EMPTY_HISTORY, repeats } } : NO_LOOP
}
