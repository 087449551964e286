/** Finds the events that end a stream of Responses, without decoding it: its events repeat the request. */
import { eventOf, hasError } from '../shared/event-types.ts'

/** Each finds the last line of a stream's piece, in Latin-1, of a complete response, or of one without a failure. */
export const lastCompleted = eventOf('response\\.completed')
export const lastEnd = eventOf('response\\.(?:completed|incomplete|done)')
const lastFailure = eventOf('response\\.(?:failed|cancelled)')

/** Words without which a piece has none of these events. */
const WORD = /response\.(?:completed|incomplete|done|failed|cancelled)/

/** Returns how a response ended, if a piece of its stream, in Latin-1, says that. */
export function endIn(piece: string): 'whole' | 'failed' | undefined {
  const hasWord = WORD.test(piece)
  if (hasError(piece) || (hasWord && lastFailure(piece))) return 'failed'
  return hasWord && lastEnd(piece) ? 'whole' : undefined
}

/** True if a piece of a stream says that its response is over; an error may be one of this stream alone. */
export function isOver(piece: string): boolean {
  return (lastEnd(piece) ?? lastFailure(piece)) !== undefined
}
