/**
 * How the loop guard reacts to a run in a loop: it warns the model, warns again with advice to wait, then blocks the
 * repeated calls, and ends a run that makes no others. Nothing is blocked that the model was not warned about.
 *
 * The same functions serve live runs, request by request, and recorded ones.
 */
import type { Hash } from '../hash.ts'
import {
  addToHistory,
  type CallHistory,
  EMPTY_HISTORY,
  MAX_CALLS,
  markHandled,
  type ToolCallRecord,
} from './call-history.ts'
import { BACK_OFF_SECONDS, loopNotice } from './notice.ts'
import { findLoop, type Loop, PATTERNS, type Pattern } from './patterns.ts'
import { isExempt, type LoopPolicy } from './policy.ts'
import { hashOfAll } from './tool-call.ts'

/** One call of a response, with the id that its reader gives it. */
export interface LoopCall extends ToolCallRecord {
  readonly id: string
}

/** A loop that was found in this run. */
interface KnownLoop {
  /** Hash of its calls. */
  readonly loop: Hash
  readonly pattern: Pattern
  /** How often each of its calls was made, up to the newest time that it was found. */
  readonly count: number
  /** The same up to the newest notice about it. */
  readonly noticedAt: number
  /** How many notices about it there were. */
  readonly notices: number
}

/** The loop guard's memory of a run: plain JSON of bounded size. */
export interface LoopMemory {
  readonly history: CallHistory
  /** The loops that were found, the newest last. */
  readonly loops: readonly KnownLoop[]
  /** How many warnings the model got about loops of a pattern; 0 again once it did something new. */
  readonly levels: Readonly<Partial<Record<Pattern, number>>>
  /** The calls that the model was warned about, the newest last. */
  readonly warnedCalls: readonly Hash[]
  /** The newest equal answers to a call that waits: when each came, in milliseconds, oldest first. */
  readonly answers: { readonly call: Hash; readonly times: readonly number[] } | undefined
  /** The loop whose calls are blocked; unset while there is none. */
  readonly blockedLoop: Pick<Loop, 'pattern' | 'calls' | 'count'> | undefined
  /** How many responses had calls blocked. */
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
  /** The tools of its calls. */
  readonly tools: readonly string[]
  /** Its calls, and all others of the same response that brought nothing new: the model is warned about each. */
  readonly warnedCalls: readonly Hash[]
  /** How often the model was warned, this time included. */
  readonly warnings: number
  readonly notice: string
}

/** The memory after a response, and the loop that its calls complete if the model gets a notice about it. */
export interface Observed {
  readonly memory: LoopMemory
  readonly finding: LoopFinding | undefined
}

/** A call that must not reach the client. */
export interface BlockedCall {
  readonly pattern: Pattern
  readonly tool: string
  /** Hash of the call, or of all calls of a response that has too many to compare one by one. */
  readonly call: Hash
  /** How often the call was made before. */
  readonly count: number
}

/** A run ends when so many of its responses had calls blocked. */
export const MAX_BLOCKS = 3

/** A call that waits is blocked after so many equal answers within so many milliseconds. */
const MAX_ANSWERS = 40
const ANSWERS_WITHIN = 600_000

/** The most loops that are remembered, and the most calls that the model was warned about. */
const MAX_LOOPS = 16
const MAX_WARNED_CALLS = 64

/** The factor by which more warnings may be ignored about a loop whose results are too short to show any progress. */
const TERSE_WARNINGS = 2

const loopHash = ({ calls }: Pick<Loop, 'calls'>) => (calls.length === 1 ? calls[0] : hashOfAll(calls))

function knownLoop({ loops }: LoopMemory, loop: Pick<Loop, 'calls'>): KnownLoop | undefined {
  return loops.find((known) => known.loop === loopHash(loop))
}

/** True if the model was warned about a loop in this run. */
const isWarned = ({ levels }: LoopMemory) => Object.keys(levels).length > 0

/** How many warnings about such loops the model got since it did something new. */
const levelOf = ({ levels }: LoopMemory, pattern: Pattern) => levels[pattern] ?? 0

/** True if the run did something that may be new since a loop was found. */
const madeProgress = ({ history }: LoopMemory) => history.mayBeNewsAt > history.handledAt

