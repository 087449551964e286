/** A kept transcript as operators see it. Pure; the keys are part of the public contract. */
import type { TranscriptEntry } from '../../core/transcript/kept-transcript.ts'
import type { SessionDetail, Transcript } from './schema.ts'
import { answerView } from './view.ts'

type ThreadView = SessionDetail['threads'][number]
type EntryView = Transcript['entries'][number]

/**
 * Returns the state in which the run of an answer ended; `null` if it went on, or is not over. A run is completed
 * if its last answer called no tool, and a user spoke after it or nothing came for five minutes: text alone
 * completes nothing.
 */
function endOf(
  entry: TranscriptEntry,
  next: TranscriptEntry | undefined,
  thread: ThreadView | undefined,
): EntryView['terminal_state'] {
  if (entry.role === 'user') return null
  if (entry.terminal) return entry.terminal.terminal_state
  const isLast = next ? next.role === 'user' : thread?.state === 'completed'
  return entry.callsNothing && isLast ? 'completed' : null
}

/** Returns what is shown of the transcript of a session. */
export function transcriptOf(
  entries: readonly TranscriptEntry[],
  { threads }: Pick<SessionDetail, 'threads'>,
): Omit<Transcript, 'id'> {
  const byNumber = new Map(threads.map((thread) => [thread.thread, thread]))
  const following = new Map<number, TranscriptEntry>()
  const shown = entries.toReversed().map((entry): EntryView => {
    const { thread, role, text, truncated = false, at, terminal = null } = entry
    const ended = endOf(entry, following.get(thread), byNumber.get(thread))
    following.set(thread, entry)
    return { thread, role, text, truncated, at: new Date(at).toISOString(), terminal_state: ended, terminal }
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
