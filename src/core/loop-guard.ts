/**
 * What becomes of a run that goes round in circles: it is told, told again with advice to wait, and then its repeated
 * calls are refused; a run that has nothing else to do ends.
 *
 * Plain data and pure functions: the same for a live run, request by request, and for a recorded one.
 */
import { callHash } from './call.ts'
import type { ToolCall } from './conversation.ts'
import { globMatches } from './glob.ts'
import type { Hash } from './hash.ts'
import { looksLikeChange, looksLikePoll, saysLittle, saysUnfinished } from './intent.ts'
import {
  EMPTY_TRAIL,
  findLoop,
  follow,
  isInTrail,
  type Loop,
  type LoopLimits,
  type Pattern,
  type Strike,
  spend,
  type Trail,
} from './loop.ts'
import { BACK_OFF_SECONDS, loopNotice } from './loop-notice.ts'
import { outcomeHash, type Volatile } from './volatile.ts'
import type { Work } from './work.ts'

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
  /** The calls of the loop it was said about. */
  readonly loop: string
  readonly warnings: number
  /** How often each of its calls was made, up to the newest warning. */
  readonly count: number
}

/** What a session remembers of a run for the guard. Bounded, and plain JSON. */
export interface LoopMemory {
  readonly trail: Trail
  readonly ladder: Readonly<Partial<Record<Pattern, Rung>>>
  /** Something new was done since the newest warning. */
  readonly hasMovedOn: boolean
  /** The loop whose calls are being refused; unset while there is none. */
  readonly refusing: Pick<Loop, 'pattern' | 'calls' | 'count'> | undefined
  /** How many responses had calls refused. */
  readonly blocks: number
}

export const NO_LOOP: LoopMemory = {
  trail: EMPTY_TRAIL,
  ladder: {},
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
    isPoll: looksLikePoll(tool, text),
    isChange: looksLikeChange(tool, text),
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
  if (result === undefined) return { id, tool, call, outcome: '', isPoll, isChange }
  const outcome = outcomeHash(result, policy.volatile, work)
  const isWaiting = isPoll || saysUnfinished(result, tool)
  return { id, tool, call, outcome, isPoll: isWaiting, isChange, isBrief: saysLittle(result) }
}

function nameOf(loop: Loop): string {
  return [...loop.calls].sort().join(' ')
}

/** Is this the loop that the model was told about, or one that it went on to without having done anything else? */
function isIgnored(memory: LoopMemory, loop: Loop): boolean {
  const rung = memory.ladder[loop.pattern]
  return rung !== undefined && (rung.loop === nameOf(loop) || !memory.hasMovedOn)
}

/** How many warnings about this loop were given in vain. */
function warningsGiven(memory: LoopMemory, loop: Loop): number {
  return isIgnored(memory, loop) ? (memory.ladder[loop.pattern]?.warnings ?? 0) : 0
}

/** How often each of the loop's calls was made so far. */
function timesMade(memory: LoopMemory, loop: Loop): number {
  const rung = memory.ladder[loop.pattern]
  return loop.count + (rung?.loop === nameOf(loop) ? rung.count : 0)
}

/** Is the loop one that is refused rather than warned about once more? */
function isRefused(memory: LoopMemory, loop: Loop, { mode, maxWarningsBeforeBlock }: LoopPolicy): boolean {
  // Of calls whose results differ it is not known that they are made in vain.
  if (mode !== 'enforce' || loop.pattern === 'same_call') return false
  return warningsGiven(memory, loop) >= maxWarningsBeforeBlock
}

function backOffOf(loop: Loop, warnings: number): number | undefined {
  const told = loop.pattern === 'same_call' ? warnings : warnings - 1
  return told < 1 ? undefined : BACK_OFF_SECONDS[Math.min(told, BACK_OFF_SECONDS.length) - 1]
}

/** Notes that the model is told about a loop, which begins to count anew. */
function warned(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): [LoopMemory, LoopFinding] {
  const warnings = warningsGiven(memory, loop) + 1
  const count = timesMade(memory, loop)
  const next: LoopMemory = {
    trail: spend(memory.trail, loop.pattern),
    ladder: { ...memory.ladder, [loop.pattern]: { loop: nameOf(loop), warnings, count } },
    hasMovedOn: false,
    // It should have been refused, and could not be.
    refusing: isRefused(memory, loop, policy)
      ? { pattern: loop.pattern, calls: loop.calls, count }
      : memory.refusing,
    blocks: memory.blocks,
  }
  return [next, { ...loop, id, warnings, notice: loopNotice(loop, backOffOf(loop, warnings)) }]
}

/**
 * The ladder without what was said about loops of this call, which has now brought another result: whoever waited for that
 * and waits again has ignored nothing. Where any results count, it changes nothing.
 */
function withoutLoopsOf(ladder: LoopMemory['ladder'], call: Hash): LoopMemory['ladder'] {
  const kept = Object.entries(ladder).filter(
    ([pattern, { loop }]) => pattern === 'same_call' || !loop.split(' ').includes(call),
  )
  return kept.length === Object.keys(ladder).length ? ladder : Object.fromEntries(kept)
}

