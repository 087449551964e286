/**
 * What becomes of a run that goes round in circles: it is told, told again with advice to wait, and then its repeated
 * calls are refused; a run that has nothing else to do ends.
 *
 * Plain data and pure functions: the same for a live run, request by request, and for a recorded one.
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
import { changes, isTerse, saysWorkGoesOn, waits } from './call-words.ts'
import { BACK_OFF_SECONDS, loopNotice } from './notice.ts'
import { findLoop, type Loop, PATTERNS, type Pattern } from './patterns.ts'
import { type MaskMode, maskedHash } from './result-mask.ts'

/** `observe` finds loops and says nothing, `warn` tells the model, `enforce` refuses calls as well. */
export type LoopMode = 'observe' | 'warn' | 'enforce'

export interface LoopPolicy extends LoopLimits {
  readonly enabled: boolean
  readonly mode: LoopMode
  /** How many warnings about a loop may be ignored before its calls are refused. */
  readonly maxWarningsBeforeBlock: number
  /** Globs of tools whose calls are not looked at. */
  readonly exemptTools: readonly string[]
  readonly volatile: MaskMode
}

/** One call of a response, by whatever id its reader gives it. */
export interface LoopCall extends ToolCallRecord {
  readonly id: string
}

/** What was said about one kind of loop in this run. */
interface EscalationLevel {
  /** Names the loop it was said about. */
  readonly loop: Hash
  readonly warnings: number
  /** How often each of its calls was made, up to the newest warning. */
  readonly count: number
}

/** A loop that waits for something. */
interface Wait extends EscalationLevel {
  /** How often each of its calls was made when the model was last told. */
  readonly warnedLoops: number
}

/** Answers to a call that waits, with nothing new in between. */
interface Answers {
  readonly call: Hash
  /** When the newest of them came, oldest first, in milliseconds. */
  readonly times: readonly number[]
}

