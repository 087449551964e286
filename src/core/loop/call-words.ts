/**
 * Guesses from a few words: that a call waits for something or changes something, that work goes on. If a word is
 * missed, the results still show the loop, because nothing new comes back.
 */

/** Characters of a call's arguments that are looked at. */
const HEAD = 300
/** A result of more characters is a document, which may say anything: it never says that work goes on. */
export const SHORT = 300

const WAITS = /(?:^|[^a-z])(?:status|poll|polling|wait|watch|tail|sleep)(?:$|[^a-z])/i

const CHANGING =
  'edit write patch apply replace insert append create add update modify delete remove move rename click type press ' +
  'submit install commit checkout rm mv cp sed tee'
/** The last alternative is a redirection to a file: no arrow, no comparison, and not to /dev/null. */
const CHANGES = new RegExp(
  `(?:^|[^a-z])(?:${CHANGING.replaceAll(' ', '|')})(?:$|[^a-z])|` +
    String.raw`(?<![-=<])>{1,2} ?(?!\/dev\/)[\w~$./-]`,
  'i',
)

const GOES_ON = new RegExp(
  String.raw`\b(?:pending|queued|running|waiting|processing|building|deploying|starting|in[ _-]progress|` +
    String.raw`not (?:yet )?(?:ready|finished|done|complete))\b`,
  'i',
)

/** Returns a tool's name with its words apart (writtenSo becomes written_So), and the beginning of the arguments. */
export function wordsOf(tool: string, argumentsText: string): string {
  return `${tool.slice(0, HEAD).replace(/([a-z])([A-Z])/g, '$1_$2')} ${argumentsText.slice(0, HEAD)}`
}

/** True if the words of a call ask how something goes, or wait for it. */
export function waits(words: string): boolean {
  return WAITS.test(words)
}

/** True if the words of a call change something that later calls may see. */
export function changes(words: string): boolean {
  return CHANGES.test(words)
}

/** True if a short result says that work goes on. */
export function saysWorkGoesOn(result: string): boolean {
  return result.length <= SHORT && GOES_ON.test(result)
}
