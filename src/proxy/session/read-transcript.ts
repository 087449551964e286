/** Reads long conversations without keeping other requests waiting. */
import { setImmediate } from 'node:timers/promises'
import { type Conversation, lastMessage } from '../../core/conversation.ts'
import type { HarnessRegistry } from '../../core/harness/match.ts'
import type { BodyHashes } from '../../core/hash.ts'
import { advance, assistantHash, emptyTranscript, type TranscriptState } from '../../core/session/transcript.ts'
import type { DialectRequest } from '../../dialect/dialect.ts'
import { type KnownPrefix, type KnownPrefixes, newPrefix } from './known-prefixes.ts'

async function pause({ work }: Conversation): Promise<void> {
  await setImmediate()
  work?.paused()
}

async function takeTurns(conversation: Conversation, turns: Iterable<void>): Promise<void> {
  for (const _ of turns) await pause(conversation)
}

/** Decodes a large message, or with -1 the system text; `undefined` if there is nothing to wait for. */
function prepare(conversation: Conversation, index: number): Promise<void> | undefined {
  const turns = conversation.prepare?.(index)
  return turns && takeTurns(conversation, turns)
}

/** Decodes the message at `index` with all of its parts. */
async function prepareWhole(conversation: Conversation, index: number): Promise<void> {
  let at = index
  do await prepare(conversation, at++)
  while (at < conversation.length && conversation.role(at) === 'part')
}

/** Decodes what is read of a conversation whatever is known of its session, apart from its newest answers. */
async function prepareAll(conversation: Conversation, known: TranscriptState | undefined): Promise<void> {
  let hasAnswer = known !== undefined && known.assistantMessages.length > 0
  await prepare(conversation, -1)
  for (let index = 0; index < conversation.length; index++) {
    const role = conversation.role(index)
    // The system text is decoded whatever is known, as it may also stand in fields after the messages.
    if (known && index < known.length && role !== 'system') continue
    const isFirstAnswer: boolean = role === 'assistant' && !hasAnswer
    hasAnswer ||= isFirstAnswer
    const prepared =
      role === 'user' || role === 'system'
        ? prepare(conversation, index)
        : isFirstAnswer
          ? prepareWhole(conversation, index)
          : undefined
    if (prepared) await prepared
  }
}

async function advanceInTurns(
  from: TranscriptState,
  conversation: Conversation,
  length: number,
  registry: HarnessRegistry,
): Promise<TranscriptState> {
  let state = advance(from, conversation, length, registry, true)
  while (state.length < length) {
    await pause(conversation)
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

/**
 * Reads all messages of a request but the last, and lets other requests have a turn wherever that is due, also within a
 * large message. What is known of the request's beginning is not read again.
 */
export async function readInTurns(
  { conversation, index }: DialectRequest,
  registry: HarnessRegistry,
  beginning?: Beginning,
): Promise<TranscriptState> {
  const known = beginning?.known
  // If the key of the list is there twice, another list may count than the known one.
  const read = known && index?.items[0] === known.items[0] ? known.transcript : undefined
  // The index of the request took its time as well.
  if (conversation.work?.isDue) await pause(conversation)
  await prepareAll(conversation, read)
  const empty = emptyTranscript(conversation)
  let state = read ? { ...read, system: empty.system } : empty
  const prefix = index && beginning && newPrefix(beginning.prefixes, index, beginning.hashes)
  if (prefix) {
    // The last message may have more parts in a later request.
    const whole = lastMessage(conversation, prefix.items.length)
    state = await advanceInTurns(state, conversation, whole, registry)
    const { hash, ...items } = prefix
    beginning.prefixes.set(hash, { transcript: state, ...items })
  }
  const length = lastMessage(conversation)
  state = await advanceInTurns(state, conversation, length, registry)
  for (const step of state.assistantMessages) {
    if (step.hash !== undefined) continue
    await prepareWhole(conversation, step.index)
    assistantHash(step, conversation)
  }
  if (length < conversation.length) await prepareWhole(conversation, length)
  if (conversation.work?.isDue) await pause(conversation)
  return state
}
