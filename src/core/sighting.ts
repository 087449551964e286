/** What one request tells about its session, boiled down to hashes and counts that can be remembered. */
import type { Conversation } from './conversation.ts'
import { type Hash, hashOf } from './hash.ts'
import { humanText, isSummaryRequest, type ScaffoldRegistry } from './scaffolding.ts'

export interface Sighting {
  /** Of the request's bytes: the same again is a retry. */
  readonly fingerprint: Hash
  readonly system: Hash
  /** Every human message of the transcript, in order. */
  readonly humans: readonly Hash[]
  /** Iteration number by the transcript alone: assistant messages since the last human message, plus one. */
  readonly iteration: number
  /** Tool calls since the last human message. */
  readonly toolCalls: number
  /** Tool calls of the newest assistant message: those that no earlier request of the run can have held. */
  readonly newToolCalls: number
  /** The first and the newest assistant messages: a transcript that holds one of them continues the same thread. */
  readonly ancestry: readonly Hash[]
  /** The newest assistant message, if there is one: what it is tells a transcript that grew from one that went back. */
  readonly newest: Hash | undefined
  /** The last message is a human's. */
  readonly endsInHuman: boolean
  /** The last message is the agent's own request for a final answer. */
  readonly asksForSummary: boolean
}

/** How many of the newest assistant messages identify a thread. */
const ANCESTRY = 8

function assistantHash(conversation: Conversation, index: number): Hash {
  const calls = conversation.calls(index).flatMap((call) => [call.id, call.name, call.arguments])
  return hashOf(...conversation.texts(index), ...calls)
}

/**
 * An assistant message that ends the input and calls nothing is the beginning of an answer that the client
 * put into the model's mouth, not a model call that was made.
 */
function isPrefill(conversation: Conversation, index: number): boolean {
  return (
    index === conversation.length - 1 &&
    conversation.role(index) === 'assistant' &&
    conversation.calls(index).length === 0
  )
}

/** A message without any text, a picture say: a person's, unless it follows what a tool gave and shows that. */
function isPersonsPicture(conversation: Conversation, index: number): boolean {
  return (
    conversation.texts(index).length === 0 && (index === 0 || conversation.results(index - 1).length === 0)
  )
}

/** Reads a conversation once, front to back. `body` is the request's raw bytes. */
export function sight(conversation: Conversation, body: Uint8Array, registry: ScaffoldRegistry): Sighting {
  const humans: Hash[] = []
  const assistants: number[] = []
  let firstSinceHuman = 0
  let lastHuman = -1
  for (let index = 0; index < conversation.length; index++) {
    const role = conversation.role(index)
    if (role === 'assistant' && !isPrefill(conversation, index)) assistants.push(index)
    if (role !== 'user' || conversation.results(index).length > 0) continue
    const said = humanText(conversation.texts(index), registry)
    if (said === '' && !isPersonsPicture(conversation, index)) continue
    humans.push(hashOf(said))
    firstSinceHuman = assistants.length
    lastHuman = index
  }
  const sinceHuman = assistants.slice(firstSinceHuman)
  const callCounts = sinceHuman.map((index) => conversation.calls(index).length)
  const known = new Set(
    [assistants[0], ...assistants.slice(-ANCESTRY)].filter((index) => index !== undefined),
  )
  const last = conversation.length - 1
  const ancestry = [...known].map((index) => assistantHash(conversation, index))
  return {
    fingerprint: hashOf(body),
    system: hashOf(conversation.systemText),
    humans,
    iteration: sinceHuman.length + 1,
    toolCalls: callCounts.reduce((sum, count) => sum + count, 0),
    newToolCalls: callCounts.at(-1) ?? 0,
    ancestry,
    newest: ancestry.at(-1),
    endsInHuman: lastHuman === last && last >= 0,
    asksForSummary:
      last >= 0 && conversation.role(last) === 'user' && isSummaryRequest(conversation.texts(last), registry),
  }
}

/** Does the request take part in a tool loop? Titles and summaries offer no tools and hold no results. */
export function isAgentic(conversation: Conversation): boolean {
  if (conversation.offersTools) return true
  for (let index = conversation.length - 1; index >= 0; index--) {
    if (conversation.results(index).length > 0) return true
  }
  return false
}

/**
 * The name of a session whose client sends none: what it was asked and how it first answered, so that fifty
 * parallel runs of one prompt are fifty sessions. `undefined` while there is no assistant message: such a
 * request is the first of something new.
 */
export function derivedSessionId(
  tenant: string,
  conversation: Conversation,
  registry: ScaffoldRegistry,
): Hash | undefined {
  let human = ''
  for (let index = 0; index < conversation.length; index++) {
    const role = conversation.role(index)
    if (role === 'user' && human === '') human = humanText(conversation.texts(index), registry)
    if (role === 'assistant' && !isPrefill(conversation, index)) {
      return hashOf(tenant, conversation.systemText, human, assistantHash(conversation, index))
    }
  }
  return undefined
}
