/** Keeps what users and assistants say, for the transcript that is opted into with `sessions.transcript`. */
import { isRealAnswer } from '../../core/real-answer.ts'
import type { Request } from '../../core/request.ts'
import type { RunState } from '../../core/session/session.ts'
import type { Terminal } from '../../core/terminal.ts'
import { joinedText, textsOf, withAnswerText, withShown } from '../../core/transcript/kept-transcript.ts'
import { type SessionKey, TRANSCRIPTS } from '../../store/store.ts'
import { isolated } from '../fault.ts'
import type { Services } from '../services.ts'

/** Keeps the answers of one request and of its answer. No function throws or waits. */
export interface TranscriptKeeper {
  /** The model has answered. Several answers are shown as one. `key`: of a session that has just begun. */
  answered(text: string, callsNothing: boolean, key?: SessionKey): void
  /** The run is over with this answer, which the client got in the place of all answers to its request. */
  ended(text: string, terminal: Terminal): void
}

/**
 * Begins to keep what a counted request and its answer say; `undefined` where transcripts are not kept. `key`: unset
 * while the session has no name.
 */
export function keepTranscript(
  { store, emit, now, keepsTranscripts }: Services,
  { conversation, registry, facts, now: askedAt }: Request,
  key: SessionKey | undefined,
  { thread: { number: thread = 0 }, isRetry, isNew, isNewRun }: RunState,
): TranscriptKeeper | undefined {
  if (!keepsTranscripts) return undefined
  const texts = isolated(emit, 'transcript', () => textsOf(conversation, registry)) ?? []
  const isContinued = facts.previous !== undefined
  const isBegin = isNewRun && !isRetry && facts.endsInUserMessage && texts.at(-1)?.role === 'user'
  // What a request said that continues a response was kept when it came first.
  let shown = { thread, texts: isRetry && isContinued ? [] : texts, isContinued, endsInNew: isBegin }
  const answers: string[] = []
  let isOver = false
  const keep = (at: SessionKey | undefined, text: string, callsNothing: boolean, terminal?: Terminal) => {
    if (!at) return
    const endedAt = now()
    const asked = shown
    // What was kept when the request came is not new any more.
    shown = { ...shown, texts: isContinued ? [] : texts, endsInNew: false }
    const answer = { text, request: facts.fingerprint, callsNothing, terminal }
    store
      .updateValue(TRANSCRIPTS, at, (entries) => ({
        value: withAnswerText(withShown(entries, asked, askedAt), thread, answer, endedAt),
        result: undefined,
      }))
      .catch(() => emit({ kind: 'failed_open', reason: 'store' }))
  }
  // Else what the request shows is kept together with its answer, in one write.
  if (isNew || isNewRun) keep(key, '', false)
  return {
    answered(text, callsNothing, at = key) {
      if (isOver) return
      if (isRealAnswer(text)) answers.push(text)
      keep(at, joinedText(answers), callsNothing)
    },
    ended(text, terminal) {
      isOver = true
      keep(key, text, true, terminal)
    },
  }
}
