/** Reads the messages of a conversation one after the other, as a fold: any state can be advanced by the next message. */
import type { Conversation } from '../conversation.ts'
import { type HarnessRegistry, humanText } from '../harness/match.ts'
import { WRITTEN_CALLS, WRITTEN_RESULT } from '../harness/texts.ts'
import { type Hash, hashOfText, lengthPrefixed } from '../hash.ts'

/** An assistant message. All states that follow from one another share it, so that it is hashed once. */
export interface AssistantMessage {
  readonly index: number
  readonly calls: number
  /** Unset until it is needed. */
  hash: Hash | undefined
}

/** What the first `length` messages of a conversation say. */
export interface TranscriptState {
  /** How many messages were read. */
  readonly length: number
  readonly system: Hash
  /** Every user message, in order. */
  readonly userMessageHashes: readonly Hash[]
  /** The first user message that contains text. */
  readonly firstUserText: Hash | undefined
  /** Hashes of system text, first user text and first assistant message: how the conversation began. */
  readonly beginning: string | undefined
  /** Assistant messages since the last user message. */
  readonly iterations: number
  /** Tool calls since the last user message. */
  readonly toolCalls: number
  /** Tool calls of the newest assistant message since the last user message. */
  readonly newToolCalls: number
  /** The last message read is a user message. */
  readonly endsInUserMessage: boolean
  /** The first and the newest assistant messages, in order. */
  readonly assistantMessages: readonly AssistantMessage[]
}

/** How many of the newest assistant messages identify a thread. */
const MAX_ASSISTANT_MESSAGES = 8

/** Returns a hash of all that an assistant message says and calls. */
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
 * Returns a hash of the first answer of a conversation. An answer that the provider continues may have grown when it is sent
 * again; the first thing that was run for it stays the same.
 */
function hashOfFirst(step: AssistantMessage, conversation: Conversation): Hash {
  const [ran] = conversation.ranByProvider?.(step.index) ?? []
  return ran === undefined ? assistantHash(step, conversation) : hashOfText(ran)
}

/** A message without text, such as a picture, is the user's, unless it follows a tool's result, which it may show. */
function isUsersPicture(conversation: Conversation, index: number): boolean {
  return conversation.texts(index).length === 0 && (index === 0 || conversation.resultCount(index - 1) === 0)
}

/** Returns whether a text is the result of calls that are written out in the text of the message before it. */
function isWrittenResult(said: string, conversation: Conversation, index: number): boolean {
  if (index === 0 || !WRITTEN_RESULT.test(said)) return false
  if (conversation.role(index - 1) !== 'assistant') return false
  return conversation.texts(index - 1).some((text) => WRITTEN_CALLS.test(text))
}

/**
 * Returns the user's text in a message: without texts of the harness, empty for a picture without text. `undefined` if the
 * message is not the user's.
 */
export function userText(
  conversation: Conversation,
  index: number,
  registry: HarnessRegistry,
): string | undefined {
  if (conversation.role(index) !== 'user') return undefined
  const said = humanText(conversation.texts(index), registry)
  if (said !== '') return isWrittenResult(said, conversation, index) ? undefined : said
  return conversation.resultCount(index) === 0 && isUsersPicture(conversation, index) ? '' : undefined
}

/** Keeps the first and the newest assistant messages. */
function kept(assistantMessages: readonly AssistantMessage[]): readonly AssistantMessage[] {
  return assistantMessages.length <= MAX_ASSISTANT_MESSAGES + 1
    ? assistantMessages
    : [...assistantMessages.slice(0, 1), ...assistantMessages.slice(-MAX_ASSISTANT_MESSAGES)]
}

/** Returns the state before the first message. */
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

/** Adds entries to a list; without new entries it returns the same list. */
function grown<Item>(known: readonly Item[], added: readonly Item[]): readonly Item[] {
  if (added.length === 0) return known
  return known.length === 0 ? added : [...known, ...added]
}

/**
 * Returns the state after the first `length` messages. `mayPause`: it may return an earlier state, if other requests should have
 * their turn first.
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

/** Returns hashes of the first and the newest assistant messages: a transcript that contains one of them continues the same thread. */
export function assistantHashesOf(state: TranscriptState, conversation: Conversation): readonly Hash[] {
  return state.assistantMessages.map((step) => assistantHash(step, conversation))
}
