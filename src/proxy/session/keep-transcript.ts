/** Keeps what users and assistants say, for the transcript that is opted into with `sessions.transcript`. */
import { isRealAnswer } from '../../core/final-answer.ts'
import type { RunState } from '../../core/session/session.ts'
import type { Terminal } from '../../core/terminal.ts'
import { joinedText, type SaidIn, withAnswerText, withSaid } from '../../core/transcript/kept-transcript.ts'
import { type SessionKey, TRANSCRIPTS } from '../../store/store.ts'
import type { Services } from '../services.ts'

/** A counted request whose texts are kept. */
export interface TranscribedRequest {
  /** Unset while its session has no name. */
  readonly key: SessionKey | undefined
  readonly fingerprint: string
  readonly runState: Pick<RunState, 'thread' | 'isRetry' | 'isNew' | 'isNewRun'>
  /** What the request shows. */
  readonly said: SaidIn['said']
  /** The request contains new messages alone. */
  readonly isContinued: boolean
  readonly endsInUserMessage: boolean
}

/** Keeps the texts of one request and of its answer. No function throws or waits. */
export interface TranscriptKeeper {
  /** The model has answered. Several answers to one request are shown as one. `key`: of a session that has just begun. */
  answered(text: string, callsNothing: boolean, key?: SessionKey): void
  /** The run is over with this answer, which the client got in the place of all answers to its request. */
  ended(text: string, terminal: Terminal): void
}

/** Begins to keep the texts of a request. */
export function keepTranscript(
  services: Pick<Services, 'store' | 'emit' | 'now'>,
  request: TranscribedRequest,
): TranscriptKeeper {
  const { fingerprint, runState } = request
  const { thread, isRetry, isNew, isNewRun } = runState
  const askedAt = services.now()
  const texts: string[] = []
  let isOver = false
  const shown: SaidIn = {
    thread,
    // What a request said that continues a response was kept when it came first.
    said: isRetry && request.isContinued ? [] : request.said,
    isContinued: request.isContinued,
    endsInNew: isNewRun && !isRetry && request.endsInUserMessage && request.said.at(-1)?.role === 'user',
  }
  let hasKept = false
  const keep = (key: SessionKey | undefined, text: string, callsNothing: boolean, terminal?: Terminal) => {
    if (!key) return
    const endedAt = services.now()
    // What was kept when the request came is not new any more.
    const now = hasKept ? { ...shown, said: request.isContinued ? [] : shown.said, endsInNew: false } : shown
    hasKept = true
    services.store
      .updateValue(TRANSCRIPTS, key, (entries) => {
        const said = withSaid(entries, now, askedAt)
        const answer = { text, request: fingerprint, callsNothing, terminal }
        return { value: withAnswerText(said, thread, answer, endedAt), result: undefined }
      })
      .catch(() => services.emit({ kind: 'failed_open', reason: 'store' }))
  }
  // Else what the request shows is kept together with its answer, in one write.
  if (isNew || isNewRun) keep(request.key, '', false)
  return {
    answered(text, callsNothing, key = request.key) {
      if (isOver) return
      if (isRealAnswer(text)) texts.push(text)
      keep(key, joinedText(texts), callsNothing)
    },
    ended(text, terminal) {
      isOver = true
      keep(request.key, text, true, terminal)
    },
  }
}
