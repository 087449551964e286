/**
 * Follows a live conversation for the loop guard, request by request: adds the calls that are new since the last
 * request, and remembers the notice about them, because a request that is sent again must get the same notice.
 */

import type { Conversation } from '../conversation/conversation.ts'
import {
  type AssistantMessage,
  assistantHash,
  callIdsOf,
  followedSteps,
  lastMessage,
  type TranscriptState,
  userText,
} from '../conversation/transcript.ts'
import type { HarnessRegistry } from '../harness/match.ts'
import { LOOP_REPORT } from '../harness/texts.ts'
import { branded, type Hash, hashOfText } from '../hash.ts'
import {
  harnessWarned,
  humanSpoke,
  type LoopCall,
  type LoopFinding,
  type LoopMemory,
  NO_LOOP,
  observeStep,
  warningRefused,
  warningSent,
} from './escalation.ts'
import type { LoopPolicy } from './patterns.ts'
import { type CallReader, callsAt, hashResult, type NewCalls, type PendingCall } from './tool-call.ts'
import { exactHash, progressIn } from './tool-result.ts'

/** The loop guard's memory of one thread: plain JSON of bounded size. */
export interface LoopState {
  readonly memory: LoopMemory
  /**
   * Hashes of the newest assistant messages that were observed, oldest first, each after the name of its answer, if
   * any.
   */
  readonly assistantHashes: readonly Hash[]
  /** Index of the newest of them in the transcript: nothing else tells two messages of one content apart. */
  readonly newestIndex: number
  /** The client shortens its history: an earlier result can't be compared with a later one letter by letter. */
  readonly isCut?: boolean | undefined
  /** Hash of the words that a human said last. */
  readonly lastUserMessage?: Hash | undefined
  /** The loop that the newest assistant message completed. */
  readonly finding?: LoopFinding | undefined
  /** The model got the notice about it. */
  readonly isWarned?: boolean
  /** Calls whose results are to come without them, oldest first. */
  readonly pendingCalls?: readonly PendingCall[] | undefined
}

/** No loop is known, and no notice is due. */
export const NO_NOTICE = { finding: undefined, isWarned: false }

/** All members from the beginning: V8 copies an object slowly if the copy has further ones. */
export const INITIAL_LOOP_STATE: LoopState = {
  memory: NO_LOOP,
  assistantHashes: [],
  newestIndex: -1,
  isCut: undefined,
  lastUserMessage: undefined,
  pendingCalls: undefined,
  ...NO_NOTICE,
}

/** The most hashes of assistant messages and calls without results that are remembered, the newest. */
const MAX_ASSISTANT_HASHES = 16
const MAX_PENDING = 64

/** The newest messages that are read of an unknown transcript, and the calls in them: a window, and some more. */
const MAX_UNKNOWN = 24
const MAX_UNKNOWN_CALLS = 64

/** The transcript of a request, as far as the loop guard needs it. */
interface Transcript {
  readonly conversation: Conversation
  /** State after its messages; the last one need not be among them. */
  readonly state: TranscriptState
  readonly registry: HarnessRegistry
  /** Hash of the response that the request continues, if it is not in it: the results answer its calls. */
  readonly previousStep: Hash | undefined
  /** The last message is a harness's, although it looks like a user's. */
  readonly skipsLast?: boolean | undefined
  /** The request continues the run that was observed: no human has spoken since. */
  readonly isSameRun?: boolean
  /** How many answers at its end no request has shown, though they may say what those before say. */
  readonly newer?: number | undefined
  /** The newest relayed answer that it shows. */
  readonly answer?: (NewCalls & { readonly operation: string }) | undefined
}

/** How one message of a transcript is observed. */
interface MessageOptions {
  /** When its results came, in milliseconds, if that is known. */
  readonly now?: number | undefined
  /** The hashes by which an assistant message is remembered, if it is. */
  readonly hashes?: readonly Hash[] | undefined
  /** Calls that the agent never got. */
  readonly leftOut?: ReadonlySet<Hash>
  /** Later responses are known already. */
  readonly isPast?: boolean
  /** Exact hashes of results that may be a harness's placeholders. */
  readonly unknown?: ReadonlySet<Hash> | undefined
}

