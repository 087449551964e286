/**
 * Follows a live conversation for the loop guard, request by request: adds the calls that are new since the last
 * request, and remembers the notice about them, because a request that is sent again must get the same notice.
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
  type ObservedStep,
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

/** The loop guard's memory of one thread: plain JSON of bounded size. */
export interface LoopState {
  readonly memory: LoopMemory
  /** The memory once the model got the notice about `finding`; unset if it got it, or there is none. */
  readonly memoryIfTold: LoopMemory | undefined
  /** The memory counts notices that nobody was to get, as the guard only observed. */
  readonly isObserved: true | undefined
  /** Hashes of the newest assistant messages that were observed, oldest first. */
  readonly assistantHashes: readonly Hash[]
  /** Index of the newest of them in the transcript: nothing else tells two messages of one content apart. */
  readonly newestIndex: number
  /** Hash of the words that a human said last. */
  readonly lastUserMessage: Hash | undefined
  /** The loop that the newest assistant message completed. */
  readonly finding: LoopFinding | undefined
  /** Calls whose results are to come without them, oldest first. */
  readonly pendingCalls: readonly PendingCall[] | undefined
  /** The notice about calls that Governor removed from the newest response: the model gets it with the next request. */
  readonly pendingNotice: string | undefined
  /** The same notice, once the request that carries it is there: it answers the newest assistant message. */
  readonly currentNotice: string | undefined
  /** The request whose response had calls blocked last, and how many responses had calls blocked before it. */
  readonly lastBlock: { readonly request: string; readonly blocks: number } | undefined
}

export const INITIAL_LOOP_STATE: LoopState = {
  memory: NO_LOOP,
  memoryIfTold: undefined,
  isObserved: undefined,
  assistantHashes: [],
  newestIndex: -1,
  lastUserMessage: undefined,
  finding: undefined,
  pendingCalls: undefined,
  pendingNotice: undefined,
  currentNotice: undefined,
  lastBlock: undefined,
}

/** The most hashes of assistant messages that are remembered. */
const MAX_ASSISTANT_HASHES = 16

/** The transcript of a request, as far as the loop guard needs it. It may be read more than once. */
export interface Transcript {
  readonly conversation: Conversation
  /** State after all messages but the last. */
  readonly state: TranscriptState
  readonly registry: HarnessRegistry
  /** Hash of the response that the request continues, if that is not in it: the results answer that response's calls. */
  readonly previousStep: Hash | undefined
}

/** How one message of a transcript is observed. */
interface MessageOptions {
  /** When its results came, in milliseconds; unset if that is not known. */
  readonly now?: number | undefined
  /** The hash by which an assistant message is remembered; unset if it is not. */
  readonly hash?: Hash | undefined
  /** True for calls that the agent never got. */
  readonly isLeftOut?: (call: Hash) => boolean
}

/** Returns the memory with the calls of the assistant message at `index`, and the loop that they complete. */
function observeCallsAt(
  { memory, pendingCalls = [] }: LoopState,
  reader: CallReader,
  index: number,
  { now, isLeftOut }: MessageOptions,
): ObservedStep {
  const { conversation, policy } = reader
  let { history } = memory
  const calls: LoopCall[] = []
  const counted = new Set<Hash>()
  const transcriptCalls =
    pendingCalls.length > 0 ? callsAt(conversation, index, policy, pendingCalls) : reader.callsAt(index)
  for (const { id, signature, result } of transcriptCalls) {
    const { tool, call, isPoll, isChange, isExempt } = signature
    if (isExempt || isLeftOut?.(call)) continue
    // Equal calls of one response count once: the result of the second must not rename that of the first.
    if (counted.has(call)) continue
    counted.add(call)
    if (!result) {
      calls.push({ id, tool, call, resultHash: '', isPoll, isChange, isTerse: true })
      continue
    }
    const hashed = hashResult(
      history,
      call,
      result,
      policy.volatile,
      (matches) => resultBefore(reader, index, call, matches),
      conversation.work,
    )
    history = hashed.history
    const isWaiting = isPoll || isUnfinished(result)
    const isTerse = isTerseResult(result)
    calls.push({ id, tool, call, resultHash: hashed.resultHash, isPoll: isWaiting, isChange, isTerse })
  }
  return observeStep(history === memory.history ? memory : { ...memory, history }, calls, policy, now)
}

