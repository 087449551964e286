/**
 * Follows a live conversation for the loop guard, request by request: takes in the calls that are new since the last
 * one, and remembers what is to be said about them, as a request that is sent again must be told the same.
 */

import { type Conversation, lastMessage, startOfNewest, type ToolCall } from '../conversation.ts'
import type { HarnessRegistry } from '../harness/match.ts'
import { type Hash, hashOfText } from '../hash.ts'
import { withNewest } from '../newest.ts'
import { assistantHash, type TranscriptState, userText } from '../session/transcript.ts'
import { callHash } from './call-hash.ts'
import {
  type BlockedCall,
  blockCalls,
  humanSpoke,
  type LoopCall,
  type LoopFinding,
  type LoopMemory,
  type LoopPolicy,
  NO_LOOP,
  observeStep,
} from './escalation.ts'
import { blockText } from './notice.ts'
import { addPendingCalls, answeredCalls, type PendingCall } from './pending-calls.ts'
import { hashResult } from './result-hash.ts'
import { isTerseResult, isUnfinished } from './tool-result.ts'
import {
  type CallReader,
  callsAt,
  createCallReader,
  MAX_UNKNOWN,
  resultBefore,
  resultsAfter,
} from './transcript-calls.ts'

/** What a thread remembers for the guard; plain JSON, bounded. */
export interface LoopState {
  readonly memory: LoopMemory
  /** The newest assistant messages that were taken in, oldest first. */
  readonly assistantHashes: readonly Hash[]
  /** Where in the transcript the newest of them stood: two messages of one content are told apart by nothing else. */
  readonly newestIndex: number
  /** What a human said last, in words. */
  readonly lastUserMessage: Hash | undefined
  /** What was found in the newest of them. */
  readonly finding: LoopFinding | undefined
  /** Calls that no transcript shows, oldest first. */
  readonly pendingCalls: readonly PendingCall[] | undefined
  /** Calls were refused that no transcript shows; the model is still to be told, */
  readonly pendingNotice: string | undefined
  /** or is told in answer to the newest assistant message. */
  readonly currentNotice: string | undefined
  /** The request whose response had calls refused last, and how many responses had before it. */
  readonly lastBlock: { readonly request: string; readonly blocks: number } | undefined
}

export const INITIAL_LOOP_STATE: LoopState = {
  memory: NO_LOOP,
  assistantHashes: [],
  newestIndex: -1,
  lastUserMessage: undefined,
  finding: undefined,
  pendingCalls: undefined,
  pendingNotice: undefined,
  currentNotice: undefined,
  lastBlock: undefined,
}

/** How many assistant messages are remembered by name. */
const MAX_KNOWN = 16

/** A request's transcript, as far as the guard needs it. Pure: it may be read more than once. */
export interface Transcript {
  readonly conversation: Conversation
  /** Of all messages but the last. */
  readonly state: TranscriptState
  readonly registry: HarnessRegistry
  /** Names what the request goes on from, where that is not in it: its results belong to calls of an earlier response. */
  readonly previousStep: Hash | undefined
}

/** How one message of a transcript is taken in. */
interface MessageOptions {
  /** When its results came, in milliseconds; unset where that is not known. */
  readonly now?: number | undefined
  /** Calls that are not there for the agent. */
  readonly isLeftOut?: (call: Hash) => boolean
}

/** Takes in what one response called. */
function observeAt(
  { memory, pendingCalls: known = [] }: LoopState,
  looking: CallReader,
  index: number,
  { now, isLeftOut }: MessageOptions,
): ReturnType<typeof observeStep> {
  const { conversation, policy } = looking
  let { history } = memory
  const calls: LoopCall[] = []
  const counted = new Set<Hash>()
  const called = known.length > 0 ? callsAt(conversation, index, policy, known) : looking.callsAt(index)
  for (const { id, signature, result } of called) {
    const { tool, call, isPoll, isChange, isExempt } = signature
    if (isExempt || isLeftOut?.(call)) continue
    // Equal calls of one response count once; another result of such a one must not rename what came of it.
    if (counted.has(call)) continue
    counted.add(call)
    if (!result) {
      calls.push({ id, tool, call, resultHash: '', isPoll, isChange, isTerse: true })
      continue
    }
    const named = hashResult(
      history,
      call,
      result,
      policy.volatile,
      (isIt) => resultBefore(looking, index, call, isIt),
      conversation.work,
    )
    history = named.history
    const isWaiting = isPoll || isUnfinished(result)
    const isTerse = isTerseResult(result)
    calls.push({ id, tool, call, resultHash: named.resultHash, isPoll: isWaiting, isChange, isTerse })
  }
  return observeStep(history === memory.history ? memory : { ...memory, history }, calls, policy, now)
}

/** Where in a transcript the messages begin that were not taken in: after the newest that was. */
function firstUnknown(
  { assistantHashes: known, newestIndex: at }: LoopState,
  { conversation, state }: Transcript,
  oldest: number,
): number {
  const { assistantMessages } = state
  const last = known.at(-1)
  if (last === undefined) return oldest
  const same = assistantMessages.find(({ index }) => index === at)
  if (same && assistantHash(same, conversation) === last) return at + 1
  // A history that was compacted, or went back.
  const newest = assistantMessages.findLast((step) => known.includes(assistantHash(step, conversation)))
  return newest ? newest.index + 1 : oldest
}

/** Is it a loop of equal calls, rather than of several in turn? */
function isRow(finding: LoopFinding | undefined): boolean {
  return finding?.pattern === 'repetition' || finding?.pattern === 'same_call'
}