/** Returns the state with the calls of the response at `index`; -1: the response is not in the transcript. */
function observeCalls(loopState: LoopState, reader: CallReader, index: number, options: MessageOptions): LoopState {
  const { now, hashes = [], leftOut, isPast, unknown } = options
  let { history } = loopState.memory
  const made: LoopCall[] = []
  for (const { result, at, tool, call, isPoll, isChange } of callsAt(reader, index)) {
    // Of equal calls the first one counts.
    if (leftOut?.has(call) || made.some((other) => other.call === call)) continue
    const hashed = hashResult(reader, index, history, call, result)
    history = hashed.history
    const { goesOn, isTerse, isPlaceholder } = progressIn(result)
    const isUnknown = isPlaceholder || (result && unknown?.has(exactHash(result, reader.policy.volatile)))
    const resultHash = isUnknown ? '' : hashed.resultHash
    const { maskedHash } = hashed
    made.push({ at, tool, call, resultHash, maskedHash, isPoll: isPoll || goesOn, isChange, isTerse })
  }
  const known = { ...loopState.memory, history }
  const { memory, finding } = observeStep(known, made, reader.policy, now, isPast)
  return {
    ...loopState,
    memory,
    assistantHashes: [...loopState.assistantHashes, ...hashes].slice(-MAX_ASSISTANT_HASHES),
    newestIndex: index,
    finding,
    isWarned: false,
  }
}

/**
 * True if the message at `index` makes the calls that were observed last, as far as that is known without their ids.
 */
function makesNewestCalls({ history: { window, steps } }: LoopMemory, reader: CallReader, index: number): boolean {
  const made = new Set(callsAt(reader, index).map(({ call }) => call))
  const newest = window.filter(({ step }) => step === steps)
  return newest.length > 0 && newest.length === made.size && newest.every(({ call }) => made.has(call))
}

/**
 * Returns the index of the first message that was not observed yet. Notes in the reader if the newest one that was is
 * not there, or in another form.
 */
function firstUnobserved(
  { assistantHashes, newestIndex, memory }: LoopState,
  { conversation, isSameRun, newer = 0, state }: Transcript,
  steps: readonly AssistantMessage[],
  reader: CallReader,
  answer: AssistantMessage | undefined,
): number {
  const hashOf = (step: AssistantMessage) => assistantHash(step, conversation)
  const expected = steps.find(({ index }) => index === newestIndex)
  const isThere = expected !== undefined && hashOf(expected) === assistantHashes.at(-1)
  // An answer without ids may say what an older one said.
  const firstNew = isSameRun && newer > 0 ? state.assistantMessages.at(-newer)?.index : undefined
  const older = firstNew === undefined ? steps : steps.filter(({ index }) => index < firstNew)
  const isKnown = (step: AssistantMessage) => assistantHashes.includes(hashOf(step))
  const isOlder = isThere && older.includes(expected)
  const known = isOlder ? expected : (older.findLast(isKnown) ?? steps.findLast(isKnown))
  const isCut = assistantHashes.length > 0 && (known === undefined || hashOf(known) !== assistantHashes.at(-1))
  reader.isCut ||= isCut
  // One request follows one answer, whatever became of those before it.
  if (isSameRun && answer && answer === steps.findLast(({ calls }) => calls > 0)) return answer.index
  const newest = steps.at(-1)?.index ?? conversation.length
  // The client gave all calls new ids: the history goes on after the newest calls at their place.
  if (isCut && newest > newestIndex && makesNewestCalls(memory, reader, newestIndex)) return newestIndex + 1
  if (isSameRun && isCut) return Math.max(newest, (known?.index ?? -1) + 1)
  if (known) return known.index + 1
  // The transcript is unknown: its newest messages are read, and at least its newest response, however large that is.
  let from = conversation.length
  let messages = 0
  let calls = 0
  for (let at = conversation.length - 1; at >= 0; at--) {
    if (conversation.role(at) === 'part') continue
    calls += conversation.callCount(at)
    if (from <= newest && (messages === MAX_UNKNOWN || calls > MAX_UNKNOWN_CALLS)) break
    messages++
    from = at
  }
  return from
}

/**
 * Returns the state after one message: words of a human begin anew, calls of a response count. Throws `TooMuchToRead`.
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
    const isSingleCall = loopState.finding?.calls.length === 1
    return {
      ...loopState,
      memory,
      lastUserMessage: userMessage,
      finding: isRepeated && isSingleCall ? loopState.finding : undefined,
    }
  }
  if (conversation.role(index) !== 'assistant') return loopState
  return observeCalls(loopState, reader, index, options)
}

/**
 * Returns the state after what is new in a request's transcript; the same request again changes nothing. `now`: when
 * the newest results came, in milliseconds. Throws `TooMuchToRead`.
 */