/** True if the model was warned about a call, or needs no warning. */
function isWarnedAbout({ warnedCalls }: LoopMemory, call: Hash, { maxWarningsBeforeBlock }: LoopPolicy) {
  return maxWarningsBeforeBlock === 0 || warnedCalls.includes(call)
}

/** True if the model has ignored enough warnings about such loops, and some of them were about this call of a loop. */
function mayBlockLoop(memory: LoopMemory, loop: Loop, call: Hash, policy: LoopPolicy): boolean {
  if (!PATTERNS[loop.pattern].mayBlock || loop.hasNews || loop.isWaiting) return false
  const isTerse = memory.history.window.every((entry) => entry.isTerse || !loop.calls.includes(entry.call))
  const max = policy.maxWarningsBeforeBlock * (isTerse ? TERSE_WARNINGS : 1)
  return policy.mode === 'enforce' && levelOf(memory, loop.pattern) >= max && isWarnedAbout(memory, call, policy)
}

/**
 * Returns the memory after a loop was found, whose calls are not counted again. The model gets a notice about a loop
 * - that may be work, because something new came in between or may have: once;
 * - that waits: again whenever it has asked twice as often;
 * - of any other kind: each time; but after something new only if it goes on without anything new.
 */
function react(memory: LoopMemory, loop: Loop, id: string, policy: LoopPolicy): Observed {
  const { pattern, hasNews, isWaiting } = loop
  const { mayBlock } = PATTERNS[pattern]
  const known = knownLoop(memory, loop)
  if (hasNews && (known || loop.calls.every((call) => memory.warnedCalls.includes(call))))
    return { memory, finding: undefined }
  const before = known ?? { count: 0, noticedAt: 0, notices: 0 }
  const count = before.count + loop.count
  const isDue = isWaiting && !hasNews ? count >= 2 * before.noticedAt : !known || !madeProgress(memory)
  const notices = before.notices + (isDue ? 1 : 0)
  const { window, steps } = memory.history
  const others = window.filter(({ step, mayBeNew }) => step === steps && !mayBeNew)
  const calls = [...loop.calls, ...others.map(({ call }) => call)] as const
  const next: LoopMemory = {
    ...memory,
    history: markHandled(memory.history, mayBlock),
    loops: [
      ...memory.loops.filter((other) => other !== known).slice(1 - MAX_LOOPS),
      { loop: loopHash(loop), pattern, count, noticedAt: isDue ? count : before.noticedAt, notices },
    ],
    // The call should have been blocked, but its result is there already.
    blockedLoop: mayBlockLoop(memory, loop, loop.calls.at(-1) ?? loop.calls[0], policy)
      ? { pattern, calls, count }
      : memory.blockedLoop,
  }
  if (!isDue) return { memory: next, finding: undefined }
  const warnings = hasNews ? 1 : isWaiting ? notices : levelOf(memory, pattern) + 1
  const advised = isWaiting || !mayBlock ? warnings : warnings - 1
  const backOff = advised < 1 ? undefined : BACK_OFF_SECONDS[Math.min(advised, BACK_OFF_SECONDS.length) - 1]
  const described = isWaiting ? { ...loop, count, span: loop.span + before.count * loop.calls.length } : loop
  const tools = calls.map((call) => window.findLast((entry) => entry.call === call)?.tool ?? '')
  const finding = {
    ...described,
    id,
    tools: tools.slice(0, loop.calls.length),
    warnedCalls: calls,
    warnings,
    notice: loopNotice({ ...described, tools }, backOff),
  }
  return { memory: next, finding }
}

/** Returns the memory after the model got the notice of a finding. Only such a warning can be ignored. */
export function warningSent(memory: LoopMemory, { pattern, warnedCalls, hasNews, isWaiting }: LoopFinding): LoopMemory {
  const others = memory.warnedCalls.filter((call) => !warnedCalls.includes(call))
  const { levels } = memory
  return {
    ...memory,
    levels: hasNews || isWaiting ? levels : { ...levels, [pattern]: levelOf(memory, pattern) + 1 },
    warnedCalls: [...others, ...new Set(warnedCalls)].slice(-MAX_WARNED_CALLS),
  }
}

/** Returns the loop that was found last; `undefined` if the run did something that may be new since. */
export function currentLoop(memory: LoopMemory): Pick<Loop, 'pattern' | 'count'> | undefined {
  const newest = madeProgress(memory) ? undefined : memory.loops.at(-1)
  return newest && { ...newest, count: newest.count + memory.history.repeats.equal }
}

