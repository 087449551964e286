/**
 * What a tool answered, without what differs between two equal answers: the time, how long it took, and the ids of
 * this one call. Small numbers are left alone, as progress shows in them.
 */
import { type Hash, hashOfText } from '../hash.ts'
import type { Work } from '../work.ts'
import { withoutNotices } from './notice.ts'

/** `default` masks what is listed here and sorts the lines; `none` compares results letter by letter. */
export type MaskMode = 'default' | 'none'

const MONTH =
  '(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)'
const CLOCK = String.raw`(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?`
const ZONE = String.raw`(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?`
const UNIT = '(?:ns|[uµ]s|ms|s|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?)'
/** What says of a long number that it counts something, and progress shows in it. */
const COUNTED =
  '(?:bytes|size|loaded|done|processed|written|(?<!th|sp)read|received|sent|transferred|offset|position|progress|rows|lines|records|tokens|(?<!ac)count|total)'
/** Digits of such a number: 13 are milliseconds since the epoch, more often than not. */
const COUNT_DIGITS = String.raw`(?:\d{7,12}|\d{14,32})`

/**
 * Alternatives, the longer before the shorter that it begins with. All that repeats has a bound or ends at the first
 * character that does not fit, so that the whole is linear on any text.
 */
const MASKS: readonly string[] = [
  // UUIDs
  '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}',
  // Dates: 2026-03-04, with or without a time; 04/03/2026; March 4, 2026; 4 Mar 2026
  String.raw`\d{4}[-/]\d{2}[-/]\d{2}(?:[T ]${CLOCK}${ZONE})?`,
  String.raw`\d{1,2}/\d{1,2}/\d{4}`,
  String.raw`${MONTH} {1,2}\d{1,2}(?:,? \d{4})?(?!\d)`,
  String.raw`\d{1,2} ${MONTH} \d{4}`,
  // Clocks: 15:04, 15:04:05.678; what follows a colon is a line and a column
  String.raw`(?<!:)${CLOCK}(?: ?[ap]m)?${ZONE}(?![\d:])`,
  // Durations: 1m30.5s, 0.05 seconds, 3 minutes, 250ms, 2h; "duration_ms": 12
  String.raw`(?:\d{1,4}h)?(?:\d{1,4}m)?\d{1,9}(?:[.,]\d{1,9})?(?: ?${UNIT}|[hm])(?![0-9a-z])`,
  String.raw`(?:took|elapsed|duration|latency)(?:_?${UNIT})?["']? ?[:=] {0,4}\d{1,9}(?:\.\d{1,9})?(?![\d.:a-z%])`,
  // 0x7f3a5c0010
  '0x[0-9a-f]{4,16}(?![0-9a-z])',
  // Hex ids and long numbers. Hex of 40 and 64 digits is a digest, and only differs where what it stands for does;
  // what follows a point is the rest of a measure.
  String.raw`(?<!\.)(?=[a-f]{0,31}\d)[0-9a-f]{7,32}(?:(?<=\d{7})\.\d{1,9})?(?![0-9a-z])(?<!${COUNTED}["']?[ :=]{1,4}${COUNT_DIGITS})`,
  // pid 4711, PGID: 4711, process id=4711, Chunk ID: 0c07c7, request_id: "x-1"
  String.raw`(?:p?pid|pgid|tid|(?:process|thread|chunk|request|trace|span|correlation)[ _-]?id)["']?(?: ?[:=#] ?| )["']?[\w-]{1,64}`,
]

const VOLATILE = new RegExp(`(?<![0-9a-z])(?:${MASKS.join('|')})`, 'gi')

/** What a harness puts under a result, which the tool has not said: Claude Code's count-down, and now and then advice. */
const REMINDER = '<system-reminder>'
const REMINDER_END = '</system-reminder>'

/** By index: a regular expression that repeats a choice overflows the stack on some megabytes. */
function withoutReminders(text: string): string {
  let kept = ''
  let at = 0
  for (;;) {
    const start = text.indexOf(REMINDER, at)
    const end = start === -1 ? -1 : text.indexOf(REMINDER_END, start)
    if (end === -1) return at === 0 ? text : (kept + text.slice(at)).trimEnd()
    kept += text.slice(at, start)
    at = end + REMINDER_END.length
  }
}

/** Sorting more lines than this costs more than it tells; they are compared as they come. */
const MAX_SORTED_LINES = 20_000

/** Puts lines in order: parallel workers and unordered listings give the same ones in another. */
function sortLines(text: string): string {
  if (!text.includes('\n')) return text
  const lines = text.split('\n')
  return lines.length > MAX_SORTED_LINES ? text : lines.sort().join('\n')
}

/** The text with everything volatile masked and its lines in order. */
export function maskVolatile(text: string): string {
  return sortLines(withoutReminders(text).replace(VOLATILE, '#'))
}

/** What names begin with that were given after masking; other hashes never do. */
const MASKED = '~'

/** Was this name given after masking? */
export function isMasked(name: Hash | ''): boolean {
  return name.startsWith(MASKED)
}

/** Names what a tool answered, letter by letter. Notices that Governor has put under a result are not part of it. */
export function exactHash(result: string): Hash {
  return hashOfText(withoutNotices(result))
}

/** Names what a tool answered. @throws {TooMuchToRead} */
export function maskedHash(result: string, volatile: MaskMode, work?: Work): Hash {
  if (volatile === 'none') return exactHash(result)
  work?.search(result.length)
  return (MASKED + hashOfText(maskVolatile(withoutNotices(result)))) as Hash
}
