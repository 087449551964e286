/** What Governor says to a model that repeats itself, and how it knows its own words again. */
import { LIMITS, type LimitName, METERS } from '../budget/meters.ts'
import { type Loop, PATTERNS, REPEATING } from './patterns.ts'

/** Seconds to wait before polling again, from the first back-off to the fourth and all after it. */
export const BACK_OFF_SECONDS: readonly number[] = [5, 10, 30, 60]

/** What the results of calls begin with that were not executed. */
const REFUSAL = '[LOOP GUARD] Blocked: '

const BACK_OFF = 'Before you call it again, check whether its precondition is met'

/** What stands before a meter's numbers, such as `$`. */
function signOf(name: LimitName): string {
  return METERS[name].format(0, 1).used.replace(/\d.*/, '')
}

/** What notices begin and end with, this file's and the budget's. */
export const NOTICES: readonly { readonly text: string; readonly end: string }[] = [
  { text: REPEATING, end: "'.)" },
  { text: BACK_OFF, end: 'before polling again.' },
  { text: REFUSAL, end: 'or give your final answer.' },
  ...LIMITS.map((name) => ({ text: `[BUDGET: ${METERS[name].word} ${signOf(name)}`, end: ']' })),
  { text: '[budget: ', end: ']' },
  { text: '[CONTEXT: ', end: ']' },
  { text: 'This is the last call: give your answer,', end: 'and say what is unfinished.' },
]
const BEGINNINGS = NOTICES.map(({ text }) => text)

/** More paragraphs than Governor ever puts under one result. */
const MAX_NOTICES = 4

function quoted(tools: readonly string[]): string {
  return [...new Set(tools)].map((tool) => `'${tool}'`).join(', ')
}

/** What a notice says of a loop. */
type Repeated = Pick<Loop, 'pattern' | 'tools' | 'count' | 'span'>

/** The notice about a loop. `backOff`: the seconds to wait before polling again, where the model has been told before. */
export function loopNotice(loop: Repeated, backOff: number | undefined): string {
  const what = `${PATTERNS[loop.pattern].notice(loop)} (Repeated: ${quoted(loop.tools)}.)`
  if (backOff === undefined) return what
  return `${what} ${BACK_OFF} and what differs from last time. If you are waiting for something, wait ${backOff} seconds before polling again.`
}

/** What stands in place of the result of a call that was not executed; `count` is how often it had been. */
export function blockText(tool: string, count: number): string {
  return `${REFUSAL}'${tool}' was called ${count} times with identical arguments and results. This call was not executed. Try something different or give your final answer.`
}

/** The same for a call that goes down with a refused one. */
export const NOT_EXECUTED = '[LOOP GUARD] This call was not executed.'

/** Stands in where a run was ended for its loop and the model gave no answer. */
export function fallbackText(tool: string, count: number): string {
  return `(Stopped: '${tool}' was called ${count} times with identical arguments and results)`
}

/** Do the bytes from an offset on begin with a text of plain letters? */
function beginsWith(bytes: Uint8Array, at: number, text: string): boolean {
  for (let index = 0; index < text.length; index++) {
    if (bytes[at + index] !== text.charCodeAt(index)) return false
  }
  return true
}

const BACKSLASH = 0x5c
const LETTER_N = 0x6e
const BREAK = '\\n\\n'

/** Is there a line break of a text given as JSON? */
function isLineBreak(json: Uint8Array, at: number): boolean {
  return json[at] === BACKSLASH && json[at + 1] === LETTER_N
}

/** Where the last break between two paragraphs is in a text given as JSON; -1 where there is none. */
function lastBreak(json: Uint8Array): number {
  // A break is four bytes of two kinds, so that it is enough to look at every fourth byte.
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

/** Does a result, given as JSON, end in a notice that Governor has put under it? */
export function endsInNotice(json: Uint8Array): boolean {
  const paragraph = lastBreak(json)
  if (paragraph === -1) return false
  for (const text of BEGINNINGS) if (beginsWith(json, paragraph + BREAK.length, text)) return true
  return false
}

/** A tool result without the notices that Governor has put under it, each a paragraph of its own. */
export function withoutNotices(result: string): string {
  let end = result.length
  for (let found = 0; found < MAX_NOTICES; found++) {
    const paragraph = result.lastIndexOf('\n\n', end - 1)
    if (paragraph === -1 || !BEGINNINGS.some((text) => result.startsWith(text, paragraph + 2))) break
    end = paragraph
  }
  return result.slice(0, end)
}