/** What a session remembers of a run for the guard. Bounded, and plain JSON. */
export interface LoopMemory {
  readonly history: CallHistory
  readonly levels: Readonly<Partial<Record<Pattern, EscalationLevel>>>
  /** Loops that the model was told about, the newest last. */
  readonly warnedLoops: readonly Hash[]
  readonly wait: Wait | undefined
  readonly answers: Answers | undefined
  /** Something new was done since the model was last told. */
  readonly madeProgress: boolean
  /** The loop whose calls are being refused; unset while there is none. */
  readonly blockedLoop: Pick<Loop, 'pattern' | 'calls' | 'count'> | undefined
  /** How many responses had calls refused. */
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

/** A loop that was found, and what is to be said about it. */
export interface LoopFinding extends Loop {
  /** The call that completed it. */
  readonly id: string
  /** How many times the model has been told about this loop, this time included. */
  readonly warnings: number
  readonly notice: string
}

/** A call that must not reach the client. */
export interface BlockedCall {
  readonly pattern: Pattern
  readonly tool: string
  readonly call: Hash
  /** How often it was made before. */
  readonly count: number
}

/** A run ends when this many of its responses had calls refused. */
export const MAX_BLOCKS = 3

/** A call that waits is refused where so many equal answers came in so many milliseconds. */
const MAX_ANSWERS = 40
const ANSWERS_WITHIN = 600_000

/** So many loops are remembered that the model was told about. */
const MAX_TOLD = 16

/** Of a loop whose results are too short to show any progress, so many times as many warnings may be ignored. */
const TERSE_WARNINGS = 2

function isExempt(tool: string, policy: LoopPolicy): boolean {
  return policy.exemptTools.some((glob) => globMatches(glob, tool))
}

/** All that can be told of a call before its result is known. */
export interface CallSignature extends Pick<ToolCallRecord, 'tool' | 'call' | 'isPoll' | 'isChange'> {
  readonly isExempt: boolean
}

/** Reads a call. `call`: its name among others, where it has one already; two calls have the same where they are equal. */
export function signatureOf(
  { name: tool, arguments: text }: Pick<ToolCall, 'name' | 'arguments'>,
  policy: LoopPolicy,
  call: Hash = callHash(tool, text),
): CallSignature {
  return {
    tool,
    call,
    isPoll: waits(tool, text),
    isChange: changes(tool, text),
    isExempt: isExempt(tool, policy),
  }
}

/**
 * Puts a call and its result together for the guard; `undefined` where they count for nothing as the tool is exempt. No
 * result is `undefined`.
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

/** Names a loop by its calls, in whatever order: of fixed length, as a cycle may have many. */
function loopHash({ calls: [first, ...others] }: Loop): Hash {
  return others.length === 0 ? first : hashOf([first, ...others].sort().join(' '))
}

/** How many warnings about loops of this kind were given in vain. */
function warningsGiven({ levels }: LoopMemory, { pattern }: Loop): number {
  return levels[pattern]?.warnings ?? 0
}

/** The ladder after something new was done: no warning was given in vain. */
function withoutWarnings(levels: LoopMemory['levels']): LoopMemory['levels'] {
  if (levels === NO_LOOP.levels) return levels
  const rungs = Object.entries(levels).map(([pattern, { loop }]) => [
    pattern,
    { loop, warnings: 0, count: 0 },
  ])
  return Object.fromEntries(rungs)
}

/** How often each of the loop's calls was made so far. */
function timesMade({ levels }: LoopMemory, loop: Loop): number {
  const level = levels[loop.pattern]
  return loop.count + (level?.loop === loopHash(loop) ? level.count : 0)
}

/** Is the loop one that is refused rather than warned about once more? */
function isToBeBlocked(
  memory: LoopMemory,
  loop: Loop,
  { mode, maxWarningsBeforeBlock }: LoopPolicy,
): boolean {
  // With something new in between the calls are not made in vain.
  if (mode !== 'enforce' || !PATTERNS[loop.pattern].mayBlock || loop.hasNews || loop.isWaiting) return false
  return warningsGiven(memory, loop) >= maxWarningsBeforeBlock * (loop.isTerse ? TERSE_WARNINGS : 1)
}

/** What the model is told of a loop that it is told about for the `warnings`th time. */
function findingOf(loop: Loop, id: string, warnings: number): LoopFinding {
  const advised = loop.isWaiting || !PATTERNS[loop.pattern].mayBlock ? warnings : warnings - 1
  const backOff = advised < 1 ? undefined : BACK_OFF_SECONDS[Math.min(advised, BACK_OFF_SECONDS.length) - 1]
  return { ...loop, id, warnings, notice: loopNotice(loop, backOff) }
}

type WithFinding = readonly [memory: LoopMemory, finding: LoopFinding | undefined]

/** A loop with something new in between is work, more often than not: the model is told once. */
function noticeOnce(memory: LoopMemory, loop: Loop, id: string): WithFinding {
  if (memory.warnedLoops.includes(loopHash(loop))) return [memory, undefined]
  const history = markHandled(memory.history, PATTERNS[loop.pattern].mayBlock)
  return [
    { ...memory, history, warnedLoops: withWarnedLoop(memory, loop), madeProgress: false },
    findingOf(loop, id, 1),
  ]
}

function withWarnedLoop({ warnedLoops }: LoopMemory, loop: Loop): readonly Hash[] {
  const name = loopHash(loop)
  return warnedLoops.includes(name) ? warnedLoops : withNewest(warnedLoops, name, MAX_TOLD)
}

/** The model is told that it waits, and how long to wait, again when it has asked as often again. */
function noticeToWait(memory: LoopMemory, loop: Loop, id: string): WithFinding {
  const name = loopHash(loop)
  const before = memory.wait?.loop === name ? memory.wait : { count: 0, warnedLoops: 0, warnings: 0 }
  const count = before.count + loop.count
  const isDue = count >= 2 * before.warnedLoops
  const warnings = before.warnings + (isDue ? 1 : 0)
  const wait: Wait = { loop: name, count, warnedLoops: isDue ? count : before.warnedLoops, warnings }
  const span = loop.span + before.count * loop.calls.length
  const finding = isDue ? findingOf({ ...loop, count, span }, id, warnings) : undefined
  return [{ ...memory, history: markHandled(memory.history, PATTERNS[loop.pattern].mayBlock), wait }, finding]
}

/** Notes that the model is warned about a loop, which begins to count anew. */
function warned(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): WithFinding {
  // Told before it did something new: again only where it goes on with nothing new.
  const isLeft = memory.madeProgress && memory.warnedLoops.includes(loopHash(loop))
  const warnings = isLeft ? 0 : warningsGiven(memory, loop) + 1
  const count = timesMade(memory, loop)
  const next: LoopMemory = {
    ...memory,
    history: markHandled(memory.history, PATTERNS[loop.pattern].mayBlock),
    levels: { ...memory.levels, [loop.pattern]: { loop: loopHash(loop), warnings, count } },
    warnedLoops: withWarnedLoop(memory, loop),
    madeProgress: false,
    // It should have been refused, and could not be.
    blockedLoop: isToBeBlocked(memory, loop, policy)
      ? { pattern: loop.pattern, calls: loop.calls, count }
      : memory.blockedLoop,
  }
  return [next, isLeft ? undefined : findingOf(loop, id, warnings)]
}

function withNotice(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): WithFinding {
  if (loop.hasNews) return noticeOnce(memory, loop, id)
  return loop.isWaiting ? noticeToWait(memory, loop, id) : warned(memory, loop, id, policy)
}

/** The equal answers to a call that waits, with the one that has just come. What is new begins anew; no time is no answer. */
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
  const history = addToHistory(memory.history, call, step, policy)
  const isNew = history.window.at(-1)?.isNew === true
  const answers = withAnswer(memory.answers, call, isNew, now)
  if (!isNew) return { ...memory, history, answers }
  const next = { ...memory, history, answers, levels: withoutWarnings(memory.levels), madeProgress: true }
  if (memory.blockedLoop?.calls.includes(call.call) !== false) return next
  // What is new and different leaves the loop, and what was counted of it counts no more.
  return {
    ...next,
    history: addToHistory(markHandled(memory.history), call, step, policy),
    blockedLoop: undefined,
  }
}

