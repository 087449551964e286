/**
 * Follows a live conversation for the loop guard, request by request: takes in the calls that are new since the last
 * one, and remembers what is to be said about them, as a request that is sent again must be told the same.
 */

import { type Conversation, lastMessage, startOfNewest, type ToolCall } from '../conversation.ts'
import type { ScaffoldRegistry } from '../harness/match.ts'
import { type Hash, hashOfText } from '../hash.ts'
import { withNewest } from '../newest.ts'
import { hashOfStep, humanWords, type Reading } from '../session/transcript.ts'
import { callHash } from './call-hash.ts'
import {
  humanSpoke,
  type LoopCall,
  type LoopFinding,
  type LoopMemory,
  type LoopPolicy,
  NO_LOOP,
  observeStep,
  type Refusal,
  refuseCalls,
} from './escalation.ts'
import { refusalText } from './notice.ts'
import { answeredCalls, type KnownCall, withMade } from './pending-calls.ts'
import { nameOutcome } from './result-hash.ts'
import { isGivenTerse, isUnfinished } from './tool-result.ts'
import {
  callsAt,
  type Looking,
  lookingAt,
  MAX_UNKNOWN,
  resultBefore,
  resultsAfter,
} from './transcript-calls.ts'

/** What a thread remembers for the guard; plain JSON, bounded. */
export interface Guarded {
  readonly memory: LoopMemory
  /** The newest assistant messages that were taken in, oldest first. */
  readonly known: readonly Hash[]
  /** Where in the transcript the newest of them stood: two messages of one content are told apart by nothing else. */
  readonly at: number
  /** What a human said last, in words. */
  readonly human: Hash | undefined
  /** What was found in the newest of them. */
  readonly finding: LoopFinding | undefined
  /** Calls that no transcript shows, oldest first. */
  readonly made: readonly KnownCall[] | undefined
  /** Calls were refused that no transcript shows; the model is still to be told, */
  readonly untold: string | undefined
  /** or is told in answer to the newest assistant message. */
  readonly told: string | undefined
  /** The request whose response had calls refused last, and how many responses had before it. */
  readonly refusedIn: { readonly request: string; readonly blocks: number } | undefined
}

export const UNGUARDED: Guarded = {
  memory: NO_LOOP,
  known: [],
  at: -1,
  human: undefined,
  finding: undefined,
  made: undefined,
  untold: undefined,
  told: undefined,
  refusedIn: undefined,
}

/** How many assistant messages are remembered by name. */
const MAX_KNOWN = 16

/** A request's transcript, as far as the guard needs it. Pure: it may be read more than once. */
export interface Transcript {
  readonly conversation: Conversation
  /** Of all messages but the last. */
  readonly reading: Reading
  readonly registry: ScaffoldRegistry
  /** Names what the request goes on from, where that is not in it: its results belong to calls of an earlier response. */
  readonly goesOnFrom: Hash | undefined
}

/** How one message of a transcript is taken in. */
interface Followed {
  /** When its results came, in milliseconds; unset where that is not known. */
  readonly now?: number | undefined
  /** Calls that are not there for the agent. */
  readonly isLeftOut?: (call: Hash) => boolean
}

/** Takes in what one response called. */
function observeAt(
  { memory, made: known = [] }: Guarded,
  looking: Looking,
  index: number,
  { now, isLeftOut }: Followed,
): ReturnType<typeof observeStep> {
  const { conversation, policy } = looking
  let { trail } = memory
  const calls: LoopCall[] = []
  const counted = new Set<Hash>()
  const called = known.length > 0 ? callsAt(conversation, index, policy, known) : looking.callsAt(index)
  for (const { id, made, result } of called) {
    const { tool, call, isPoll, isChange, isExempt } = made
    if (isExempt || isLeftOut?.(call)) continue
    // Equal calls of one response count once; another result of such a one must not rename what came of it.
    if (counted.has(call)) continue
    counted.add(call)
    if (!result) {
      calls.push({ id, tool, call, outcome: '', isPoll, isChange, isTerse: true })
      continue
    }
    const named = nameOutcome(
      trail,
      call,
      result,
      policy.volatile,
      (isIt) => resultBefore(looking, index, call, isIt),
      conversation.work,
    )
    trail = named.trail
    const isWaiting = isPoll || isUnfinished(result)
    const isTerse = isGivenTerse(result)
    calls.push({ id, tool, call, outcome: named.outcome, isPoll: isWaiting, isChange, isTerse })
  }
  return observeStep(trail === memory.trail ? memory : { ...memory, trail }, calls, policy, now)
}

/** Where in a transcript the messages begin that were not taken in: after the newest that was. */
function firstNew({ known, at }: Guarded, { conversation, reading }: Transcript, oldest: number): number {
  const { assistants } = reading
  const last = known.at(-1)
  if (last === undefined) return oldest
  const same = assistants.find(({ index }) => index === at)
  if (same && hashOfStep(same, conversation) === last) return at + 1
  // A history that was compacted, or went back.
  const newest = assistants.findLast((step) => known.includes(hashOfStep(step, conversation)))
  return newest ? newest.index + 1 : oldest
}