/** Index of the first message that was not observed yet; `oldest` if no observed message is in the transcript. */
function firstUnobserved(
  { assistantHashes, newestIndex }: LoopState,
  { conversation, state }: Transcript,
  oldest: number,
): number {
  const { assistantMessages } = state
  const last = assistantHashes.at(-1)
  if (last === undefined) return oldest
  const expected = assistantMessages.find(({ index }) => index === newestIndex)
  if (expected && assistantHash(expected, conversation) === last) return newestIndex + 1
  // The client compacted the history, or went back in it.
  const newest = assistantMessages.findLast((step) =>
    assistantHashes.includes(assistantHash(step, conversation)),
  )
  return newest ? newest.index + 1 : oldest
}

/** True for a loop of one call again and again, rather than of several in turn. */
function isSingleCall(finding: LoopFinding | undefined): boolean {
  return finding?.pattern === 'repetition' || finding?.pattern === 'same_call'
}

/**
 * Returns the state after one more response; `index`: of its message in the transcript, -1 if it is not in it. `hash`: see
 * `MessageOptions`. Written out in full, as this runs for every request.
 */
function afterStep(
  before: LoopState,
  { memory, untold, finding }: ObservedStep,
  index: number,
  hash: Hash | undefined,
  { mode }: LoopPolicy,
): LoopState {
  const { isObserved, assistantHashes, lastUserMessage, pendingCalls, pendingNotice, lastBlock } = before
  const isTold = mode === 'observe' || !finding
  return {
    memory: isTold ? memory : untold,
    memoryIfTold: isTold ? undefined : memory,
    isObserved: isObserved ?? (mode === 'observe' && finding ? true : undefined),
    assistantHashes:
      hash === undefined ? assistantHashes : withNewest(assistantHashes, hash, MAX_ASSISTANT_HASHES),
    newestIndex: index,
    lastUserMessage,
    finding,
    pendingCalls,
    pendingNotice: undefined,
    currentNotice: pendingNotice,
    lastBlock,
  }
}

/**
 * Returns the state after one message: words of a human begin anew, and the calls of a response count with their
 * results. Throws `TooMuchToRead`.
 */
export function observeMessage(
  loopState: LoopState,
  reader: CallReader,
  registry: HarnessRegistry,
  index: number,
  options: MessageOptions = {},
): LoopState {
  const { conversation } = reader
  const words = userText(conversation, index, registry)
  if (words !== undefined) {
    const userMessage = hashOfText(words)
    const isRepeated = words !== '' && userMessage === loopState.lastUserMessage
    const memory = humanSpoke(loopState.memory, isRepeated)
    // A harness that says the same after each step comes between equal calls and the notice about them.
    const finding = isRepeated && isSingleCall(loopState.finding) ? loopState.finding : undefined
    const { memoryIfTold } = loopState
    return {
      ...loopState,
      memory,
      memoryIfTold: finding && memoryIfTold && humanSpoke(memoryIfTold, isRepeated),
      lastUserMessage: userMessage,
      finding,
      pendingNotice: undefined,
      currentNotice: undefined,
    }
  }
  if (conversation.role(index) !== 'assistant') return loopState
  const observed = observeCallsAt(loopState, reader, index, options)
  return afterStep(loopState, observed, index, options.hash, reader.policy)
}

/** Returns the state once the model got the notice about the newest finding: only then it is a warning that can be ignored. */
export function noticeTold(loopState: LoopState): LoopState {
  const { memoryIfTold: memory } = loopState
  return memory ? { ...loopState, memory, memoryIfTold: undefined } : loopState
}

