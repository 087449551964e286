/** How the loop guard reacts to a loop: it warns, warns with advice to wait, blocks the calls, ends the run. */
import type { ToolCall } from '../conversation/conversation.ts'
import type { Hash } from '../hash.ts'
import {
  addToHistory,
  type CallHistory,
  EMPTY_HISTORY,
  isSamePair,
  MAX_CALLS,
  type ToolCallRecord,
} from './call-history.ts'
import { BACK_OFF_SECONDS, loopNotice } from './loop-notices.ts'
import { findLoop, isExempt, type Loop, type LoopPolicy, NAMES, PATTERNS, type Pattern } from './patterns.ts'
import { callHash, hashOfAll } from './tool-call.ts'

/** One call of a response. */
export interface LoopCall extends ToolCallRecord {
  /** Its place among the calls of its response. */
  readonly at: number
}

/** Warnings about loops. */
interface Warnings {
  /** How many warnings the model got about loops of a pattern since it last did something new. */
  readonly levels: Readonly<Partial<Record<Pattern, number>>>
  /** The model got such a warning in this run. */
  readonly wasWarned: boolean
  /** The calls that the model was warned about, the newest last. */
  readonly warnedCalls: readonly Hash[]
  /** The loop whose calls are to be blocked; unset while no calls are blocked. */
  readonly blockedLoop?: LoopToBlock | undefined
}

/** The loop guard's memory of a run: plain JSON of bounded size. */
export interface LoopMemory extends Warnings {
  readonly history: CallHistory
  /** The loops that were found, the newest last, by the hash of their calls; `count` up to when each was found last. */
  readonly loops: readonly (Pick<Loop, 'pattern' | 'count'> & { readonly loop: Hash })[]
  /** These and the refused warnings; `isMute`: no channel was left for the newest, about the response `step`. */
  readonly attempted?: (Warnings & { readonly isMute: boolean; readonly step: number }) | undefined
  /** The newest equal answers to a call that waits: when each came, in milliseconds, oldest first. */
  readonly answers?: { readonly call: Hash; readonly times: readonly number[] } | undefined
  /** How many responses had calls that were to be blocked. */
  readonly blocks: number
  /** Number of the newest response whose calls the agent made although they were to be blocked. */
  readonly failedAt?: number | undefined
  /** Request and number of the last response with blocked calls, and how many had blocked calls before it. */
  readonly lastBlock?: { readonly request: string; readonly step?: number; readonly blocks: number } | undefined
}

/** All members from the beginning: V8 copies an object slowly if the copy has further ones. */
export const NO_LOOP: LoopMemory = {
  history: EMPTY_HISTORY,
  loops: [],
  levels: {},
  wasWarned: false,
  warnedCalls: [],
  attempted: undefined,
  answers: undefined,
  blockedLoop: undefined,
  blocks: 0,
  failedAt: undefined,
  lastBlock: undefined,
}

/** A loop that was found, with the notice about it. */
export interface LoopFinding extends Loop {
  /** The place of the call that completed it among the calls of its response. */
  readonly at: number
  readonly tools: readonly string[]
  /** Its calls, and all others of the same response that brought nothing new: the model is warned about each. */
  readonly warnedCalls: readonly Hash[]
  /** How often the model was warned, this time included. */
  readonly warnings: number
  readonly notice: string
}

/** A call that is blocked. */
interface BlockedCall extends Pick<Loop, 'pattern' | 'count'> {
  readonly tool: string
  /** Hash of the call, or of all calls of a response that has too many to compare one by one. */
  readonly call: Hash
}

/** A call that waits is blocked after so many equal answers within so many milliseconds. */
const MAX_ANSWERS = 40
const ANSWERS_WITHIN = 600_000

/** So many times more warnings may be ignored if all results are terse. */
const TERSE_TIMES = 2

/** The most loops, and calls that the model was warned about, that are remembered. */
const MAX_LOOPS = 16
const MAX_WARNED_CALLS = 64

/** The memory after a response, and the loop that it completes if the model gets a notice about that. */
type Observed = { readonly memory: LoopMemory; readonly finding: LoopFinding | undefined }

/** True if a loop may be work and the model has had its one notice, about the loop or about all of its calls. */
function wasTold({ loops, warnedCalls }: LoopMemory, { calls, hasNews }: Loop): boolean {
  if (!hasNews) return false
  const hash = hashOfAll(calls)
  return loops.some(({ loop }) => loop === hash) || calls.every((call) => warnedCalls.includes(call))
}

/**
 * Returns the memory after a loop was found, whose calls are not counted again, and the finding if the model gets a
 * notice about it. `at`: the place of the call that completed it. A notice is due about a loop
 * - that may be work, because something new came in between or may have: once, see `wasTold`;
 * - that waits: again whenever it has asked twice as often;
 * - of any other kind: each time; but after something new only if it goes on without anything new.
 */
