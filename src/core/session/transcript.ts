/**
 * What the first messages of a conversation tell, as a fold: from any reading one can go on with the next message, so
 * that an agent that sends everything again is read only where it goes on.
 */
import type { Conversation } from '../conversation.ts'
import { type HarnessRegistry, humanText } from '../harness/match.ts'
import { WRITTEN_CALLS, WRITTEN_RESULT } from '../harness/texts.ts'
import { type Hash, hashOfText, lengthPrefixed } from '../hash.ts'

/** An assistant message. All readings that go on from one another share it, so that it is hashed once. */
export interface AssistantMessage {
  readonly index: number
  readonly calls: number
  /** Unset until it is needed. */
  hash: Hash | undefined
}

export interface TranscriptState {
  /** How many messages were read. */
  readonly length: number
  readonly system: Hash
  /** Every human message, in order. */
  readonly userMessageHashes: readonly Hash[]
  /** What a human said first, in words. */
  readonly firstUserText: Hash | undefined
  /** Names system text, first human words and first assistant message: what the conversation began with. */
  readonly beginning: string | undefined
  /** Assistant messages since the last human message. */
  readonly iterations: number
  /** Tool calls since the last human message. */
  readonly toolCalls: number
  /** Tool calls of the newest assistant message since the last human one. */
  readonly newToolCalls: number
  /** The last message read is a human's. */
  readonly endsInUserMessage: boolean
  /** The first and the newest assistant messages, in order. */
  readonly assistantMessages: readonly AssistantMessage[]
}

/** How many of the newest assistant messages identify a thread. */
const MAX_ASSISTANT_MESSAGES = 8

/** Names an assistant message by all that it says and calls. */
export function assistantHash(step: AssistantMessage, conversation: Conversation): Hash {
  if (step.hash !== undefined) return step.hash
  let list = ''
  for (const text of conversation.texts(step.index)) list += lengthPrefixed(text)
  for (const call of conversation.calls(step.index))
    list += lengthPrefixed(call.id) + lengthPrefixed(call.name) + lengthPrefixed(call.arguments)
  for (const id of conversation.ranByProvider?.(step.index) ?? []) list += lengthPrefixed(id)
  const hash = hashOfText(list)
  step.hash = hash
  return hash
}

/**
 * Names the first answer of a conversation. One that the provider was to go on with may have grown when it is shown again:
 * what was run for it first stays.
 */
function hashOfFirst(step: AssistantMessage, conversation: Conversation): Hash {
  const [ran] = conversation.ranByProvider?.(step.index) ?? []
  return ran === undefined ? assistantHash(step, conversation) : hashOfText(ran)
}

/** A message without any text, a picture say: a person's, unless it follows what a tool gave and shows that. */
function isPersonsPicture(conversation: Conversation, index: number): boolean {
  return conversation.texts(index).length === 0 && (index === 0 || conversation.resultCount(index - 1) === 0)
}

/** Is what was said the result of calls that stand in the text of the message before it? */
function isWrittenResult(said: string, conversation: Conversation, index: number): boolean {
  if (index === 0 || !WRITTEN_RESULT.test(said)) return false
  if (conversation.role(index - 1) !== 'assistant') return false
  return conversation.texts(index - 1).some((text) => WRITTEN_CALLS.test(text))
}

/**
 * What a human said in a message, which may be a picture without words, or words beside what tools gave; `undefined` where
 * it is none of a human.
 */
export function userText(
  conversation: Conversation,
  index: number,
  registry: HarnessRegistry,
): string | undefined {
  if (conversation.role(index) !== 'user') return undefined
  const said = humanText(conversation.texts(index), registry)
  if (said !== '') return isWrittenResult(said, conversation, index) ? undefined : said
  return conversation.resultCount(index) === 0 && isPersonsPicture(conversation, index) ? '' : undefined
}

/** The first and the newest of the assistant messages. */
function kept(assistantMessages: readonly AssistantMessage[]): readonly AssistantMessage[] {
  return assistantMessages.length <= MAX_ASSISTANT_MESSAGES + 1
    ? assistantMessages
    : [...assistantMessages.slice(0, 1), ...assistantMessages.slice(-MAX_ASSISTANT_MESSAGES)]
}

/** A reading of no message yet. */
export function emptyTranscript(conversation: Conversation): TranscriptState {
  return {
    length: 0,
    system: hashOfText(conversation.systemText()),
    userMessageHashes: [],
    firstUserText: undefined,
    beginning: undefined,
    iterations: 0,
    toolCalls: 0,
    newToolCalls: 0,
    endsInUserMessage: false,
    assistantMessages: [],
  }
}

/** Most readings go on by a message or two: what they add nothing to stays the same list. */
function grown<Item>(known: readonly Item[], added: readonly Item[]): readonly Item[] {
  if (added.length === 0) return known
  return known.length === 0 ? added : [...known, ...added]
}

/**
 * Goes on from a reading of a conversation's first messages to that of its first `length`. `mayPause`: or to that of fewer, where
 * others should have their turn first.
 */
export function advance(
  from: TranscriptState,
  conversation: Conversation,
  length: number,
  registry: HarnessRegistry,
  mayPause = false,
): TranscriptState {
  if (length <= from.length) return from
  let { firstUserText, beginning, iterations, toolCalls, newToolCalls, endsInUserMessage } = from
  const userMessageHashes: Hash[] = []
  const assistantMessages: AssistantMessage[] = []
  let index = from.length
  for (; index < length; index++) {
    if (mayPause && index > from.length && conversation.work?.isDue) break
    endsInUserMessage = false
    const role = conversation.role(index)
    if (role === 'assistant') {
      newToolCalls = conversation.callCount(index)
      const step: AssistantMessage = { index, calls: newToolCalls, hash: undefined }
      beginning ??= from.system + (firstUserText ?? '') + hashOfFirst(step, conversation)
      assistantMessages.push(step)
      iterations++
      toolCalls += newToolCalls
      continue
    }
    const said = userText(conversation, index, registry)
    if (said === undefined) continue
    const human = hashOfText(said)
    userMessageHashes.push(human)
    if (said !== '') firstUserText ??= human
    iterations = 0
    toolCalls = 0
    newToolCalls = 0
    endsInUserMessage = true
  }
  return {
    length: index,
    system: from.system,
    userMessageHashes: grown(from.userMessageHashes, userMessageHashes),
    firstUserText,
    beginning,
    iterations,
    toolCalls,
    newToolCalls,
    endsInUserMessage,
    assistantMessages: kept(grown(from.assistantMessages, assistantMessages)),
  }
}

/** The first and the newest assistant messages of what was read: a transcript that holds one continues the same thread. */
export function assistantHashesOf(state: TranscriptState, conversation: Conversation): readonly Hash[] {
  return state.assistantMessages.map((step) => assistantHash(step, conversation))
}
