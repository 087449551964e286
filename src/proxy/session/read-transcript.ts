/** Reads long conversations without keeping other requests waiting. */
import { setImmediate } from 'node:timers/promises'
import type { Conversation } from '../../core/conversation.ts'
import type { HarnessRegistry } from '../../core/harness/match.ts'
import {
  advance,
  assistantHash,
  emptyTranscript,
  type TranscriptState,
} from '../../core/session/transcript.ts'

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
async function prepareAll(conversation: Conversation): Promise<void> {
  let hasAnswer = false
  await prepare(conversation, -1)
  for (let index = 0; index < conversation.length; index++) {
    const role = conversation.role(index)
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

/**
 * Reads the first `length` messages of a conversation, and lets other requests have a turn wherever that is due, also within a
 * large message.
 */
export async function readInTurns(
  conversation: Conversation,
  length: number,
  registry: HarnessRegistry,
): Promise<TranscriptState> {
  // The index of the request took its time as well.
  if (conversation.work?.isDue) await pause(conversation)
  await prepareAll(conversation)
  let state = advance(emptyTranscript(conversation), conversation, length, registry, true)
  while (state.length < length) {
    await pause(conversation)
    state = advance(state, conversation, length, registry, true)
  }
  for (const step of state.assistantMessages) {
    await prepareWhole(conversation, step.index)
    assistantHash(step, conversation)
  }
  if (length < conversation.length) await prepareWhole(conversation, length)
  if (conversation.work?.isDue) await pause(conversation)
  return state
}