function react(memory: LoopMemory, loop: Loop, at: number): Observed {
  const { pattern, hasNews, isWaiting } = loop
  const { history, loops, levels } = memory
  const { onlyWarns } = PATTERNS[pattern]
  const hash = hashOfAll(loop.calls)
  const known = loops.find((other) => other.loop === hash)
  const before = known?.count ?? 0
  const count = before + loop.count
  const next: LoopMemory = {
    ...memory,
    // A pattern that may not block leaves equal results in a row, else a threshold above its own were never reached.
    history: {
      ...history,
      repeats: { ...history.repeats, any: 0, ...(onlyWarns ? {} : { equal: 0, similar: 0 }) },
      handledAt: history.steps,
    },
    loops: [...loops.filter((other) => other !== known).slice(1 - MAX_LOOPS), { loop: hash, pattern, count }],
  }
  const doublings = (times: number) => Math.floor(Math.log2(times / loop.count))
  const hasProgress = history.mayBeNewsAt > history.handledAt
  const isDue = isWaiting && !hasNews ? doublings(count) > doublings(before) : !known || !hasProgress
  if (!isDue) return { memory: next, finding: undefined }
  const others = history.window.filter(({ step, mayBeNew }) => step === history.steps && !mayBeNew)
  const calls = [...new Set([...loop.calls, ...others.map(({ call }) => call)])]
  const tools = calls.map((call) => history.window.findLast((entry) => entry.call === call)?.tool ?? '')
  const warnings = hasNews ? 1 : isWaiting ? doublings(count) + 1 : (levels[pattern] ?? 0) + 1
  const advised = isWaiting || onlyWarns ? warnings : warnings - 1
  const described = isWaiting ? { ...loop, count, span: loop.span + before * loop.calls.length } : loop
  const backOff = BACK_OFF_SECONDS[Math.min(advised, BACK_OFF_SECONDS.length) - 1]
  const notice = loopNotice(described, tools, backOff)
  const finding = { ...described, at, tools: tools.slice(0, loop.calls.length), warnedCalls: calls, warnings, notice }
  return { memory: next, finding }
}

/** Returns warnings with one more. Only one about certain repetition can be ignored. */
function withWarning(
  { levels, wasWarned, warnedCalls: known, blockedLoop }: Warnings,
  { pattern, warnedCalls, hasNews, isWaiting }: LoopFinding,
): Warnings {
  const others = known.filter((call) => !warnedCalls.includes(call))
  const calls = [...others, ...new Set(warnedCalls)].slice(-MAX_WARNED_CALLS)
  if (hasNews || isWaiting) return { levels, wasWarned, warnedCalls: calls, blockedLoop }
  const raised = { ...levels, [pattern]: (levels[pattern] ?? 0) + 1 }
  return { levels: raised, wasWarned: true, warnedCalls: calls, blockedLoop }
}

/** Returns the memory after the model got the notice of a finding. */
export function warningSent(memory: LoopMemory, finding: LoopFinding): LoopMemory {
  return { ...memory, ...withWarning(memory, finding), attempted: undefined }
}

/** Returns the memory after the provider refused the notice of a finding. `isMute`: no channel is left for notices. */
export function warningRefused(memory: LoopMemory, finding: LoopFinding, isMute: boolean): LoopMemory {
  const { attempted, history } = memory
  // A request that is sent again has the same notice.
  if (attempted?.step === history.steps) return memory
  return { ...memory, attempted: { ...withWarning(attempted ?? memory, finding), isMute, step: history.steps } }
}

/** Returns the memory after a harness reported a loop: one that Governor warned about as well is blocked next. */
export function harnessWarned(memory: LoopMemory, { maxWarningsBeforeBlock }: LoopPolicy): LoopMemory {
  const { pattern } = currentLoop(memory) ?? {}
  if (!pattern || !memory.levels[pattern]) return memory
  // As many as results that are terse need.
  return { ...memory, levels: { ...memory.levels, [pattern]: TERSE_TIMES * maxWarningsBeforeBlock } }
}

/** Returns the loop that was found last; `undefined` if the run did something that may be new since. */
export function currentLoop({ history, loops }: LoopMemory): Pick<Loop, 'pattern' | 'count'> | undefined {
  const newest = history.mayBeNewsAt > history.handledAt ? undefined : loops.at(-1)
  return newest && { ...newest, count: newest.count + history.repeats.equal }
}

/**
 * Returns the memory with the results of one response, and at most one loop that they complete. `now`: when they came,
 * in milliseconds, if that is known; `isPast`: too late for a notice. A call that was made although it was to be
 * blocked, as Governor could not act on the response, is a failed block, unless it brought something new.
 */
