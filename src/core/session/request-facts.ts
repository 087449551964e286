/** The facts that one request shows about its session, as hashes and counts. */
import type { Conversation } from '../conversation/conversation.ts'
import {
  advance,
  assistantHash,
  callIdsOf,
  lastMessage,
  placedHash,
  type TranscriptState,
} from '../conversation/transcript.ts'
import { countSummaries, type HarnessRegistry, humanText, isSummaryRequest } from '../harness/match.ts'
import { type Hash, hashOf, hashOfText } from '../hash.ts'
import { resultsAfter } from '../loop/tool-result.ts'

/** The facts that one request shows about its session; none of them contains a word of the prompt. */
export interface RequestFacts
  extends Pick<TranscriptState, 'userMessageHashes' | 'toolCalls' | 'newToolCalls' | 'endsInUserMessage'> {
  /** All of its messages, but for the beginning of an answer at its end. */
  readonly transcript: TranscriptState
  readonly system: Hash
  /** Hash of the request's bytes: the same again is a retry. */
  readonly fingerprint: string
  /** Iteration by the transcript alone: assistant messages since the last user message, plus one. */
  readonly iteration: number
  /** The first and the newest assistant messages, in order. The last shows whether a transcript grew or went back. */
  readonly assistantHashes: readonly Hash[]
  /** How many calls each of these messages made, and their ids. */
  readonly callCounts: readonly number[]
  readonly callIds: readonly (readonly Hash[])[]
  /** Returns what identifies an assistant message without its ids, see `placedHash`; 1 is the newest one. */
  readonly placed: (fromEnd: number) => Hash | undefined
  /** The transcript contains only user messages: no answer, no result, no text of a harness. */
  readonly isPrompt: boolean
  /** How long a transcript without answers is, see `promptLengthOf`; unset with answers. */
  readonly promptLength?: number | undefined
  /** The client says that it replaced its history by a summary. */
  readonly isCompacted?: boolean | undefined
  /** The client says that the agent sends the request by itself, whatever its last message is. */
  readonly isByAgent?: boolean | undefined
  /** The last message is the agent's request for a final answer. */
  readonly asksForSummary: boolean
  /** It ends in a harness's request, in known words, for a summary of a history whose run goes on. */
  readonly asksForCompaction?: boolean | undefined
  /** The id of the response, or of the conversation, that the request continues without sending it. */
  readonly previous: string | undefined
  /** `previous` is a conversation, which has only one end; several requests may continue from a response. */
  readonly isAppended: boolean
  /** Stands for the assistant message whose calls the first results answer, and which the input does not contain. */
  readonly previousStep: Hash | undefined
  /** Its length. */
  readonly bytes: number | undefined
  readonly messages: number
}

/**
 * Returns whether the last message is the beginning of an answer that the client wrote for the model: an assistant
 * message with a text and without calls, for which the provider has run nothing either. After another answer it is an
 * answer too: nothing between them asked the model to begin again.
 */
export function endsInPrefill(conversation: Conversation, last: number): boolean {
  if (last < 0 || conversation.role(last) !== 'assistant') return false
  const ran = conversation.ranByProvider?.(last) ?? []
  const before = lastMessage(conversation, last)
  const isAfterAnswer = before >= 0 && conversation.role(before) === 'assistant'
  if (conversation.callCount(last) > 0 || ran.length > 0 || isAfterAnswer) return false
  return conversation.texts(last).some((text) => text !== '')
}

/**
 * Returns the facts of a request. `from`: the state after all messages but the last, or fewer, as only the message
 * after it shows whether an assistant message is an answer. `fingerprint`: a hash of the request's bytes. `bytes`:
 * their number.
 */
export function factsOf(
  from: TranscriptState,
  conversation: Conversation,
  fingerprint: string,
  registry: HarnessRegistry,
  bytes?: number,
): RequestFacts {
  const last = lastMessage(conversation)
  const end = endsInPrefill(conversation, last) ? last : conversation.length
  const transcript = advance(from, conversation, end, registry)
  const { userMessageHashes, assistantMessages } = transcript
  const assistantHashes: Hash[] = []
  const callCounts: number[] = []
  const callIds: (readonly Hash[])[] = []
  for (const message of assistantMessages) {
    assistantHashes.push(assistantHash(message, conversation))
    callCounts.push(message.calls)
    callIds.push(callIdsOf(message, conversation))
  }
  const said = last >= 0 && conversation.role(last) === 'user' ? conversation.texts(last) : []
  let users = 0
  const promptLength = assistantMessages.length === 0 ? promptLengthOf(conversation, registry) : undefined
  if (promptLength !== undefined)
    for (let at = 0; at < conversation.length; at++) if (conversation.role(at) !== 'system') users++
  return {
    transcript,
    fingerprint,
    bytes,
    messages: conversation.length,
    system: transcript.system?.hash ?? systemHash(conversation),
    userMessageHashes,
    iteration: transcript.iterations + 1,
    toolCalls: transcript.toolCalls,
    newToolCalls: transcript.newToolCalls,
    assistantHashes,
    callCounts,
    callIds,
    placed: (fromEnd) => {
      const step = assistantMessages.at(-fromEnd)
      return step && placedHash(step, conversation)
    },
    endsInUserMessage: transcript.endsInUserMessage && transcript.length === conversation.length,
    isPrompt: users > 0 && users === userMessageHashes.length && promptLength === conversation.length,
    promptLength,
    asksForSummary: isSummaryRequest(said, registry),
    asksForCompaction: callCounts.at(-1) !== 0 && asksForSummaryOf(conversation, transcript, registry),
    previous: undefined,
    isAppended: false,
    previousStep: undefined,
  }
}

