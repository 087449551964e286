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
import { EMPTY_TRAIL, follow, type LoopLimits, type Strike, spend, type Trail } from './call-history.ts'
import { changes, isTerse, saysWorkGoesOn, waits } from './call-words.ts'
import { BACK_OFF_SECONDS, loopNotice } from './notice.ts'
import { findLoop, type Loop, PATTERNS, type Pattern } from './patterns.ts'
import { outcomeHash, type Volatile } from './result-mask.ts'

/** `observe` finds loops and says nothing, `warn` tells the model, `enforce` refuses calls as well. */
export type LoopMode = 'observe' | 'warn' | 'enforce'

export interface LoopPolicy extends LoopLimits {
  readonly enabled: boolean
  readonly mode: LoopMode
  /** How many warnings about a loop may be ignored before its calls are refused. */
  readonly maxWarningsBeforeBlock: number
  /** Globs of tools whose calls are not looked at. */
  readonly exemptTools: readonly string[]
  readonly volatile: Volatile
}

/** One call of a response, by whatever id its reader gives it. */
export interface LoopCall extends Strike {
  readonly id: string
}

/** What was said about one kind of loop in this run. */
interface Rung {
  /** Names the loop it was said about. */
  readonly loop: Hash
  readonly warnings: number
  /** How often each of its calls was made, up to the newest warning. */
  readonly count: number
}

/** A loop that waits for something. */
interface Wait extends Rung {
  /** How often each of its calls was made when the model was last told. */
  readonly told: number
}

/** Answers to a call that waits, with nothing new in between. */
interface Answers {
  readonly call: Hash
  /** When the newest of them came, oldest first, in milliseconds. */
  readonly times: readonly number[]
}

/** What a session remembers of a run for the guard. Bounded, and plain JSON. */
export interface LoopMemory {
  readonly trail: Trail
  readonly ladder: Readonly<Partial<Record<Pattern, Rung>>>
  /** Loops that the model was told about, the newest last. */
  readonly told: readonly Hash[]
  readonly wait: Wait | undefined
  readonly answers: Answers | undefined
  /** Something new was done since the model was last told. */
  readonly hasMovedOn: boolean
  /** The loop whose calls are being refused; unset while there is none. */
  readonly refusing: Pick<Loop, 'pattern' | 'calls' | 'count'> | undefined
  /** How many responses had calls refused. */
  readonly blocks: number
}