export function observeStep(
  memory: LoopMemory,
  calls: readonly LoopCall[],
  policy: LoopPolicy,
  now?: number,
  isPast = false,
): Observed {
  const step = memory.history.steps + 1
  const left = new Set(calls.map(({ call }) => call))
  let next = memory
  let found: { readonly loop: Loop; readonly at: number } | undefined
  let failed: LoopToBlock | undefined
  for (const record of calls) {
    const { call, at, isPoll } = record
    if (!left.delete(call)) continue
    const history = addToHistory(next.history, record, step, policy.repetitionThreshold)
    let { answers, attempted, blockedLoop, levels } = next
    if (!isPast) failed ??= madeInSpite(next, record, policy, left.size === 0, step)
    if (history.window.at(-1)?.mayBeNew) {
      answers = undefined
      levels = NO_LOOP.levels
      // Only a different call leaves the loop.
      const stays = (one: Warnings['blockedLoop']) => (one?.calls.includes(call) ? one : undefined)
      blockedLoop = stays(blockedLoop)
      attempted = attempted && { ...attempted, levels, blockedLoop: stays(attempted.blockedLoop) }
    }
    if (isPoll && now !== undefined && (!answers || answers.call === call))
      answers = { call, times: [...(answers?.times ?? []), now].slice(-MAX_ANSWERS) }
    next = { ...next, history, levels, attempted, answers, blockedLoop }
    if (found || isPast) continue
    const loop = findLoop(history, policy, next.wasWarned || attempted?.wasWarned === true, left.size === 0)
    // Another call of the response may complete a loop that the model was not told about.
    if (loop && !wasTold(next, loop)) found = { loop, at }
  }
  // A block that was counted when the response came is not counted again.
  if (failed && next.history.mayBeNewsAt < step && next.lastBlock?.step !== step) {
    const { attempted, blocks } = next
    // A warning that the model never got lets no call be blocked.
    const noted = attempted?.isMute ? { attempted: { ...attempted, blockedLoop: failed } } : { blockedLoop: failed }
    next = { ...next, ...noted, blocks: blocks + 1, failedAt: step }
  }
  return found ? react(next, found.loop, found.at) : { memory: next, finding: undefined }
}

/** Returns the loop for which a call with its result was to be blocked; `undefined` if it might be made. */
function madeInSpite(memory: LoopMemory, made: ToolCallRecord, policy: LoopPolicy, isLast: boolean, step: number) {
  const before = memory.history.window.findLast(({ call }) => call === made.call)
  if (!before || !isSamePair(before, made, true)) return undefined
  const judged = { ...memory, ...(memory.attempted?.isMute ? memory.attempted : {}), answers: undefined }
  return loopToBlock(judged, made.call, policy, 0, isLast, step)
}

/** Returns the loop that ends a run, as enough responses had calls to block, and the tool of the newest call. */
export function endingLoop(memory: LoopMemory, { mode, maxBlocks }: LoopPolicy) {
  if (mode !== 'enforce' || memory.blocks < maxBlocks) return undefined
  const loop = currentLoop(memory) ?? memory.blockedLoop ?? memory.attempted?.blockedLoop
  return loop && { pattern: loop.pattern, count: loop.count, tool: memory.history.window.at(-1)?.tool ?? '' }
}

type LoopToBlock = Pick<Loop, 'pattern' | 'calls' | 'count'> & { readonly isWaiting?: boolean }

/**
 * Returns the loop, to be blocked, that `call` would complete with a known result, and the count of the call. `isLast`:
 * no other call of the response can bring anything new; `step`: the number of the response.
 */
