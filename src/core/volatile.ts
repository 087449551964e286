/**
 * What a tool answered, without what differs between two equal answers: the time, how long it took, and the ids of
 * this one call. Small numbers are left alone, as progress shows in them.
 */
import { type Hash, hashOfText } from './hash.ts'
import { withoutNotices } from './loop-notice.ts'
import type { Work } from './work.ts'

/** `default` masks what is listed here and sorts the lines; `none` compares results letter by letter. */
export type Volatile = 'default' | 'none'

const DATE = String.raw`\d{4}[-/]\d{2}[-/]\d{2}`
const CLOCK = String.raw`(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?`
const ZONE = String.raw`(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?`
/** In the languages that tools most often answer in. A `分` alone may be a point. */
const UNIT =
  '(?:ns|[uµ]s|ms|s|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|Sekunden?|Minuten?|Stunden?|secondes?|segundos?|minutos?|horas?|heures?|秒钟?|分钟|小时|時間|секунд[аы]?|сек|минут[аы]?|мин|час(?:а|ов)?)'
/** What is said of a duration where its number has no unit. */
const LASTED =
  '(?:took|elapsed|duration|latency|(?:response|execution|exec|processing|query|wall|cpu|run|total|elapsed)[ _-]?time)(?:[ _-]?(?:in[ _-]?)?(?:ms|millis|milliseconds|s|secs?|seconds?|us|ns))?'
/** What says of a long number that it counts something, and progress shows in it. */
const COUNTED =
  '(?:bytes|size|loaded|done|processed|written|(?<!th|sp)read|received|sent|transferred|offset|position|progress|rows|lines|records|tokens|(?<!ac)count|total)'
/** Digits of such a number: 13 are milliseconds since the epoch, more often than not. */
const COUNT_DIGITS = String.raw`(?:\d{8,12}|\d{14,32})`
const MONTH =
  '(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)'

/**
 * Alternatives, the longer before the shorter that it begins with. All that repeats has a bound or ends at the first
 * character that does not fit, so that the whole is linear on any text.
 */
const MASKS: readonly string[] = [
  // UUIDs
  '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}',
  // 2026-03-04, with or without a time; 04/03/2026; March 4, 2026; 4 Mar 2026
  `${DATE}(?:[T ]${CLOCK}${ZONE})?`,
  String.raw`\d{1,2}/\d{1,2}/\d{4}`,
  String.raw`${MONTH} {1,2}\d{1,2}(?:,? \d{4})?(?!\d)`,
  String.raw`\d{1,2} ${MONTH} \d{4}`,
  // 15:04, 15:04:05.678; what follows a colon is a line and a column
  String.raw`(?<!:)${CLOCK}(?: ?[ap]m)?${ZONE}(?![\d:])`,
  // 1m30.5s, 0.05 seconds, 3 minutes, 250ms, 2h, 0,31 s
  String.raw`(?:\d{1,4}h)?(?:\d{1,4}m)?\d{1,9}(?:[.,]\d{1,9})?(?: ?${UNIT}|[hm])(?![0-9a-z])`,
  // "took": 12, elapsed_ms=0.25
  String.raw`${LASTED}["']?(?: ?[:=] {0,4})["']?\d{1,9}(?:\.\d{1,9})?(?![\d.:a-z%])`,
  // 1767600000.25: seconds since the epoch
  String.raw`1\d{9}\.\d{1,9}(?!\d)`,
  // 12.3 MB/s
  String.raw`\d{1,9}(?:\.\d{1,9})? ?[kmgt]?i?b(?:its?|ytes?)?/s(?![0-9a-z])`,
  // 0x7f3a5c0010
  '0x[0-9a-f]{4,16}(?![0-9a-z])',
  // Hex ids and long numbers. Hex of 40 and 64 digits is a digest, and only differs where what it stands for does;
  // what follows a point is the rest of a measure.
  String.raw`(?<!\.)(?=[a-f]{0,31}\d)[0-9a-f]{8,32}(?![0-9a-z])(?<!${COUNTED}["']?[ :=]{1,4}${COUNT_DIGITS})`,
  String.raw`(?<!\.)\d{33,}(?![0-9a-z])`,
  // pid 4711, PGID: 4711, process id=4711, Chunk ID: 0c07c7, request_id: "x-1"
  String.raw`(?:p?pid|pgid|tid|(?:process|thread|chunk|request|trace|span|correlation)[ _-]?id)["']?(?: ?[:=#] ?| )["']?[\w-]{1,64}`,
  // What gateways call a request
  'req_[0-9a-z]{8,64}',
  // Process 4711 exited, (node:4711)
  String.raw`process \d{2,7}(?= (?:exited|terminated|killed|finished|stopped|crashed|died|started))`,
  String.raw`node:\d{2,7}(?=\))`,
  // /tmp/tmpab12cd34/x, /tmp/tmp.8Jk2lMn0Pq, /tmp/pytest-of-me/pytest-7/
  String.raw`(?<=/)tmp(?:[0-9a-z_]{8}|\.[0-9a-z]{6,12})(?![0-9a-z_])`,
  String.raw`(?<=/)pytest-\d{1,6}(?=/)`,
  // You have 12 turns left
  String.raw`you have \d{1,7} (?:[a-z]{1,16} )?(?:turns?|steps?|iterations?|rounds?|calls?|interactions?) (?:left|remaining)(?![a-z])`,
  // Claude Code's count-down at the end of a result
  '<total_tokens>[^<]{1,64}',
]

/** `sshd[4711]:`, as system logs have it; what is named after a count is none of a process. */
const LOGGED = String.raw`\[\d{3,7}\](?=:)(?<=(?<![\w.-])(?!(?:step|epoch|iter(?:ation)?|batch|frame|item|row|line|page|chunk|block|part|task|test|case|record|entry|index|array|list|data|file|error|status|code)s?\[)[a-z][\w.-]{0,31}\[\d{3,7}\])`

const VOLATILE = new RegExp(`(?<![0-9a-z])(?:${MASKS.join('|')})|${LOGGED}`, 'gi')

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
export function outcomeHash(result: string, volatile: Volatile, work?: Work): Hash {
  if (volatile === 'none') return exactHash(result)
  work?.search(result.length)
  return (MASKED + hashOfText(maskVolatile(withoutNotices(result)))) as Hash
}