/** Is it a loop of equal calls, rather than of several in turn? */
function isRow(finding: LoopFinding | undefined): boolean {
  return finding?.pattern === 'repetition' || finding?.pattern === 'same_call'
}

/** What a message changes: a person's words begin anew, a response's calls are taken in with their results. */
export function followMessage(
  guarded: Guarded,
  looking: Looking,
  registry: ScaffoldRegistry,
  index: number,
  followed: Followed = {},
): Guarded {
  const { conversation } = looking
  const words = humanWords(conversation, index, registry)
  if (words !== undefined) {
    const human = hashOfText(words)
    const isRepeated = words !== '' && human === guarded.human
    const memory = humanSpoke(guarded.memory, isRepeated)
    // What a harness says after each step comes between the calls of a row and what the model is to be told about them.
    const finding = isRepeated && isRow(guarded.finding) ? guarded.finding : undefined
    return { ...guarded, memory, human, finding, untold: undefined, told: undefined }
  }
  if (conversation.role(index) !== 'assistant') return guarded
  const { memory, finding } = observeAt(guarded, looking, index, followed)
  return { ...guarded, memory, finding, at: index, told: guarded.untold, untold: undefined }
}

/**
 * Takes in what a request shows that was not known. The same request again changes nothing. `now`: when its newest
 * results came, in milliseconds.
 */
export function guard(guarded: Guarded, transcript: Transcript, policy: LoopPolicy, now?: number): Guarded {
  const { conversation, reading, registry, goesOnFrom } = transcript
  const looking = lookingAt(conversation, policy)
  const from = firstNew(guarded, transcript, startOfNewest(conversation, MAX_UNKNOWN))
  const last = lastMessage(conversation)
  const newest = reading.assistants.at(-1)?.index
  let next = guarded
  if (goesOnFrom !== undefined && !next.known.includes(goesOnFrom)) {
    const known = withNewest(next.known, goesOnFrom, MAX_KNOWN)
    const calls = answeredCalls(next.made ?? [], resultsAfter(conversation, -1), policy, conversation.work)
    const { memory, finding } = observeStep(next.memory, calls, policy, now)
    next = { ...next, memory, known, at: -1, finding, told: next.untold, untold: undefined }
  }
  for (let index = from; index < conversation.length; index++) {
    // A call whose result is still to come is none yet.
    if (index === last && conversation.role(index) === 'assistant') continue
    next = followMessage(next, looking, registry, index, index === newest ? { now } : {})
    const step = reading.assistants.find((one) => one.index === index)
    if (step) next = { ...next, known: withNewest(next.known, hashOfStep(step, conversation), MAX_KNOWN) }
  }
  return next
}

/** Goes on after a request that can't be taken in: the next one begins where it ended, and nothing is said now. */
export function skip(guarded: Guarded, { conversation, reading, goesOnFrom }: Transcript): Guarded {
  // What it took so far is no reason to leave out what comes after it.
  conversation.work?.paused()
  const newest = reading.assistants.at(-1)
  const known = newest ? [hashOfStep(newest, conversation)] : []
  return {
    ...guarded,
    known: goesOnFrom === undefined ? known : [goesOnFrom, ...known],
    at: newest?.index ?? -1,
    finding: undefined,
    untold: undefined,
    told: undefined,
  }
}

/** Takes in what a response called whose conversation its provider keeps. */
export function made(guarded: Guarded, calls: readonly ToolCall[], policy: LoopPolicy): Guarded {
  return calls.length === 0 ? guarded : { ...guarded, made: withMade(guarded.made ?? [], calls, policy) }
}

/** What becomes of the calls of one response. */
export interface Refused {
  /** One entry for each call, in order: `undefined` lets it through. */
  readonly refusals: readonly (Refusal | undefined)[]
  /** Calls of this run were refused once too often. */
  readonly endsRun: boolean
}

/**
 * Judges the calls of a response that is on its way to the client at `now`, in milliseconds, and remembers what was refused.
 * `request` names what it answers; `isAgain`: the model was asked again for it. A request that is sent again is judged as
 * it was before.
 */
export function refuse(
  guarded: Guarded,
  calls: readonly ToolCall[],
  policy: LoopPolicy,
  request: string,
  isAgain: boolean,
  now: number,
): { readonly guarded: Guarded; readonly refused: Refused } {
  const { refusedIn } = guarded
  const isSentAgain = !isAgain && refusedIn?.request === request
  const before = isSentAgain ? { ...guarded.memory, blocks: refusedIn.blocks } : guarded.memory
  const made = calls.map(({ name, arguments: text }) => ({ tool: name, call: callHash(name, text) }))
  const { memory, refusals, endsRun } = refuseCalls(before, made, policy, now)
  // A model whose calls are all refused is asked again, and sees why. One that keeps some learns of the others later.
  const isPart = refusals.some((refusal) => !refusal)
  const texts = refusals.flatMap((refusal) => (refusal ? [refusalText(refusal.tool, refusal.count)] : []))
  return {
    guarded: {
      ...guarded,
      memory,
      ...(isAgain || memory === before ? {} : { refusedIn: { request, blocks: before.blocks } }),
      ...(isPart && texts.length > 0 ? { untold: [...new Set(texts)].join('\n\n') } : {}),
    },
    refused: { refusals, endsRun },
  }
}