function loopToBlock(
  memory: LoopMemory,
  call: Hash,
  policy: LoopPolicy,
  now: number,
  isLast: boolean,
  step = memory.history.steps + 1,
): LoopToBlock | undefined {
  const { answers, blockedLoop, history, levels, loops, wasWarned, warnedCalls } = memory
  const { mode, maxWarningsBeforeBlock, repetitionThreshold } = policy
  if (mode !== 'enforce' || (maxWarningsBeforeBlock > 0 && !warnedCalls.includes(call))) return undefined
  const made = history.window.filter((entry) => entry.call === call)
  let loop: LoopToBlock | undefined = blockedLoop?.calls.includes(call) ? blockedLoop : undefined
  if (!loop) {
    const { times = [] } = answers?.call === call ? answers : {}
    // An answer from the future has the time of another clock, or of one that was set back since.
    if (times.length === MAX_ANSWERS && times.every((at) => at <= now && now - at <= ANSWERS_WITHIN))
      return { pattern: 'repetition', calls: [call], isWaiting: true, count: MAX_ANSWERS }
    const isIgnored = (pattern: Pattern, times = 1) => (levels[pattern] ?? 0) >= maxWarningsBeforeBlock * times
    const patterns = NAMES.filter((pattern) => !PATTERNS[pattern].onlyWarns && isIgnored(pattern))
    if (patterns.length === 0) return undefined
    // A call may bring each of its known results in turn: none of them is new.
    const results = new Map(made.map((entry) => [entry.resultHash, entry]))
    for (const entry of results.values()) {
      const next = addToHistory(history, entry, step, repetitionThreshold)
      const found = findLoop(next, policy, wasWarned, isLast, patterns)
      if (!found || found.hasNews || found.isWaiting) continue
      // Results that are too short to show any progress need twice the warnings.
      const isTerse = history.window.every((one) => one.isTerse || !found.calls.includes(one.call))
      if (isTerse && !isIgnored(found.pattern, TERSE_TIMES)) continue
      const hash = hashOfAll(found.calls)
      const before = loops.find((known) => known.loop === hash)?.count ?? 0
      // The warnings before may have been about another call of the same responses.
      const times = made.filter((one) => isSamePair(one, entry, true)).length
      loop = { pattern: found.pattern, calls: found.calls, count: Math.max(before + found.count - 1, times) }
    }
  }
  if (!loop) return undefined
  // A pattern that counts responses does not say how often the call was made.
  return PATTERNS[loop.pattern].isOfResponses ? { ...loop, count: made.length } : loop
}

/** True if some call would be blocked at `now` (milliseconds); otherwise the response need not be read. */
export function mayBlock(memory: LoopMemory, policy: LoopPolicy, now: number): boolean {
  const { blockedLoop, warnedCalls, history } = memory
  // Nearly all runs have had no warning.
  if (policy.mode !== 'enforce' || (warnedCalls.length === 0 && policy.maxWarningsBeforeBlock > 0)) return false
  if (blockedLoop) return true
  const calls = new Set(history.window.map(({ call }) => call))
  return [...calls].some((call) => loopToBlock(memory, call, policy, now, true))
}

/**
 * Decides which calls of a response to `request` (its hash; once per request) are blocked: `blocked` has an entry for
 * each. `isAgain`: Governor asked again; `endsRun`: so many responses had blocked calls.
 */
export function blockCalls(
  memory: LoopMemory,
  calls: readonly Pick<ToolCall, 'name' | 'arguments'>[],
  policy: LoopPolicy,
  request: string,
  isAgain: boolean,
  now: number,
): { readonly memory: LoopMemory; readonly blocked: readonly (BlockedCall | undefined)[]; readonly endsRun: boolean } {
  const known = new Set(memory.history.window.map(({ call }) => call))
  const hashes = calls.map(({ name, arguments: text }) => (isExempt(name, policy) ? undefined : callHash(name, text)))
  const distinct = new Set(hashes.filter((hash) => hash !== undefined))
  const batch = distinct.size > MAX_CALLS ? hashOfAll(distinct) : undefined
  const isNothingNew = batch === undefined ? hashes.every((hash) => hash && known.has(hash)) : known.has(batch)
  const loops = new Map<Hash, LoopToBlock>()
  for (const call of batch === undefined ? distinct : [batch]) {
    const loop = loopToBlock(memory, call, policy, now, isNothingNew)
    if (loop) loops.set(call, loop)
  }
  const blocked = calls.map(({ name: tool }, at) => {
    const call = hashes[at] && (batch ?? hashes[at])
    const loop = call && loops.get(call)
    return loop && { pattern: loop.pattern, tool, call, count: loop.count }
  })
  const { lastBlock } = memory
  const isSentAgain = !isAgain && lastBlock?.request === request
  const before = isSentAgain ? lastBlock.blocks : memory.blocks
  const [first] = loops.values()
  if (!first) return { memory: isSentAgain ? { ...memory, blocks: before } : memory, blocked, endsRun: false }
  const after: LoopMemory = {
    ...memory,
    blocks: before + 1,
    // A call that waits may be made again after a while.
    blockedLoop: first.isWaiting ? memory.blockedLoop : first,
    lastBlock: isAgain ? lastBlock : { request, step: memory.history.steps + 1, blocks: before },
  }
  return { memory: after, blocked, endsRun: after.blocks >= policy.maxBlocks }
}

/** Returns the memory after a human spoke; after repeated words, as of some harnesses, calls in a row count on. */
export function humanSpoke({ history }: LoopMemory, isRepeated = false): LoopMemory {
  if (!isRepeated) return NO_LOOP
  return { ...NO_LOOP, history: { ...history, window: history.window.slice(-1), handledAt: history.steps } }
}