export const NO_LOOP: LoopMemory = {
  trail: EMPTY_TRAIL,
  ladder: {},
  told: [],
  wait: undefined,
  answers: undefined,
  hasMovedOn: false,
  refusing: undefined,
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
export interface Refusal {
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
export interface MadeCall extends Pick<Strike, 'tool' | 'call' | 'isPoll' | 'isChange'> {
  readonly isExempt: boolean
}

/** Reads a call. `call`: its name among others, where it has one already; two calls have the same where they are equal. */
export function madeCall(
  { name: tool, arguments: text }: Pick<ToolCall, 'name' | 'arguments'>,
  policy: LoopPolicy,
  call: Hash = callHash(tool, text),
): MadeCall {
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
  { tool, call, isPoll, isChange, isExempt }: MadeCall,
  result: string | undefined,
  policy: LoopPolicy,
  work?: Work,
): LoopCall | undefined {
  if (isExempt) return undefined
  if (result === undefined) return { id, tool, call, outcome: '', isPoll, isChange, isTerse: true }
  const outcome = outcomeHash(result, policy.volatile, work)
  const isWaiting = isPoll || saysWorkGoesOn(result)
  return { id, tool, call, outcome, isPoll: isWaiting, isChange, isTerse: isTerse(result) }
}

/** Names a loop by its calls, in whatever order: of fixed length, as a cycle may have many. */
function nameOf({ calls: [first, ...others] }: Loop): Hash {
  return others.length === 0 ? first : hashOf([first, ...others].sort().join(' '))
}

/** How many warnings about loops of this kind were given in vain. */
function warningsGiven({ ladder }: LoopMemory, { pattern }: Loop): number {
  return ladder[pattern]?.warnings ?? 0
}

/** The ladder after something new was done: no warning was given in vain. */
function withoutWarnings(ladder: LoopMemory['ladder']): LoopMemory['ladder'] {
  if (ladder === NO_LOOP.ladder) return ladder
  const rungs = Object.entries(ladder).map(([pattern, { loop }]) => [
    pattern,
    { loop, warnings: 0, count: 0 },
  ])
  return Object.fromEntries(rungs)
}

/** How often each of the loop's calls was made so far. */
function timesMade({ ladder }: LoopMemory, loop: Loop): number {
  const rung = ladder[loop.pattern]
  return loop.count + (rung?.loop === nameOf(loop) ? rung.count : 0)
}

/** Is the loop one that is refused rather than warned about once more? */
function isRefused(memory: LoopMemory, loop: Loop, { mode, maxWarningsBeforeBlock }: LoopPolicy): boolean {
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

type Told = readonly [memory: LoopMemory, finding: LoopFinding | undefined]

/** A loop with something new in between is work, more often than not: the model is told once. */
function toldOnce(memory: LoopMemory, loop: Loop, id: string): Told {
  if (memory.told.includes(nameOf(loop))) return [memory, undefined]
  const trail = spend(memory.trail, PATTERNS[loop.pattern].mayBlock)
  return [{ ...memory, trail, told: withTold(memory, loop), hasMovedOn: false }, findingOf(loop, id, 1)]
}

function withTold({ told }: LoopMemory, loop: Loop): readonly Hash[] {
  const name = nameOf(loop)
  return told.includes(name) ? told : withNewest(told, name, MAX_TOLD)
}

/** The model is told that it waits, and how long to wait, again when it has asked as often again. */
function toldToWait(memory: LoopMemory, loop: Loop, id: string): Told {
  const name = nameOf(loop)
  const before = memory.wait?.loop === name ? memory.wait : { count: 0, told: 0, warnings: 0 }
  const count = before.count + loop.count
  const isDue = count >= 2 * before.told
  const warnings = before.warnings + (isDue ? 1 : 0)
  const wait: Wait = { loop: name, count, told: isDue ? count : before.told, warnings }
  const span = loop.span + before.count * loop.calls.length
  const finding = isDue ? findingOf({ ...loop, count, span }, id, warnings) : undefined
  return [{ ...memory, trail: spend(memory.trail, PATTERNS[loop.pattern].mayBlock), wait }, finding]
}

/** Notes that the model is warned about a loop, which begins to count anew. */
function warned(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): Told {
  // Told before it did something new: again only where it goes on with nothing new.
  const isLeft = memory.hasMovedOn && memory.told.includes(nameOf(loop))
  const warnings = isLeft ? 0 : warningsGiven(memory, loop) + 1
  const count = timesMade(memory, loop)
  const next: LoopMemory = {
    ...memory,
    trail: spend(memory.trail, PATTERNS[loop.pattern].mayBlock),
    ladder: { ...memory.ladder, [loop.pattern]: { loop: nameOf(loop), warnings, count } },
    told: withTold(memory, loop),
    hasMovedOn: false,
    // It should have been refused, and could not be.
    refusing: isRefused(memory, loop, policy)
      ? { pattern: loop.pattern, calls: loop.calls, count }
      : memory.refusing,
  }
  return [next, isLeft ? undefined : findingOf(loop, id, warnings)]
}

function tell(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): Told {
  if (loop.hasNews) return toldOnce(memory, loop, id)
  return loop.isWaiting ? toldToWait(memory, loop, id) : warned(memory, loop, id, policy)
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

function takeIn(
  memory: LoopMemory,
  call: LoopCall,
  step: number,
  policy: LoopPolicy,
  now: number | undefined,
): LoopMemory {
  const trail = follow(memory.trail, call, step, policy)
  const isNew = trail.window.at(-1)?.isNew === true
  const answers = withAnswer(memory.answers, call, isNew, now)
  if (!isNew) return { ...memory, trail, answers }
  const next = { ...memory, trail, answers, ladder: withoutWarnings(memory.ladder), hasMovedOn: true }
  if (memory.refusing?.calls.includes(call.call) !== false) return next
  // What is new and different leaves the loop, and what was counted of it counts no more.
  return { ...next, trail: follow(spend(memory.trail), call, step, policy), refusing: undefined }
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
  const step = memory.trail.steps + 1
  const counted = new Set<Hash>()
  const distinct = calls.filter(({ call }) => !counted.has(call) && counted.add(call))
  let next = memory
  let finding: LoopFinding | undefined
  for (const [at, call] of distinct.entries()) {
    next = takeIn(next, call, step, policy, now)
    if (finding) continue
    const loop = findLoop(next.trail, policy, isWarned(next), at === distinct.length - 1)
    if (loop) [next, finding] = tell(next, loop, call.id, policy)
  }
  return { memory: next, finding }
}

/** Has the model been warned about a loop in this run? */
function isWarned({ ladder }: LoopMemory): boolean {
  for (const _ in ladder) return true
  return false
}

interface Refused {
  readonly loop: Pick<Loop, 'pattern' | 'calls'> & { readonly isWaiting?: boolean }
  readonly count: number
}

/** Has the model been warned often enough, or asked often enough, for any call to be refused? */
function mayBlock(memory: LoopMemory, { mode, maxWarningsBeforeBlock }: LoopPolicy): boolean {
  if (mode !== 'enforce') return false
  const { refusing, answers, ladder } = memory
  if (refusing || maxWarningsBeforeBlock === 0 || answers?.times.length === MAX_ANSWERS) return true
  // No loop was warned about yet, as in nearly all runs.
  if (ladder === NO_LOOP.ladder) return false
  return Object.values(ladder).some(({ warnings }) => warnings >= maxWarningsBeforeBlock)
}

/** Did too many equal answers to this call come in too short a time? */
function isAskedTooOften({ answers }: LoopMemory, call: Hash, now: number): boolean {
  const [first] = answers?.times ?? []
  if (first === undefined || answers?.call !== call || answers.times.length < MAX_ANSWERS) return false
  return now - first <= ANSWERS_WITHIN
}

/** How often a call of a loop was made: what counts responses says nothing of single calls. */
function countOf(
  { trail }: LoopMemory,
  { pattern, count }: Pick<Loop, 'pattern' | 'count'>,
  call: Hash,
): number {
  return PATTERNS[pattern].isOfResponses ? trail.window.filter((trace) => trace.call === call).length : count
}

/**
 * Would making this call once more, with what came of it last, complete a loop that was warned about often enough?
 * `isLast`: nothing that its response calls besides can bring anything new.
 */
function refusalOf(
  memory: LoopMemory,
  call: Hash,
  policy: LoopPolicy,
  now: number,
  isLast: boolean,
): Refused | undefined {
  const { refusing, trail } = memory
  if (refusing?.calls.includes(call)) return { loop: refusing, count: countOf(memory, refusing, call) }
  if (isAskedTooOften(memory, call, now))
    return { loop: { pattern: 'repetition', calls: [call], isWaiting: true }, count: MAX_ANSWERS }
  const last = trail.window.findLast((trace) => trace.call === call)
  if (!last) return undefined
  const next = follow(trail, last, trail.steps + 1, policy)
  const loop = findLoop(next, policy, isWarned(memory), isLast)
  if (!loop || !isRefused(memory, loop, policy)) return undefined
  return { loop, count: countOf(memory, { ...loop, count: timesMade(memory, loop) - 1 }, call) }
}

/** Is there a call that would be refused at `now`, in milliseconds? While there is none, a response need not be read. */
export function mayRefuse(memory: LoopMemory, policy: LoopPolicy, now: number): boolean {
  if (!mayBlock(memory, policy)) return false
  if (memory.refusing) return true
  const known = new Set(memory.trail.window.map(({ call }) => call))
  return [...known].some((call) => refusalOf(memory, call, policy, now, true) !== undefined)
}

/**
 * Judges the calls of a response that is on its way to the client at `now`, in milliseconds. `refusals` has an entry for
 * each call, in order: `undefined` lets it through. `endsRun`: calls of this run were refused once too often.
 */
export function refuseCalls(
  memory: LoopMemory,
  calls: readonly Pick<LoopCall, 'tool' | 'call'>[],
  policy: LoopPolicy,
  now: number,
): {
  readonly memory: LoopMemory
  readonly refusals: readonly (Refusal | undefined)[]
  readonly endsRun: boolean
} {
  if (!mayBlock(memory, policy)) return { memory, refusals: calls.map(() => undefined), endsRun: false }
  const { window } = memory.trail
  const isAllKnown = calls.every(({ call }) => window.some((trace) => trace.call === call))
  const refused = calls.map(({ tool, call }) =>
    isExempt(tool, policy) ? undefined : refusalOf(memory, call, policy, now, isAllKnown),
  )
  const refusals = calls.map(({ tool, call }, at): Refusal | undefined => {
    const found = refused[at]
    return found && { pattern: found.loop.pattern, tool, call, count: found.count }
  })
  const first = refused.find((found) => found !== undefined)
  if (!first) return { memory, refusals, endsRun: false }
  const { pattern, calls: loopCalls, isWaiting } = first.loop
  const blocks = memory.blocks + 1
  // What waits may ask again after a while.
  const refusing = isWaiting ? memory.refusing : { pattern, calls: loopCalls, count: first.count }
  return { memory: { ...memory, blocks, refusing }, refusals, endsRun: blocks >= MAX_BLOCKS }
}

/**
 * A human has spoken: a new run, in which nothing was said and nothing is refused. `isRepeated`: in the same words as
 * before, as a harness does after each step; then equal calls in a row still count.
 */
export function humanSpoke({ trail: { streak } }: LoopMemory, isRepeated = false): LoopMemory {
  return isRepeated ? { ...NO_LOOP, trail: { ...EMPTY_TRAIL, streak } } : NO_LOOP
}