/** Returns the memory with one more call. `now`: when its result came, in milliseconds; unset if that is not known. */
function addToMemory(
  memory: LoopMemory,
  record: LoopCall,
  step: number,
  policy: LoopPolicy,
  now: number | undefined,
): LoopMemory {
  const { call } = record
  const added = addToHistory(memory.history, record, step, policy)
  const entry = added.window.at(-1)
  if (!entry?.mayBeNew) {
    const { answers } = memory
    const isAnswer = entry?.isPoll && now !== undefined && (!answers || answers.call === call)
    if (!isAnswer) return { ...memory, history: added }
    const times = [...(answers?.times ?? []).slice(1 - MAX_ANSWERS), now]
    return { ...memory, history: added, answers: { call, times } }
  }
  // A different call that may bring something new leaves the loop.
  const isLeft = memory.blockedLoop?.calls.includes(call) === false
  return {
    ...memory,
    history: added,
    levels: Object.fromEntries(Object.keys(memory.levels).map((pattern) => [pattern, 0])),
    answers: entry.isPoll && now !== undefined ? { call, times: [now] } : undefined,
    blockedLoop: isLeft ? undefined : memory.blockedLoop,
  }
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
  for (const [at, call] of distinct.entries()) {
    next = addToMemory(next, call, step, policy, now)
    if (found || isPast) continue
    const loop = findLoop(next.history, policy, isWarned(next), at === distinct.length - 1)
    if (loop) found = { loop, id: call.id }
  }
  return found ? react(next, found.loop, found.id, policy) : { memory: next, finding: undefined }
}

/** A loop to block. `count`: how often the call was made; `isWaiting`: it may be made again later. */
type LoopToBlock = Pick<Loop, 'pattern' | 'calls' | 'count'> & { readonly isWaiting?: boolean }

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
  const { answers, blockedLoop, history } = memory
  if (policy.mode !== 'enforce' || !isWarnedAbout(memory, call, policy)) return undefined
  // A pattern that counts responses does not say how often the call was made.
  const countOf = ({ pattern, count }: Pick<Loop, 'pattern' | 'count'>) =>
    PATTERNS[pattern].isOfResponses ? history.window.filter((entry) => entry.call === call).length : count
  if (blockedLoop?.calls.includes(call)) return { ...blockedLoop, count: countOf(blockedLoop) }
  const { times = [] } = answers?.call === call ? answers : {}
  // An answer from the future has the time of another clock, or of one that was set back since.
  if (times.length === MAX_ANSWERS && times.every((at) => at <= now && now - at <= ANSWERS_WITHIN))
    return { pattern: 'repetition', calls: [call], isWaiting: true, count: MAX_ANSWERS }
  const last = history.window.findLast((entry) => entry.call === call)
  if (!last) return undefined
  const next = addToHistory(history, last, history.steps + 1, policy)
  const loop = findLoop(next, policy, isWarned(memory), isLast)
  if (!loop || !mayBlockLoop(memory, loop, call, policy)) return undefined
  const made = loop.count + (knownLoop(memory, loop)?.count ?? 0) - 1
  return { ...loop, count: countOf({ ...loop, count: made }) }
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
): {
  readonly memory: LoopMemory
  readonly blocked: readonly (BlockedCall | undefined)[]
  readonly endsRun: boolean
} {
  const counted = calls.map(({ tool, call }) => (isExempt(tool, policy) ? undefined : call))
  const distinct = new Set(counted.filter((call) => call !== undefined))
  const batch = distinct.size > MAX_CALLS ? hashOfAll(distinct) : undefined
  const known = new Set(memory.history.window.map(({ call }) => call))
  const isNothingNew = batch === undefined ? calls.every(({ call }) => known.has(call)) : known.has(batch)
  const decided = new Map<Hash, LoopToBlock | undefined>()
  const blocked = calls.map(({ tool }, at): BlockedCall | undefined => {
    const call = counted[at] && (batch ?? counted[at])
    if (call === undefined) return undefined
    if (!decided.has(call)) decided.set(call, loopToBlock(memory, call, policy, now, isNothingNew))
    const loop = decided.get(call)
    return loop && { pattern: loop.pattern, tool, call, count: loop.count }
  })
  const first = [...decided.values()].find((loop) => loop !== undefined)
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
