/** What one request tells about its session, boiled down to hashes and counts that can be remembered. */
import { type Conversation, lastMessage } from '../conversation.ts'
import { type HarnessRegistry, isSummaryRequest } from '../harness/match.ts'
import { type Hash, hashOf, nameOf } from '../hash.ts'
import { advance, assistantHashesOf, type TranscriptState } from './transcript.ts'

export interface RequestFacts {
  /** Of the request's bytes: the same again is a retry. */
  readonly fingerprint: string
  readonly system: Hash
  /** Every human message of the transcript, in order. */
  readonly userMessageHashes: readonly Hash[]
  /** Iteration number by the transcript alone: assistant messages since the last human message, plus one. */
  readonly iteration: number
  /** Tool calls since the last human message. */
  readonly toolCalls: number
  /** Tool calls of the newest assistant message: those that no earlier request of the run can have held. */
  readonly newToolCalls: number
  /** The first and the newest assistant messages: a transcript that holds one of them continues the same thread. */
  readonly assistantHashes: readonly Hash[]
  /** How many calls each of them made. */
  readonly callCounts: readonly number[]
  /** The newest assistant message, if there is one: what it is tells a transcript that grew from one that went back. */
  readonly newestAssistant: Hash | undefined
  /** The last message is a human's. */
  readonly endsInUserMessage: boolean
  /** The transcript holds what humans said and nothing else: no answer, no result, no text of a harness. */
  readonly isPrompt: boolean
  /** The last message is the agent's own request for a final answer. */
  readonly asksForSummary: boolean
  /** The id of the response, or of the conversation, that the request goes on from without sending it. */
  readonly previous: string | undefined
  /** Several may go on from it, each in its own way: it is a response. A conversation has one end. */
  readonly mayFork: boolean
  /** Names the results that the input begins with, whose calls are not in it. */
  readonly previousStep: Hash | undefined
  /** Length of the request. */
  readonly bytes: number | undefined
  /** Does the newest assistant message say something, or call nothing? `undefined` where the request shows none. */
  speaks(): boolean | undefined
  /** What the conversation began with; `undefined` before its first assistant message. */
  readonly beginning: string | undefined
}

/**
 * An assistant message that ends the input and has neither called anything nor had anything run is the beginning of an
 * answer that the client put into the model's mouth, not a model call that was made.
 */
function endsInPrefill(conversation: Conversation, last: number): boolean {
  if (last < 0 || conversation.role(last) !== 'assistant') return false
  const ran = conversation.ranByProvider?.(last) ?? []
  return conversation.callCount(last) === 0 && ran.length === 0
}

function holdsPromptAlone(
  conversation: Conversation,
  { assistantMessages, userMessageHashes }: TranscriptState,
): boolean {
  if (assistantMessages.length > 0 || userMessageHashes.length === 0) return false
  let messages = 0
  for (let at = 0; at < conversation.length; at++) if (conversation.role(at) !== 'system') messages++
  return messages === userMessageHashes.length
}

/**
 * Reads a conversation to its end, from what was read of it before: all messages but the last one at most, as only what
 * follows tells what an assistant message is. `fingerprint` stands for the bytes of the request.
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
  const state = advance(from, conversation, end, registry)
  const assistantHashes = assistantHashesOf(state, conversation)
  return {
    fingerprint,
    bytes,
    system: state.system,
    userMessageHashes: state.userMessageHashes,
    iteration: state.iterations + 1,
    toolCalls: state.toolCalls,
    newToolCalls: state.newToolCalls,
    assistantHashes,
    callCounts: state.assistantMessages.map(({ calls }) => calls),
    newestAssistant: assistantHashes.at(-1),
    endsInUserMessage: state.endsInUserMessage && state.length === conversation.length,
    isPrompt: holdsPromptAlone(conversation, state),
    asksForSummary:
      last >= 0 && conversation.role(last) === 'user' && isSummaryRequest(conversation.texts(last), registry),
    previous: undefined,
    mayFork: false,
    previousStep: undefined,
    speaks() {
      const at = state.assistantMessages.at(-1)?.index
      if (at === undefined) return undefined
      return conversation.callCount(at) === 0 || conversation.texts(at).some((text) => text.trim() !== '')
    },
    beginning: state.beginning,
  }
}

/**
 * What a request tells that goes on from what its provider keeps: its results are those of the calls before, and it is
 * known by what it goes on from.
 */
export function withPrevious(
  facts: RequestFacts,
  conversation: Conversation,
  previous: string,
  mayFork: boolean,
): RequestFacts {
  const ids: string[] = []
  for (let at = 0; at < conversation.length && conversation.role(at) !== 'assistant'; at++)
    ids.push(...conversation.results(at).map(({ callId }) => callId))
  if (ids.length === 0) return { ...facts, previous, mayFork }
  const previousStep = hashOf('goes on', previous, ...ids)
  const isSameRun = facts.userMessageHashes.length === 0 && facts.assistantHashes.length === 0
  return {
    ...facts,
    previous,
    mayFork,
    previousStep,
    assistantHashes: [previousStep, ...facts.assistantHashes],
    callCounts: [ids.length, ...facts.callCounts],
    newestAssistant: facts.newestAssistant ?? previousStep,
    ...(isSameRun ? { toolCalls: ids.length, newToolCalls: ids.length } : {}),
  }
}

/** Does the request take part in a tool loop? Titles and summaries offer no tools and hold no results, or say what they are. */
export function isAgentic(conversation: Conversation): boolean {
  if (conversation.isCompaction) return false
  if (conversation.offersTools) return true
  for (let at = 0; at < conversation.length; at++) if (conversation.resultCount(at) > 0) return true
  return false
}

/**
 * The name of a session whose client sends none: what it was asked and how it first answered, so that fifty
 * parallel runs of one prompt are fifty sessions. `undefined` while there is no assistant message: such a
 * request is the first of something new.
 */
export function derivedSessionId(tenant: string, { beginning }: RequestFacts): string | undefined {
  return beginning === undefined ? undefined : nameOf(tenant, beginning)
}
