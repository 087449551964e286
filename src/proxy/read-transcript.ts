/** Reads long conversations without keeping other requests waiting. */
import { setImmediate } from 'node:timers/promises'
import type { Conversation } from '../core/conversation.ts'
import type { HarnessRegistry } from '../core/harness/match.ts'
import { advance, emptyTranscript, type TranscriptState } from '../core/session/transcript.ts'

/** Reads the first `length` messages of a conversation, and lets other requests have a turn wherever that is due. */
export async function readInTurns(
  conversation: Conversation,
  length: number,
  registry: HarnessRegistry,
): Promise<TranscriptState> {
  let state = advance(emptyTranscript(conversation), conversation, length, registry, true)
  while (state.length < length) {
    await setImmediate()
    conversation.work?.paused()
    state = advance(state, conversation, length, registry, true)
  }
  return state
}
