/** Finds the events that end a stream of Responses, without decoding it: its events repeat the request. */
import { eventOf, hasError } from '../shared/event-types.ts'

const COMPLETED = eventOf('response\\.completed')
const WHOLE = eventOf('response\\.(?:completed|incomplete|done)')
const FAILED = eventOf('response\\.(?:failed|cancelled)')
const OVER = eventOf('response\\.(?:completed|incomplete|done|failed|cancelled)')

/** Words without which a piece has none of these events. */
const WORD = /response\.(?:completed|incomplete|done|failed|cancelled)/

/** Returns how a response ended, if a piece of its stream, in Latin-1, says that. */
export function endIn(piece: string): 'whole' | 'failed' | undefined {
  const hasWord = WORD.test(piece)
  if (hasError(piece) || (hasWord && piece.search(FAILED) !== -1)) return 'failed'
  return hasWord && piece.search(WHOLE) !== -1 ? 'whole' : undefined
}

/** True if a piece of a stream says that its response is over; an error may be one of this stream alone. */
export function isOver(piece: string): boolean {
  return piece.search(OVER) !== -1
}

/** Returns the place in a piece where the line of the last event of a type begins; -1 if it has no such event. */
function lastOf(piece: string, event: RegExp): number {
  const at = [...piece.matchAll(event)].at(-1)?.index ?? -1
  return at === -1 ? -1 : piece.lastIndexOf('\n', at) + 1
}

/** Returns the place of the last event that says that a response is complete; -1 if the piece has none. */
export function lastCompleted(piece: string): number {
  return lastOf(piece, COMPLETED)
}

/** Returns the place of the last event that ends a stream without a failure; -1 if the piece has none. */
export function lastEnd(piece: string): number {
  return lastOf(piece, WHOLE)
}
