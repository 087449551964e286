/** The notices for a model that repeats itself, and how Governor recognises its own notices. */
import { LIMITS, type LimitName, METERS } from '../budget/meters.ts'
import { type Loop, PATTERNS, REPEATING } from './patterns.ts'

/** Seconds to wait before polling again: by the number of the advice, the last for all further ones. */
export const BACK_OFF_SECONDS: readonly number[] = [5, 10, 30, 60]

/** How the result of a blocked call begins. */
const BLOCKED = '[LOOP GUARD] Blocked: '

const BACK_OFF = 'Before you call it again, check whether its precondition is met'

/** Returns the sign before a meter's numbers, such as `$`; empty for most meters. */
function signOf(name: LimitName): string {
  return METERS[name].format(0, 1).used.replace(/\d.*/, '')
}

/** How the texts end that ask for a final answer. */
const STOPPED = 'without calling any more tools.'

/** How each notice of Governor begins and ends, about loops, budgets and the ends of runs. */
export const NOTICES: readonly { readonly text: string; readonly end: string }[] = [
  { text: REPEATING, end: "'.)" },
  { text: BACK_OFF, end: 'before polling again.' },
  { text: BLOCKED, end: 'or give your final answer.' },
  ...LIMITS.map((name) => ({ text: `[BUDGET: ${METERS[name].word} ${signOf(name)}`, end: ']' })),
  { text: '[budget: ', end: ']' },
  { text: '[CONTEXT: ', end: ']' },
  ...LIMITS.map((name) => ({
    text: `You've reached the ${METERS[name].limit.noun} limit of this run.`,
    end: STOPPED,
  })),
  { text: "You've been repeating the same action without progress.", end: STOPPED },
  { text: 'An operator has stopped this run.', end: STOPPED },
  { text: 'This is the last call: give your answer,', end: 'and say what is unfinished.' },
]
const BEGINNINGS = NOTICES.map(({ text }) => text)

/** The most paragraphs that are removed from one result: more than Governor ever adds. */
const MAX_NOTICES = 4

function quoted(tools: readonly string[]): string {
  return [...new Set(tools)].map((tool) => `'${tool}'`).join(', ')
}

/** The part of a loop that its notice describes. */
type DescribedLoop = Pick<Loop, 'pattern' | 'count' | 'span'> & { readonly tools: readonly string[] }

/** Returns the notice about a loop. `backOff`: seconds to wait before polling again; `undefined` gives no such advice. */
export function loopNotice(loop: DescribedLoop, backOff: number | undefined): string {
  const description = `${PATTERNS[loop.pattern].notice(loop)} (Repeated: ${quoted(loop.tools)}.)`
  if (backOff === undefined) return description
  return `${description} ${BACK_OFF} and what differs from last time. If you are waiting for something, wait ${backOff} seconds before polling again.`
}

/** Returns the text that takes the place of a blocked call's result; `count` is how often the call was made before. */
export function blockText(tool: string, count: number): string {
  return `${BLOCKED}'${tool}' was called ${count} times with identical arguments and results. This call was not executed. Try something different or give your final answer.`
}

/** The result of a call that was allowed, but stood in one response with a blocked call. */
export const NOT_EXECUTED = '[LOOP GUARD] This call was not executed.'

/** Returns the answer of a run that ended in a loop, if the model gave none. */
export function fallbackText(tool: string, count: number): string {
  return `(Stopped: '${tool}' was called ${count} times with identical arguments and results)`
}

/** True if the ASCII text `text` stands at the offset `at` of `bytes`. */
function beginsWith(bytes: Uint8Array, at: number, text: string): boolean {
  for (let index = 0; index < text.length; index++) {
    if (bytes[at + index] !== text.charCodeAt(index)) return false
  }
  return true
}

const BACKSLASH = 0x5c
const LETTER_N = 0x6e
const BREAK = '\\n\\n'

/** True if an escaped line break (`\n`) stands at the offset `at` of a JSON string. */
function isLineBreak(json: Uint8Array, at: number): boolean {
  return json[at] === BACKSLASH && json[at + 1] === LETTER_N
}

/** Offset of the last break between two paragraphs (`\n\n`, escaped) in a JSON string; -1 if it has none. */
function lastBreak(json: Uint8Array): number {
  // A break is four bytes long and has two kinds of bytes, so it is enough to look at every fourth byte.
  for (let at = json.length - 2; at >= 0; at -= BREAK.length) {
    const byte = json[at]
    if (byte !== BACKSLASH && byte !== LETTER_N) continue
    const line = byte === BACKSLASH ? at : at - 1
    if (!isLineBreak(json, line)) continue
    if (isLineBreak(json, line + 2)) return line
    if (isLineBreak(json, line - 2)) return line - 2
  }
  return -1
}

/** True if a tool result, as a JSON string, ends in a notice that Governor added. */
export function endsInNotice(json: Uint8Array): boolean {
  const paragraph = lastBreak(json)
  if (paragraph === -1) return false
  for (const text of BEGINNINGS) if (beginsWith(json, paragraph + BREAK.length, text)) return true
  return false
}

/** Returns a tool result without the notices that Governor added at its end, each a paragraph. */
export function withoutNotices(result: string): string {
  let end = result.length
  for (let removed = 0; removed < MAX_NOTICES; removed++) {
    const paragraph = result.lastIndexOf('\n\n', end - 1)
    if (paragraph === -1 || !BEGINNINGS.some((text) => result.startsWith(text, paragraph + 2))) break
    end = paragraph
  }
  return result.slice(0, end)
}
