/**
 * Finds events of a stream by their type, without decoding them. An event may hold any JSON of a client, of a model or
 * of a provider's filter (a tool's parameter `error`, a call's argument), so that only its own members count.
 */

/** A member of an event whose value is no list and no object. */
const PLAIN = String.raw`"\w{1,32}"\s{0,4}:\s{0,4}(?:"(?:[^"\\\n]|\\.){0,256}"|[\w.+-]{1,32})`
const BEFORE = String.raw`^data:\s{0,4}\{\s{0,8}(?:${PLAIN}\s{0,4},\s{0,8}){0,8}`
const AFTER = String.raw`(?:\s{0,4},\s{0,8}${PLAIN}){0,8}\s{0,4}\}[ \t]{0,4}[\r\n]`

/**
 * Returns what finds events of these types in Latin-1: in the line that names the event, or where their type stands
 * before or after all that is a list or an object.
 */
export function eventOf(types: string): RegExp {
  const type = String.raw`"type"\s{0,4}:\s{0,4}"(?:${types})"`
  return new RegExp(String.raw`^event:\s{0,4}(?:${types})[ \t]{0,4}[\r\n]|${BEFORE}${type}|${type}${AFTER}`, 'gm')
}

const ERROR = new RegExp(String.raw`${eventOf('error').source}|${BEFORE}"error"\s{0,4}:\s{0,4}\{`, 'm')

/** True if a piece of a stream, in Latin-1, reports an error. */
export function hasError(piece: string): boolean {
  return piece.includes('error') && ERROR.test(piece)
}
