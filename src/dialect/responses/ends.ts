/**
 * Finds the events that end a stream of Responses, without decoding it. Its events repeat the request: a tool may have
 * a parameter `error`, and any text may be the name of an event, so that only the type of an event itself counts.
 */

/** A member of an event whose value is no list and no object. */
const PLAIN = String.raw`"\w{1,32}"\s{0,4}:\s{0,4}(?:"(?:[^"\\\n]|\\.){0,256}"|[\w.+-]{1,32})`
const BEFORE = String.raw`^data:\s{0,4}\{\s{0,8}(?:${PLAIN}\s{0,4},\s{0,8}){0,8}`
const AFTER = String.raw`(?:\s{0,4},\s{0,8}${PLAIN}){0,8}\s{0,4}\}[ \t]{0,4}\r?\n`

/**
 * Returns what finds events of these types in Latin-1: in the line that names the event, or where their type stands
 * before or after all that is a list or an object.
 */
function eventOf(types: string): RegExp {
  const type = String.raw`"type"\s{0,4}:\s{0,4}"(?:${types})"`
  return new RegExp(String.raw`^event:\s{0,4}(?:${types})[ \t]{0,4}\r?\n|${BEFORE}${type}|${type}${AFTER}`, 'gm')
}

const COMPLETED = eventOf('response\\.completed')
const WHOLE = eventOf('response\\.(?:completed|incomplete|done)')
const OVER = eventOf('response\\.(?:completed|incomplete|done|failed|cancelled)')
const FAILED = new RegExp(
  String.raw`${eventOf('error|response\\.(?:failed|cancelled)').source}|${BEFORE}"error"\s{0,4}:\s{0,4}\{`,
  'm',
)

/** Words without which a piece has none of these events. */
const WORD = /error|response\.(?:completed|incomplete|done|failed|cancelled)/

/** Returns how a response ended, if a piece of its stream, in Latin-1, says that. */
export function endIn(piece: string): 'whole' | 'failed' | undefined {
  if (!WORD.test(piece)) return undefined
  if (FAILED.test(piece)) return 'failed'
  return piece.search(WHOLE) === -1 ? undefined : 'whole'
}

/** True if a piece of a stream says that its response is over; an error may be one of this stream alone. */
export function isOver(piece: string): boolean {
  return piece.search(OVER) !== -1
}

/** Returns where the last event begins that completes a response; -1 if there is none. */
export function lastCompleted(piece: string): number {
  const at = [...piece.matchAll(COMPLETED)].at(-1)?.index ?? -1
  return at === -1 ? -1 : piece.lastIndexOf('\n', at) + 1
}
