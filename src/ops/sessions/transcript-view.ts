/** A kept transcript as operators see it. Pure; the keys are part of the public contract. */
import type { TranscriptEntry } from '../../core/transcript/kept-transcript.ts'
import type { SessionDetail, Transcript } from './api-schema.ts'
import { answerView } from './view.ts'

/**
 * Returns what is shown of the transcript of a session. A run is completed if its last answer called no tool, and a
 * user spoke after it or nothing came for five minutes: text alone completes nothing.
 */
export function transcriptOf(
  entries: readonly TranscriptEntry[],
  { threads }: Pick<SessionDetail, 'threads'>,
): Omit<Transcript, 'id'> {
  const completed = new Set(threads.filter(({ state }) => state === 'completed').map(({ thread }) => thread))
  const following = new Map<number, TranscriptEntry>()
  const shown = entries.toReversed().map((entry): Transcript['entries'][number] => {
    const { thread, role, text, truncated = false, at, terminal = null, callsNothing } = entry
    const next = following.get(thread)
    following.set(thread, entry)
    const isLast = next ? next.role === 'user' : completed.has(thread)
    const isCompleted = role === 'assistant' && callsNothing && isLast
    const terminal_state = terminal?.terminal_state ?? (isCompleted ? 'completed' : null)
    return { thread, role, text, truncated, at: new Date(at).toISOString(), terminal_state, terminal }
  })
  return { entries: shown.reverse(), truncated: (entries[0]?.number ?? 1) > 1 }
}

/** Returns the last answer of a session whose newest ended run is completed; `null` if none is kept. */
export function completedAnswer(
  entries: readonly TranscriptEntry[],
  { threads }: Pick<SessionDetail, 'threads'>,
): SessionDetail['final_answer'] {
  const ended = threads.findLast(({ state }) => state === 'completed')
  const last = ended && entries.findLast(({ thread }) => thread === ended.thread)
  if (last?.role !== 'assistant' || !last.callsNothing) return null
  return answerView(last.text, last.truncated)
}