function takeIn(memory: LoopMemory, call: LoopCall, step: number, policy: LoopPolicy): LoopMemory {
  const trail = follow(memory.trail, call, step, policy)
  const isNew = trail.window.at(-1)?.isNew === true
  const { refusing, blocks } = memory
  // What is only forgotten was no other result.
  const isOther = isNew && memory.ladder !== NO_LOOP.ladder && isInTrail(memory.trail, call.call)
  const ladder = isOther ? withoutLoopsOf(memory.ladder, call.call) : memory.ladder
  if (isNew && refusing?.calls.includes(call.call) === false) {
    // What is new and different leaves the loop, and what was counted of it counts no more.
    const left = follow(spend(memory.trail), call, step, policy)
    return { trail: left, ladder, hasMovedOn: true, refusing: undefined, blocks }
  }
  return { trail, ladder, hasMovedOn: memory.hasMovedOn || isNew, refusing, blocks }
}

/**
 * Takes what one response called into account, with the results. Equal calls of one response count once. At most one
 * loop is found in it.
 */
export function observeStep(
  memory: LoopMemory,
  calls: readonly LoopCall[],
  policy: LoopPolicy,
): { readonly memory: LoopMemory; readonly finding: LoopFinding | undefined } {
  const step = memory.trail.steps + 1
  let next = memory
  let finding: LoopFinding | undefined
  const counted = calls.length > 1 ? new Set<Hash>() : undefined
  for (const call of calls) {
    if (counted?.has(call.call)) continue
    counted?.add(call.call)
    next = takeIn(next, call, step, policy)
    const loop = finding === undefined ? findLoop(next.trail, policy) : undefined
    if (loop) [next, finding] = warned(next, loop, call.id, policy)
  }
  return { memory: next, finding }
}

interface Refused {
  readonly loop: Pick<Loop, 'pattern' | 'calls'>
  readonly count: number
}

/** Was nothing said about any loop, and is no call refused before something is? */
export function isUnwarned(memory: LoopMemory, policy: LoopPolicy): boolean {
  for (const _ in memory.ladder) return false
  return memory.refusing === undefined && !mayBlock(memory, policy)
}

/** Has the model been warned often enough about any loop for a call of it to be refused? */
function mayBlock({ refusing, ladder }: LoopMemory, { mode, maxWarningsBeforeBlock }: LoopPolicy): boolean {
  if (mode !== 'enforce') return false
  if (refusing || maxWarningsBeforeBlock === 0) return true
  // No loop was warned about yet, as in nearly all runs.
  if (ladder === NO_LOOP.ladder) return false
  return Object.values(ladder).some(({ warnings }) => warnings >= maxWarningsBeforeBlock)
}

/** Would making this call once more, with what came of it last, complete a loop that was warned about often enough? */
function refusalOf(memory: LoopMemory, call: Hash, policy: LoopPolicy): Refused | undefined {
  if (!mayBlock(memory, policy)) return undefined
  const { refusing, trail } = memory
  if (refusing?.calls.includes(call)) return { loop: refusing, count: refusing.count }
  const last = trail.window.findLast((trace) => trace.call === call)
  if (!last) return undefined
  const next = follow(trail, last, trail.steps + 1, policy)
  const loop = findLoop(next, policy)
  if (!loop || !isRefused(memory, loop, policy)) return undefined
  return { loop, count: timesMade(memory, loop) - 1 }
}

/** Is there a call that would be refused? While there is none, a response need not be read. */
export function mayRefuse(memory: LoopMemory, policy: LoopPolicy): boolean {
  if (!mayBlock(memory, policy)) return false
  if (memory.refusing) return true
  const known = new Set(memory.trail.window.map(({ call }) => call))
  return [...known].some((call) => refusalOf(memory, call, policy) !== undefined)
}

/**
 * Judges the calls of a response that is on its way to the client. `refusals` has an entry for each call, in order:
 * `undefined` lets it through. `endsRun`: calls of this run were refused once too often.
 */
export function refuseCalls(
  memory: LoopMemory,
  calls: readonly Pick<LoopCall, 'tool' | 'call'>[],
  policy: LoopPolicy,
): {
  readonly memory: LoopMemory
  readonly refusals: readonly (Refusal | undefined)[]
  readonly endsRun: boolean
} {
  if (!mayBlock(memory, policy)) return { memory, refusals: calls.map(() => undefined), endsRun: false }
  const refused = calls.map(({ tool, call }) =>
    isExempt(tool, policy) ? undefined : refusalOf(memory, call, policy),
  )
  const refusals = calls.map(({ tool, call }, at): Refusal | undefined => {
    const found = refused[at]
    return found && { pattern: found.loop.pattern, tool, call, count: found.count }
  })
  const first = refused.find((found) => found !== undefined)
  if (!first) return { memory, refusals, endsRun: false }
  const { pattern, calls: loopCalls } = first.loop
  const blocks = memory.blocks + 1
  return {
    memory: { ...memory, blocks, refusing: { pattern, calls: loopCalls, count: first.count } },
    refusals,
    endsRun: blocks >= MAX_BLOCKS,
  }
}

/** A human has spoken: a new run, in which nothing was said and nothing is refused. Equal calls in a row still count. */
export function humanSpoke({ trail }: LoopMemory): LoopMemory {
  const { ladder, hasMovedOn, refusing, blocks } = NO_LOOP
  return {
    trail: { window: [], streak: trail.streak, steps: trail.steps },
    ladder,
    hasMovedOn,
    refusing,
    blocks,
  }
}