/** Returns a state that has no ladder from a time in which the guard only observed: the model got no notice then. */
function withoutObserved(loopState: LoopState, { mode }: LoopPolicy): LoopState {
  if (!loopState.isObserved || mode === 'observe') return loopState
  const memory = { ...NO_LOOP, history: loopState.memory.history }
  return { ...loopState, memory, memoryIfTold: undefined, isObserved: undefined }
}

/**
 * Returns the state after what is new in a request's transcript; the same request again changes nothing. `now`: when
 * the newest results came, in milliseconds. Throws `TooMuchToRead`.
 */
export function observeTranscript(
  loopState: LoopState,
  transcript: Transcript,
  policy: LoopPolicy,
  now?: number,
): LoopState {
  const { conversation, state, registry, previousStep } = transcript
  const reader = createCallReader(conversation, policy)
  const from = firstUnobserved(loopState, transcript, startOfNewest(conversation, MAX_UNKNOWN))
  const last = lastMessage(conversation)
  const newest = state.assistantMessages.at(-1)?.index
  let next = withoutObserved(loopState, policy)
  if (previousStep !== undefined && !next.assistantHashes.includes(previousStep)) {
    const calls = answeredCalls(
      next.pendingCalls ?? [],
      resultsAfter(conversation, -1),
      policy,
      conversation.work,
    )
    next = afterStep(next, observeStep(next.memory, calls, policy, now), -1, previousStep, policy)
  }
  for (let index = from; index < conversation.length; index++) {
    // Its results are still to come.
    if (index === last && conversation.role(index) === 'assistant') continue
    const step = state.assistantMessages.find((message) => message.index === index)
    next = observeMessage(next, reader, registry, index, {
      now: index === newest ? now : undefined,
      hash: step && assistantHash(step, conversation),
    })
  }
  return next
}

/** Returns the state after a request that is too much to read: the next one begins where this one ends, without a notice. */
export function skipTranscript(
  loopState: LoopState,
  { conversation, state, previousStep }: Transcript,
): LoopState {
  // The work that this took so far must not make the rest of the request too much to read.
  conversation.work?.paused()
  const newest = state.assistantMessages.at(-1)
  const newestHashes = newest ? [assistantHash(newest, conversation)] : []
  return {
    ...loopState,
    assistantHashes: previousStep === undefined ? newestHashes : [previousStep, ...newestHashes],
    newestIndex: newest?.index ?? -1,
    memoryIfTold: undefined,
    finding: undefined,
    pendingNotice: undefined,
    currentNotice: undefined,
  }
}

/** Returns the state with the calls of a response whose conversation the provider keeps. */
export function recordCalls(loopState: LoopState, calls: readonly ToolCall[], policy: LoopPolicy): LoopState {
  return calls.length === 0
    ? loopState
    : { ...loopState, pendingCalls: addPendingCalls(loopState.pendingCalls ?? [], calls, policy) }
}

/** Which calls of one response are blocked. */
export interface BlockDecision {
  /** One entry for each call, in order; `undefined`: the call passes. */
  readonly blocked: readonly (BlockedCall | undefined)[]
  /** True if so many responses of this run had blocked calls that the run ends. */
  readonly endsRun: boolean
}

/**
 * Decides which calls of a response are blocked before it goes to the client, and returns the state that remembers it.
 * `request` is the hash of the request that it answers; a request that is sent again gets the same decision. `isAgain`:
 * Governor asked the model again for this response. `now`: milliseconds.
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
  const hashed = calls.map(({ name, arguments: text }) => ({ tool: name, call: callHash(name, text) }))
  const { memory, blocked, endsRun } = blockCalls(before, hashed, policy, now)
  // If all calls are blocked, Governor asks the model again and says why; else the next request carries a notice.
  const isPart = blocked.some((block) => !block)
  const texts = blocked.flatMap((block) => (block ? [blockText(block.tool, block.count)] : []))
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
