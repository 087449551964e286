/** Reads the messages of a conversation as a fold: any state can be advanced by the next message. */
import { type Named, plus, toolLabel, withAmounts } from '../by-name.ts'
import { type HarnessRegistry, humanText } from '../harness/match.ts'
import { WRITTEN_CALLS, WRITTEN_RESULT } from '../harness/texts.ts'
import { type Hash, hashOfText, lengthPrefixed } from '../hash.ts'
import type { Conversation } from './conversation.ts'
import { withoutLoaded } from './loaded-text.ts'

/** An assistant message. All states that follow from one another share it, so that it is hashed once. */
export interface AssistantMessage {
  readonly index: number
  readonly calls: number
  /** Both are unset until they are needed. */
  hash: Hash | undefined
  callIds: readonly Hash[] | undefined
}

/** The first answer after words of a user. */
interface Opener {
  readonly step: AssistantMessage
  /** How many user messages stand before it. */
  readonly users: number
  /** The assistant message before it; unset for the first one. */
  readonly before: AssistantMessage | undefined
}

/** What the first `length` messages of a conversation say. */
export interface TranscriptState {
  /** How many messages were read. */
  readonly length: number
  /** Every user message, in order. */
  readonly userMessageHashes: readonly Hash[]
  /** A message of role user was read, by a human or not. */
  readonly hasUserRole: boolean
  /** The first and the newest openers, in order: any of them may be the first answer that is not part of a prompt. */
  readonly openers: readonly Opener[]
  /** Assistant messages since the last user message. */
  readonly iterations: number
  /** Tool calls since the last user message. */
  readonly toolCalls: number
  /** Tool calls of the newest assistant message of the run: no earlier request of the run can have shown them. */
  readonly newToolCalls: number
  /** A user's words stand after the last answer. */
  readonly endsInUserMessage: boolean
  /** The first and the newest assistant messages, in order. */
  readonly assistantMessages: readonly AssistantMessage[]
  /** The bytes of all results, by tool. */
  readonly resultBytes: readonly Named<number>[]
  /** Hash of the system text, and the bytes of it that are in no message, as a text; unset until it was read. */
  readonly system: { readonly hash: Hash; readonly fields: string } | undefined
}

export const EMPTY_TRANSCRIPT: TranscriptState = {
  length: 0,
  userMessageHashes: [],
  hasUserRole: false,
  openers: [],
  iterations: 0,
  toolCalls: 0,
  newToolCalls: 0,
  endsInUserMessage: false,
  assistantMessages: [],
  resultBytes: [],
  system: undefined,
}

/** How many of the newest assistant messages identify a thread, and how many openers are kept at either end. */
export const MAX_ASSISTANT_MESSAGES = 8

/** Index of the last of the first `length` messages, or of its first part; -1 if there is no message. */
export function lastMessage(conversation: Conversation, length = conversation.length): number {
  let last = length - 1
  while (last > 0 && conversation.role(last) === 'part') last--
  return last
}

/**
 * Returns the assistant messages of a transcript, without one at the end of the conversation: its results are to come.
 */
export function followedSteps(
  { assistantMessages }: TranscriptState,
  conversation: Conversation,
): readonly AssistantMessage[] {
  const isAtEnd = assistantMessages.at(-1)?.index === lastMessage(conversation)
  return isAtEnd ? assistantMessages.slice(0, -1) : assistantMessages
}

/** Returns all that an assistant message says and calls, as one text. */
function contentOf({ index }: AssistantMessage, conversation: Conversation, hasIds: boolean): string {
  let list = ''
  for (const text of conversation.texts(index)) if (text !== '') list += lengthPrefixed(text)
  for (const call of conversation.calls(index)) {
    if (hasIds) list += lengthPrefixed(call.id)
    list += lengthPrefixed(call.name) + lengthPrefixed(call.arguments)
  }
  return list
}

/** Returns a hash of all that an assistant message says and calls. */
export function assistantHash(step: AssistantMessage, conversation: Conversation): Hash {
  if (step.hash !== undefined) return step.hash
  let list = contentOf(step, conversation, true)
  for (const id of conversation.ranByProvider?.(step.index) ?? []) list += lengthPrefixed(id)
  const hash = hashOfText(list)
  step.hash = hash
  return hash
}

/** Returns a hash of the place of an assistant message, and of all that it says and calls, without the ids of calls. */
export function placedHash(step: AssistantMessage, conversation: Conversation): Hash {
  return hashOfText(`${step.index} ${contentOf(step, conversation, false)}`)
}

/** The ids of calls that identify one assistant message: a client may join all answers of a run into one message. */
const MAX_CALL_IDS = 64

/**
 * Returns hashes of the newest call ids in an assistant message. An id that is empty or repeated identifies no call.
 */
export function callIdsOf(step: AssistantMessage, conversation: Conversation): readonly Hash[] {
  if (step.callIds) return step.callIds
  const callIds = step.calls === 0 ? [] : distinctIds(conversation.calls(step.index).map(({ id }) => id))
  step.callIds = callIds
  return callIds
}