/**
 * Takes what one response called into account, with the results. Equal calls of one response count once. At most one
 * loop is found in it. `now`: when the results came, in milliseconds; unset where that is not known.
 */
export function observeStep(
  memory: LoopMemory,
  calls: readonly LoopCall[],
  policy: LoopPolicy,
  now?: number,
): { readonly memory: LoopMemory; readonly finding: LoopFinding | undefined } {
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
  return { memory: next, finding }
}

/** Has the model been warned about a loop in this run? */
function isWarned({ levels }: LoopMemory): boolean {
  for (const _ in levels) return true
  return false
}

interface LoopToBlock {
  readonly loop: Pick<Loop, 'pattern' | 'calls'> & { readonly isWaiting?: boolean }
  readonly count: number
}

/** Has the model been warned often enough, or asked often enough, for any call to be refused? */
function isBlockingPossible(memory: LoopMemory, { mode, maxWarningsBeforeBlock }: LoopPolicy): boolean {
  if (mode !== 'enforce') return false
  const { blockedLoop, answers, levels } = memory
  if (blockedLoop || maxWarningsBeforeBlock === 0 || answers?.times.length === MAX_ANSWERS) return true
  // No loop was warned about yet, as in nearly all runs.
  if (levels === NO_LOOP.levels) return false
  return Object.values(levels).some(({ warnings }) => warnings >= maxWarningsBeforeBlock)
}

/** Did too many equal answers to this call come in too short a time? */
function isAskedTooOften({ answers }: LoopMemory, call: Hash, now: number): boolean {
  const [first] = answers?.times ?? []
  if (first === undefined || answers?.call !== call || answers.times.length < MAX_ANSWERS) return false
  return now - first <= ANSWERS_WITHIN
}

/** How often a call of a loop was made: what counts responses says nothing of single calls. */
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
 * Would making this call once more, with what came of it last, complete a loop that was warned about often enough?
 * `isLast`: nothing that its response calls besides can bring anything new.
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

/** Is there a call that would be refused at `now`, in milliseconds? While there is none, a response need not be read. */
export function mayBlock(memory: LoopMemory, policy: LoopPolicy, now: number): boolean {
  if (!isBlockingPossible(memory, policy)) return false
  if (memory.blockedLoop) return true
  const known = new Set(memory.history.window.map(({ call }) => call))
  return [...known].some((call) => loopToBlock(memory, call, policy, now, true) !== undefined)
}

/**
 * Judges the calls of a response that is on its way to the client at `now`, in milliseconds. `refusals` has an entry for
 * each call, in order: `undefined` lets it through. `endsRun`: calls of this run were refused once too often.
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
  const isAllKnown = calls.every(({ call }) => window.some((entry) => entry.call === call))
  const refused = calls.map(({ tool, call }) =>
    isExempt(tool, policy) ? undefined : loopToBlock(memory, call, policy, now, isAllKnown),
  )
  const blocked = calls.map(({ tool, call }, at): BlockedCall | undefined => {
    const found = refused[at]
    return found && { pattern: found.loop.pattern, tool, call, count: found.count }
  })
  const first = refused.find((found) => found !== undefined)
  if (!first) return { memory, blocked, endsRun: false }
  const { pattern, calls: loopCalls, isWaiting } = first.loop
  const blocks = memory.blocks + 1
  // What waits may ask again after a while.
  const blockedLoop = isWaiting ? memory.blockedLoop : { pattern, calls: loopCalls, count: first.count }
  return {
    memory: { ...memory, blocks, blockedLoop },
    blocked,
    endsRun: blocks >= MAX_BLOCKS,
  }
}

/**
 * A human has spoken: a new run, in which nothing was said and nothing is refused. `isRepeated`: in the same words as
 * before, as a harness does after each step; then equal calls in a row still count.
 */
export function humanSpoke({ history: { repeats } }: LoopMemory, isRepeated = false): LoopMemory {
  return isRepeated ? { ...NO_LOOP, history: { ...EMPTY_HISTORY, repeats } } : NO_LOOP
}