export function observeTranscript(loopState: LoopState, transcript: Transcript, policy: LoopPolicy, now?: number) {
  const { conversation, state, registry, previousStep, isSameRun, answer } = transcript
  const steps = followedSteps(state, conversation)
  const shown =
    answer && steps.findLast((step) => callIdsOf(step, conversation).some((id) => answer.callIds.includes(id)))
  const pending = loopState.pendingCalls
  const isCut = loopState.isCut === true
  const reader: CallReader = { conversation, policy, pending, isCut, callsByIndex: new Map() }
  const from = firstUnobserved(loopState, transcript, steps, reader, shown)
  if (isSameRun && shown) reader.newCalls = { index: shown.index, callIds: answer.callIds, calls: answer.calls }
  const newest = steps.at(-1)?.index ?? -1
  const last = lastMessage(conversation)
  let next = loopState
  if (previousStep !== undefined && !next.assistantHashes.includes(previousStep))
    next = observeCalls(next, reader, -1, { now, hashes: [previousStep] })
  const unknown = placeholders(reader, from, newest)
  for (let index = from; index < conversation.length; index++) {
    if (isSameRun && isLoopReport(conversation, index)) next = { ...next, memory: harnessWarned(next.memory, policy) }
    // The results of an answer at the end are still to come.
    if (index === last && (transcript.skipsLast || conversation.role(index) === 'assistant')) continue
    const step = steps.find((one) => one.index === index)
    // All words of humans in it began this run, or an earlier one.
    if (isSameRun && conversation.role(index) !== 'assistant') continue
    const isNewest = answer !== undefined && step !== undefined && step === shown
    const name = isNewest ? [branded(answer.operation)] : []
    if (isSameRun && isNewest && next.assistantHashes.includes(branded(answer.operation))) continue
    next = observeMessage(next, reader, registry, index, {
      now: index === newest ? now : undefined,
      hashes: step && [...name, assistantHash(step, conversation)],
      isPast: index < newest,
      unknown,
    })
  }
  return next.isCut === (reader.isCut || undefined) ? next : { ...next, isCut: reader.isCut || undefined }
}

function isLoopReport(conversation: Conversation, index: number): boolean {
  if (conversation.role(index) !== 'user' || conversation.resultCount(index) > 0) return false
  return conversation.texts(index).some((text) => text.startsWith(LOOP_REPORT))
}

/** Returns the hashes of results that different calls have in messages not seen when new: a harness's placeholders. */
function placeholders(reader: CallReader, from: number, newest: number): ReadonlySet<Hash> | undefined {
  // Nearly always only the newest answer is new.
  if (from >= newest) return undefined
  const callsByResult = new Map<Hash, Hash>()
  const shared = new Set<Hash>()
  for (let index = from; index < newest; index++) {
    if (reader.conversation.role(index) !== 'assistant') continue
    for (const { call, result } of callsAt(reader, index)) {
      if (!result) continue
      const hash = exactHash(result, reader.policy.volatile)
      if ((callsByResult.get(hash) ?? call) !== call) shared.add(hash)
      callsByResult.set(hash, call)
    }
  }
  return shared
}

/** Returns the state once the model got the notice about the newest finding. A notice sent again counts once. */
export function afterNotice(loopState: LoopState): LoopState {
  const { finding, isWarned, memory } = loopState
  if (!finding || isWarned) return loopState
  return { ...loopState, memory: warningSent(memory, finding), isWarned: true }
}

/** Returns the state once the provider refused that notice. `isMute`: no channel is left. */
export function afterRefusedNotice(loopState: LoopState, isMute: boolean): LoopState {
  const { finding, isWarned, memory } = loopState
  return !finding || isWarned ? loopState : { ...loopState, memory: warningRefused(memory, finding, isMute) }
}

/** Returns the state after a request that is too much to read: the next one is read from where this one ends. */
export function skipTranscript(loopState: LoopState, { conversation, state, previousStep }: Transcript): LoopState {
  // The work that this took so far must not make the rest of the request too much to read.
  conversation.work?.paused()
  const newest = followedSteps(state, conversation).at(-1)
  const newestHashes = newest ? [assistantHash(newest, conversation)] : []
  return {
    ...loopState,
    assistantHashes: previousStep === undefined ? newestHashes : [previousStep, ...newestHashes],
    newestIndex: newest?.index ?? -1,
    ...NO_NOTICE,
  }
}

/**
 * Returns the state with the calls of a response from which a client may continue by its id; equal ids are of the
 * newest. `isOnly`: no results of others will come without their calls.
 */
export function recordCalls(loopState: LoopState, calls: readonly PendingCall[], isOnly = false): LoopState {
  if (calls.length === 0) return loopState
  if (isOnly) return { ...loopState, pendingCalls: calls.slice(-MAX_PENDING) }
  const others = (loopState.pendingCalls ?? []).filter(({ id }) => !calls.some((call) => call.id === id))
  return { ...loopState, pendingCalls: [...others, ...calls].slice(-MAX_PENDING) }
}