/** What a message changes: a person's words begin anew, a response's calls are taken in with their results. */
export function observeMessage(
  loopState: LoopState,
  looking: CallReader,
  registry: HarnessRegistry,
  index: number,
  followed: MessageOptions = {},
): LoopState {
  const { conversation } = looking
  const words = userText(conversation, index, registry)
  if (words !== undefined) {
    const human = hashOfText(words)
    const isRepeated = words !== '' && human === loopState.lastUserMessage
    const memory = humanSpoke(loopState.memory, isRepeated)
    // What a harness says after each step comes between the calls of a row and what the model is to be told about them.
    const finding = isRepeated && isRow(loopState.finding) ? loopState.finding : undefined
    return {
      ...loopState,
      memory,
      lastUserMessage: human,
      finding,
      pendingNotice: undefined,
      currentNotice: undefined,
    }
  }
  if (conversation.role(index) !== 'assistant') return loopState
  const { memory, finding } = observeAt(loopState, looking, index, followed)
  return {
    ...loopState,
    memory,
    finding,
    newestIndex: index,
    currentNotice: loopState.pendingNotice,
    pendingNotice: undefined,
  }
}

/**
 * Takes in what a request shows that was not known. The same request again changes nothing. `now`: when its newest
 * results came, in milliseconds.
 */
export function observeTranscript(
  loopState: LoopState,
  transcript: Transcript,
  policy: LoopPolicy,
  now?: number,
): LoopState {
  const { conversation, state, registry, previousStep } = transcript
  const looking = createCallReader(conversation, policy)
  const from = firstUnknown(loopState, transcript, startOfNewest(conversation, MAX_UNKNOWN))
  const last = lastMessage(conversation)
  const newest = state.assistantMessages.at(-1)?.index
  let next = loopState
  if (previousStep !== undefined && !next.assistantHashes.includes(previousStep)) {
    const known = withNewest(next.assistantHashes, previousStep, MAX_KNOWN)
    const calls = answeredCalls(
      next.pendingCalls ?? [],
      resultsAfter(conversation, -1),
      policy,
      conversation.work,
    )
    const { memory, finding } = observeStep(next.memory, calls, policy, now)
    next = {
      ...next,
      memory,
      assistantHashes: known,
      newestIndex: -1,
      finding,
      currentNotice: next.pendingNotice,
      pendingNotice: undefined,
    }
  }
  for (let index = from; index < conversation.length; index++) {
    // A call whose result is still to come is none yet.
    if (index === last && conversation.role(index) === 'assistant') continue
    next = observeMessage(next, looking, registry, index, index === newest ? { now } : {})
    const step = state.assistantMessages.find((one) => one.index === index)
    if (step)
      next = {
        ...next,
        assistantHashes: withNewest(next.assistantHashes, assistantHash(step, conversation), MAX_KNOWN),
      }
  }
  return next
}

/** Goes on after a request that can't be taken in: the next one begins where it ended, and nothing is said now. */
export function skipTranscript(
  loopState: LoopState,
  { conversation, state, previousStep }: Transcript,
): LoopState {
  // What it took so far is no reason to leave out what comes after it.
  conversation.work?.paused()
  const newest = state.assistantMessages.at(-1)
  const known = newest ? [assistantHash(newest, conversation)] : []
  return {
    ...loopState,
    assistantHashes: previousStep === undefined ? known : [previousStep, ...known],
    newestIndex: newest?.index ?? -1,
    finding: undefined,
    pendingNotice: undefined,
    currentNotice: undefined,
  }
}

/** Takes in what a response called whose conversation its provider keeps. */
export function recordCalls(loopState: LoopState, calls: readonly ToolCall[], policy: LoopPolicy): LoopState {
  return calls.length === 0
    ? loopState
    : { ...loopState, pendingCalls: addPendingCalls(loopState.pendingCalls ?? [], calls, policy) }
}

/** What becomes of the calls of one response. */
export interface BlockDecision {
  /** One entry for each call, in order: `undefined` lets it through. */
  readonly blocked: readonly (BlockedCall | undefined)[]
  /** Calls of this run were refused once too often. */
  readonly endsRun: boolean
}

/**
 * Judges the calls of a response that is on its way to the client at `now`, in milliseconds, and remembers what was refused.
 * `request` names what it answers; `isAgain`: the model was asked again for it. A request that is sent again is judged as
 * it was before.
 */
export function decideBlocks(
  loopState: LoopState,
  calls: readonly ToolCall[],
  policy: LoopPolicy,
  request: string,
  isAgain: boolean,
  now: number,
): { readonly loopState: LoopState; readonly decision: BlockDecision } {
  const { lastBlock } = loopState
  const isSentAgain = !isAgain && lastBlock?.request === request
  const before = isSentAgain ? { ...loopState.memory, blocks: lastBlock.blocks } : loopState.memory
  const made = calls.map(({ name, arguments: text }) => ({ tool: name, call: callHash(name, text) }))
  const { memory, blocked, endsRun } = blockCalls(before, made, policy, now)
  // A model whose calls are all refused is asked again, and sees why. One that keeps some learns of the others later.
  const isPart = blocked.some((refusal) => !refusal)
  const texts = blocked.flatMap((refusal) => (refusal ? [blockText(refusal.tool, refusal.count)] : []))
  return {
    loopState: {
      ...loopState,
      memory,
      ...(isAgain || memory === before ? {} : { lastBlock: { request, blocks: before.blocks } }),
      ...(isPart && texts.length > 0 ? { pendingNotice: [...new Set(texts)].join('\n\n') } : {}),
    },
    decision: { blocked, endsRun },
  }
}
