/** Keeps what users and assistants say, for the transcript that is opted into with `sessions.transcript`. */

import { joinedText, textsOf, withAnswerText, withShown } from '../../core/conversation/kept-transcript.ts'
import { isRealAnswer } from '../../core/conversation/real-answer.ts'
import type { Terminal } from '../../core/terminal.ts'
import { type SessionKey, sessionKey, TRANSCRIPTS } from '../../store/store.ts'
import type { Answered } from '../../usage/response-observer.ts'
import { changeValue, isolated } from '../fault.ts'
import type { Services } from '../services.ts'
import type { Turn } from '../turn.ts'
import { idBegunBy, idsIn } from './find-session.ts'

/** Begins to keep what a counted request and its answer say. */
export function keepRequest(turn: Turn): void {
  const { services, request, key, runState } = turn
  const { conversation, registry, facts } = request
  const { thread, isRetry, isNew, isNewRun } = runState
  const texts = isolated(services.emit, 'transcript', textsOf, conversation, registry) ?? []
  const isContinued = facts.previous !== undefined
  const endsInNew = isNewRun && !isRetry && facts.endsInUserMessage && texts.at(-1)?.role === 'user'
  // What a request said that continues a response was kept when it came first.
  const shown = { thread: thread.number, texts: isRetry && isContinued ? [] : texts, isContinued, endsInNew }
  turn.state.texts = { shown, answers: [], isOver: false }
  // Else what the request shows is kept together with its answer, in one write.
  if (isNew || isNewRun) keep(turn, key, '', false)
}

/** Keeps what the model answered. Several answers to a request are kept as one. */
export function keepAnswer(
  turn: Turn,
  text: string,
  answer: Pick<Answered, 'id' | 'conversation' | 'callsNothing'>,
): void {
  const { found, key, state } = turn
  if (!state.texts || state.texts.isOver) return
  const { answers } = state.texts
  if (isRealAnswer(text)) answers.push(text)
  const [first] = key === undefined ? idsIn(found, answer) : []
  const begun = first === undefined ? key : sessionKey(found.tenant, idBegunBy(first))
  keep(turn, begun, joinedText(answers), answer.callsNothing === true)
}

/** Keeps an answer that was fetched later than its request came. */
export function keepFetched(services: Services, key: SessionKey, answer: Parameters<typeof withAnswerText>[1]): void {
  void changeValue(services, TRANSCRIPTS, key, (entries) => withAnswerText(entries, answer))
}

/** Keeps the answer with which the run is over, and which the client got in the place of all others. */
export function keepEnd(turn: Turn, text: string, terminal: Terminal): void {
  if (!turn.state.texts) return
  turn.state.texts.isOver = true
  keep(turn, turn.key, text, true, terminal)
}

function keep(
  { services, request, state: { texts } }: Turn,
  key: SessionKey | undefined,
  text: string,
  callsNothing: boolean,
  terminal?: Terminal,
): void {
  if (!key || !texts) return
  const { shown } = texts
  const { thread } = shown
  // What was kept when the request came is not new any more.
  texts.shown = { ...shown, texts: shown.isContinued ? [] : shown.texts, endsInNew: false }
  const { fingerprint } = request.facts
  const answer = {
    thread,
    text,
    at: services.now(),
    request: fingerprint,
    callsNothing: callsNothing || undefined,
    terminal,
  }
  void changeValue(services, TRANSCRIPTS, key, (entries) =>
    withAnswerText(withShown(entries, shown, request.now), answer),
  )
}
