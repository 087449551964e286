/** Reads long conversations without keeping other requests waiting. */
import { setImmediate } from 'node:timers/promises'
import { type Conversation, lastMessage } from '../../core/conversation.ts'
import type { HarnessRegistry } from '../../core/harness/match.ts'
import type { BodyHashes } from '../../core/hash.ts'
import { advance, assistantHash, emptyTranscript, type TranscriptState } from '../../core/session/transcript.ts'
import type { DialectRequest } from '../../dialect/dialect.ts'
import { type KnownPrefix, type KnownPrefixes, newPrefix } from './known-prefixes.ts'

/** Yields wherever other requests should have their turn: without such a place a request waits for nothing. */
type Turns<Result = void> = Generator<void, Result, undefined>

/** Decodes a large message, or with -1 the system text. */
function* prepare(conversation: Conversation, index: number): Turns {
  const turns = conversation.prepare?.(index)
  if (turns) yield* turns
}

/** Decodes the message at `index` with all of its parts. */
function* prepareWhole(conversation: Conversation, index: number): Turns {
  let at = index
  do yield* prepare(conversation, at++)
  while (at < conversation.length && conversation.role(at) === 'part')
}

/** Decodes what is read of a conversation whatever is known of its session, apart from its newest answers. */
function* prepareAll(conversation: Conversation, known: TranscriptState | undefined): Turns {
  let hasAnswer = known !== undefined && known.assistantMessages.length > 0
  yield* prepare(conversation, -1)
  for (let index = 0; index < conversation.length; index++) {
    const role = conversation.role(index)
    // The system text is decoded whatever is known, as it may also stand in fields after the messages.
    if (known && index < known.length && role !== 'system') continue
    if (role === 'user' || role === 'system') yield* prepare(conversation, index)
    else if (role === 'assistant' && !hasAnswer) {
      hasAnswer = true
      yield* prepareWhole(conversation, index)
    }
  }
}

function* advanceInTurns(
  from: TranscriptState,
  conversation: Conversation,
  length: number,
  registry: HarnessRegistry,
): Turns<TranscriptState> {
  let state = advance(from, conversation, length, registry, true)
  while (state.length < length) {
    yield
    state = advance(state, conversation, length, registry, true)
  }
  return state
}

/** The hashes of a request's body, what is known of its beginning, and where to remember more of it. */
export interface Beginning {
  readonly hashes: BodyHashes
  readonly known: KnownPrefix | undefined
  readonly prefixes: KnownPrefixes
}

function* read(
  { conversation, index }: DialectRequest,
  registry: HarnessRegistry,
  beginning: Beginning | undefined,
): Turns<TranscriptState> {
  const known = beginning?.known
  // If the key of the list is there twice, another list may count than the known one.
  const begun = known && index?.items[0] === known.items[0] ? known.transcript : undefined
  // The index of the request took its time as well.
  if (conversation.work?.isDue) yield
  yield* prepareAll(conversation, begun)
  const empty = emptyTranscript(conversation)
  let state = begun ? { ...begun, system: empty.system } : empty
  const prefix = index && beginning && newPrefix(beginning.prefixes, index, beginning.hashes)
  if (prefix) {
    // The last message may have more parts in a later request.
    const whole = lastMessage(conversation, prefix.items.length)
    state = yield* advanceInTurns(state, conversation, whole, registry)
    const { hash, ...items } = prefix
    beginning.prefixes.set(hash, { transcript: state, ...items })
  }
  const length = lastMessage(conversation)
  state = yield* advanceInTurns(state, conversation, length, registry)
  for (const step of state.assistantMessages) {
    if (step.hash !== undefined) continue
    yield* prepareWhole(conversation, step.index)
    assistantHash(step, conversation)
  }
  if (length < conversation.length) yield* prepareWhole(conversation, length)
  if (conversation.work?.isDue) yield
  return state
}

/**
 * Reads all messages of a request but the last, and lets other requests have a turn wherever that is due, also within a
 * large message. What is known of the request's beginning is not read again.
 */
export async function readInTurns(
  asked: DialectRequest,
  registry: HarnessRegistry,
  beginning?: Beginning,
): Promise<TranscriptState> {
  const turns = read(asked, registry, beginning)
  for (;;) {
    const { done, value } = turns.next()
    if (done) return value
    await setImmediate()
    asked.conversation.work?.paused()
  }
}
