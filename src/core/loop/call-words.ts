/**
 * What few words tell of a call: that it waits for something, that it changes something, that work goes on. Guesses, and
 * no more than guesses: what a word misses, the answers show, as nothing new comes back.
 */

/** So many characters of a call's arguments are looked at, */
const HEAD = 300
/** and an answer of more says nothing of work that goes on: a document may say anything. */
export const SHORT = 300

const WAITS = /(?:^|[^a-z])(?:status|poll|polling|wait|watch|tail|sleep)(?:$|[^a-z])/i

/** The last alternative is a redirection to a file: neither an arrow nor a comparison, nor what is thrown away. */
const CHANGES =
  /(?:^|[^a-z])(?:edit|write|patch|apply|replace|insert|append|create|add|update|modify|delete|remove|move|rename|click|type|press|submit|install|commit|checkout|rm|mv|cp|sed|tee)(?:$|[^a-z])|(?<![-=<])>{1,2} ?(?!\/dev\/)[\w~$./-]/i

const GOES_ON =
  /\b(?:pending|queued|running|waiting|processing|building|deploying|starting|in[ _-]progress|not (?:yet )?(?:ready|finished|done|complete))\b/i

/** A tool's name, written_so, written-so or writtenSo, and the beginning of its arguments. */
function headOf(tool: string, argumentsText: string): string {
  return `${tool.slice(0, HEAD).replace(/([a-z])([A-Z])/g, '$1_$2')} ${argumentsText.slice(0, HEAD)}`
}

/** Does this call, by its words, ask how something is going, or wait for it? */
export function waits(tool: string, argumentsText: string): boolean {
  return WAITS.test(headOf(tool, argumentsText))
}

/** Does this call, by its words, change something that other calls may then see? */
export function changes(tool: string, argumentsText: string): boolean {
  return CHANGES.test(headOf(tool, argumentsText))
}

/** Does a tool answer that work goes on? */
export function saysWorkGoesOn(result: string): boolean {
  return result.length <= SHORT && GOES_ON.test(result)
}

/** So few characters can't show whether anything has changed: `ok`, `pressed`, nothing. */
export const TERSE = 16

/** Is an answer too short to show any progress? */
export function isTerse(result: string): boolean {
  return result.length <= TERSE
}
