/** Reads long conversations without keeping everybody else waiting. */
import { setImmediate } from 'node:timers/promises'
import type { Conversation } from '../core/conversation.ts'
import type { HarnessRegistry } from '../core/harness/match.ts'
import { advance, type TranscriptState } from '../core/session/transcript.ts'

/** Reads on, and lets others have a turn wherever that is due. */
export function readInTurns(
  from: TranscriptState,
  conversation: Conversation,
  length: number,
  registry: HarnessRegistry,
): TranscriptState | Promise<TranscriptState> {
  const state = advance(from, conversation, length, registry, true)
  if (state.length >= length) return state
  return setImmediate().then(() => {
    conversation.work?.paused()
    return readInTurns(state, conversation, length, registry)
  })
}
