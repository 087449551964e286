/** Keeps what users and assistants say, for the transcript that is opted into with `sessions.transcript`. */
import { isRealAnswer } from '../../core/final-answer.ts'
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
 * Reads the answers of a request that is not counted yet; returns a function that begins to keep them once it is.
 * `undefined` where transcripts are not kept. `key`: unset while the session has no name.
 */
export function keepTranscript(
  services: Services,
  { conversation, registry, facts }: Request,
  key: SessionKey | undefined,
): ((runState: RunState) => TranscriptKeeper) | undefined {
  const { store, emit, now, keepsTranscripts } = services
  if (!keepsTranscripts) return undefined
  const texts = isolated(emit, 'transcript', () => textsOf(conversation, registry)) ?? []
  const askedAt = now()
  const isContinued = facts.previous !== undefined
  return ({ thread: { number = 0 }, isRetry, isNew, isNewRun }) => {
    const isBegin = isNewRun && !isRetry && facts.endsInUserMessage && texts.at(-1)?.role === 'user'
    // What a request said that continues a response was kept when it came first.
    const first = {
      thread: number,
      texts: isRetry && isContinued ? [] : texts,
      isContinued,
      endsInNew: isBegin,
    }
    const answers: string[] = []
    let isOver = false
    let hasKept = false
    const keep = (at: SessionKey | undefined, text: string, callsNothing: boolean, terminal?: Terminal) => {
      if (!at) return
      const endedAt = now()
      // What was kept when the request came is not new any more.
      const shown = hasKept ? { ...first, texts: isContinued ? [] : texts, endsInNew: false } : first
      hasKept = true
      const answer = { text, request: facts.fingerprint, callsNothing, terminal }
      store
        .updateValue(TRANSCRIPTS, at, (entries) => {
          const asked = withShown(entries, shown, askedAt)
          return { value: withAnswerText(asked, number, answer, endedAt), result: undefined }
        })
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
}