/** Returns hashes of the newest of these call ids, without those that are empty or repeated. */
export function distinctIds(ids: readonly string[]): readonly Hash[] {
  const [only = ''] = ids
  if (ids.length === 1) return only === '' ? [] : [hashOfText(only)]
  const repeated = new Set<string>([''])
  const seen = new Set<string>()
  for (const id of ids) (seen.has(id) ? repeated : seen).add(id)
  const hashes: Hash[] = []
  for (const id of seen) if (!repeated.has(id)) hashes.push(hashOfText(id))
  return hashes.slice(-MAX_CALL_IDS)
}

/** Returns the user's own words in a message, empty for a picture alone; `undefined` if it is no user's message. */
export function userText(conversation: Conversation, index: number, registry: HarnessRegistry): string | undefined {
  if (conversation.role(index) !== 'user') return undefined
  const texts = conversation.texts(index)
  const said = humanText(withoutLoaded(conversation, index), registry)
  if (said === '') {
    // After a tool's result, a picture may show that.
    const isPicture = texts.length === 0 && conversation.resultCount(index) === 0
    return isPicture && (index === 0 || conversation.resultCount(index - 1) === 0) ? '' : undefined
  }
  if (index === 0 || !WRITTEN_RESULT.test(said) || conversation.role(index - 1) !== 'assistant') return said
  // It is the result of calls that are written out in the text of the message before it.
  return conversation.texts(index - 1).some((text) => WRITTEN_CALLS.test(text)) ? undefined : said
}

/** Adds entries to a list, and keeps the first `oldest` of all and the newest eight. */
function withEntries<Item>(known: readonly Item[], added: readonly Item[], oldest: number): readonly Item[] {
  if (added.length === 0) return known
  const all = [...known, ...added]
  const extra = all.length - oldest - MAX_ASSISTANT_MESSAGES
  if (extra > 0) all.splice(oldest, extra)
  return all
}

/** Adds the results of a message to the bytes by tool. `tools`: of the calls that may have led to them, by id. */
export function withResults(
  bytes: readonly Named<number>[],
  conversation: Conversation,
  index: number,
  tools: ReadonlyMap<string, string>,
): readonly Named<number>[] {
  // One side may have no ids, or other ones.
  const [only] = tools.size === 1 ? tools.values() : []
  const added = (conversation.resultSizes?.(index) ?? []).map(({ callId, name, bytes: amount }) => {
    return { name: toolLabel(name ?? tools.get(callId) ?? only ?? ''), amount }
  })
  return withAmounts(bytes, added, plus)
}

/** Returns true if reading should stop before a message: others wait, or the calls of its results are decoded first. */
function stopsBefore(conversation: Conversation, hasResults: boolean, newest: AssistantMessage | undefined): boolean {
  if (conversation.work?.isDue) return true
  return hasResults && newest !== undefined && conversation.prepare?.(newest.index) !== undefined
}

/**
 * Returns the state after `length` messages; with `mayPause` an earlier one where others should have their turn, or
 * where the newest answer should be decoded first.
 */
export function advance(
  from: TranscriptState,
  conversation: Conversation,
  length: number,
  registry: HarnessRegistry,
  mayPause = false,
): TranscriptState {
  if (length <= from.length) return from
  let { hasUserRole, iterations, toolCalls, newToolCalls, endsInUserMessage, resultBytes } = from
  const userMessageHashes = [...from.userMessageHashes]
  const assistantMessages: AssistantMessage[] = []
  const openers: Opener[] = []
  let newest = from.assistantMessages.at(-1)
  let tools: ReadonlyMap<string, string> | undefined
  let index = from.length
  for (; index < length; index++) {
    const role = conversation.role(index)
    const hasResults = role !== 'assistant' && conversation.resultCount(index) > 0
    if (mayPause && index > from.length && stopsBefore(conversation, hasResults, newest)) break
    // The words of a harness, a system text, or results may stand after those of a user.
    if (role === 'assistant') endsInUserMessage = false
    if (hasResults) {
      tools ??= new Map(newest && conversation.calls(newest.index).map(({ id, name }) => [id, name]))
      resultBytes = withResults(resultBytes, conversation, index, tools)
    }
    if (role === 'assistant') {
      newToolCalls = conversation.callCount(index)
      const step: AssistantMessage = { index, calls: newToolCalls, hash: undefined, callIds: undefined }
      const users = userMessageHashes.length
      const opener = openers.at(-1) ?? from.openers.at(-1)
      // Answers before any message of a user belong to the prompt.
      if (hasUserRole && users > (opener?.users ?? -1)) openers.push({ step, users, before: newest })
      assistantMessages.push(step)
      newest = step
      tools = undefined
      iterations++
      toolCalls += newToolCalls
      continue
    }
    hasUserRole ||= role === 'user'
    const said = userText(conversation, index, registry)
    if (said === undefined) continue
    userMessageHashes.push(hashOfText(said))
    iterations = toolCalls = newToolCalls = 0
    endsInUserMessage = true
  }
  return {
    length: index,
    userMessageHashes,
    hasUserRole,
    openers: withEntries(from.openers, openers, MAX_ASSISTANT_MESSAGES),
    iterations,
    toolCalls,
    newToolCalls,
    endsInUserMessage,
    assistantMessages: withEntries(from.assistantMessages, assistantMessages, 1),
    resultBytes,
    system: from.system,
  }
}