/**
 * Returns whether the last message is a request for a summary, in known words of a harness. After an answer other words
 * may stand behind it.
 */
function asksForSummaryOf(
  conversation: Conversation,
  { assistantMessages }: TranscriptState,
  registry: HarnessRegistry,
) {
  const last = lastMessage(conversation)
  const newest = assistantMessages.at(-1)?.index ?? last - 1
  for (let at = last; at > newest; at--) {
    if (conversation.role(at) !== 'user') continue
    const texts = conversation.texts(at)
    if (countSummaries(at === last && assistantMessages.length === 0 ? texts.slice(-1) : texts, registry) > 0)
      return true
  }
  return false
}

/** Returns the number of messages, and of the summaries in them that stand beside a human's words in one message. */
function promptLengthOf(conversation: Conversation, registry: HarnessRegistry): number {
  let length = conversation.length
  for (let at = 0; at < conversation.length; at++) {
    if (conversation.role(at) !== 'user') continue
    const texts = conversation.texts(at)
    const summaries = countSummaries(texts, registry)
    if (summaries > 0 && humanText(texts, registry) !== '') length += summaries
  }
  return length
}

const CLOCKS = /(?<![\d:])(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?![\d:])(?: ?[ap]m)?/gi
/** Characters of the longest text in which clocks are looked for. */
const MAX_CLOCK_TEXT = 262_144

/** Returns a hash of the system text without its clocks, as one that states the time differs in each request. */
export function systemHash(conversation: Conversation): Hash {
  const text = conversation.systemText()
  return hashOfText(text.length > MAX_CLOCK_TEXT ? text : text.replace(CLOCKS, '#'))
}

/** Identifies the first request of a conversation: by system text, first user message and newest answer. */
export function promptOf({ system, userMessageHashes: [first] }: RequestFacts, answer: Hash | undefined): Hash {
  return hashOf(system, first ?? '', answer ?? '')
}

/**
 * Returns the answers that may have begun a conversation, oldest first: the first ones after a user's words. `id`
 * identifies the conversation if the answer was the first one that its first request did not hold, and `prompt` such
 * first requests, see `promptOf`.
 */
export function beginningsOf(facts: RequestFacts, conversation: Conversation) {
  const { system, transcript, userMessageHashes } = facts
  const beginnings: { readonly id: Hash; readonly prompt: Hash }[] = []
  for (const { step, users, before } of transcript.openers) {
    // An answer that the provider continues may have grown when it is sent again: the first thing that was run for it
    // stays the same.
    const [ran] = conversation.ranByProvider?.(step.index) ?? []
    const answer = ran === undefined ? assistantHash(step, conversation) : hashOfText(ran)
    const id = hashOf(system, ...userMessageHashes.slice(0, users), answer)
    beginnings.push({ id, prompt: promptOf(facts, before && assistantHash(before, conversation)) })
  }
  return beginnings
}

/** Adds to the facts of a request what it continues from: its first results answer calls that the provider keeps. */
export function withPrevious(
  facts: RequestFacts,
  conversation: Conversation,
  previous: string,
  isAppended: boolean,
): RequestFacts {
  const ids = resultsAfter(conversation, -1).map(({ callId }) => callId)
  if (ids.length === 0) return { ...facts, previous, isAppended }
  const previousStep = hashOf('goes on', previous, ...ids)
  const isSameRun = facts.userMessageHashes.length === 0 && facts.assistantHashes.length === 0
  return {
    ...facts,
    previous,
    isAppended,
    previousStep,
    assistantHashes: [previousStep, ...facts.assistantHashes],
    callCounts: [ids.length, ...facts.callCounts],
    callIds: [[], ...facts.callIds],
    ...(isSameRun ? { toolCalls: ids.length, newToolCalls: ids.length } : {}),
  }
}

/** Returns whether the newest answer of a transcript calls a tool. */
export function callsLast({ callCounts }: RequestFacts): boolean {
  return (callCounts.at(-1) ?? 0) > 0
}

/** Returns whether a request ends in known words of a harness that ask for something beside the run. */
function asksAside(conversation: Conversation, { asides }: HarnessRegistry): boolean {
  const last = lastMessage(conversation)
  if (last < 0 || conversation.role(last) !== 'user' || conversation.prepare?.(last)) return false
  return asides.test(conversation.texts(last).at(-1)?.trimStart() ?? '')
}

/** Returns whether a request takes part in a tool loop: it offers tools or contains results. */
export function isAgentic(conversation: Conversation, registry: HarnessRegistry): boolean {
  if (conversation.isCompaction || conversation.isWarmUp || asksAside(conversation, registry)) return false
  if (conversation.offersTools) return true
  for (let at = 0; at < conversation.length; at++) if (conversation.resultCount(at) > 0) return true
  return false
}
