/** Reads long conversations without keeping everybody else waiting. */
import { setImmediate } from 'node:timers/promises'
import type { Conversation } from '../core/conversation.ts'
import type { ScaffoldRegistry } from '../core/harness/match.ts'
import { type Reading, readOn } from '../core/session/transcript.ts'

/** Reads on, and lets others have a turn wherever that is due. */
export function readInTurns(
  from: Reading,
  conversation: Conversation,
  length: number,
  registry: ScaffoldRegistry,
): Reading | Promise<Reading> {
  const reading = readOn(from, conversation, length, registry, true)
  if (reading.length >= length) return reading
  return setImmediate().then(() => {
    conversation.work?.paused()
    return readInTurns(reading, conversation, length, registry)
  })
}
