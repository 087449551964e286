/**
 * Masks what may differ between two results that say the same: times, durations, and the ids of a single call. Small
 * numbers stay, because progress shows in them.
 */
const MONTH =
  '(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)'
const CLOCK = String.raw`(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?`
const ZONE = String.raw`(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?`
const UNIT = '(?:ns|[uµ]s|m?s|(?:nano|micro|milli)?sec(?:ond)?s?|msecs?|mins?|minutes?|hrs?|hours?|days?)'
/** A measured number: a clock of high resolution writes many digits, or an exponent. */
const MEASURED = String.raw`\d{1,32}(?:[.,]\d{1,32})?(?:e[+-]?\d{1,3})?`
/** Words before a long number that counts something, so that progress shows in it. */
const COUNTED =
  '(?:bytes|size|loaded|done|processed|written|(?<!th|sp)read|received|sent|transferred|offset|position|progress|rows|lines|records|tokens|(?<!ac)count|total)'
/** Digits of such a number: 13 are milliseconds since the epoch, more often than not. */
const COUNT_DIGITS = String.raw`(?:\d{7,12}|\d{14,32})`

/**
 * Alternatives, a longer one before a shorter one that it begins with. Every repetition is bounded or ends at the first
 * character that does not match, so the whole expression is linear on any text.
 */
const MASKS: readonly string[] = [
  // UUIDs
  '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}',
  // Dates: 2026-03-04, with or without a time; 04/03/2026; March 4, 2026; 4 Mar 2026
  String.raw`\d{4}[-/]\d{2}[-/]\d{2}(?:[T ]${CLOCK}${ZONE})?`,
  String.raw`\d{1,2}/\d{1,2}/\d{4}`,
  String.raw`${MONTH} {1,2}\d{1,2}(?:,? \d{4})?(?!\d)`,
  String.raw`\d{1,2} ${MONTH} \d{4}`,
  // Clocks: 15:04, 15:04:05.678; after a colon it is a line and a column
  String.raw`(?<!:)${CLOCK}(?: ?[ap]m)?${ZONE}(?![\d:])`,
  // Durations: 1m30.5s, 0.05 seconds, 3 minutes, 7.2e-06 s, 2h; "duration_ms": 12, "wall_time_seconds": 0.000007211
  String.raw`(?:\d{1,4}h)?(?:\d{1,4}m)?${MEASURED}(?: ?${UNIT}|[hm])(?![0-9a-z])`,
  String.raw`(?:(?:took|elapsed|duration|latency)(?:_?${UNIT})?["']? ?[:=] {0,4}|(?<=_(?!min)${UNIT}["']? ?[:=] {0,4}))${MEASURED}(?![\d.:a-z%])`,
  // 0x7f3a5c0010
  '0x[0-9a-f]{4,16}(?![0-9a-z])',
  // Hex ids and long numbers. Hex of 40 and 64 digits is a digest, which differs only if the digested bytes differ;
  // digits after a point are the rest of a measure.
  String.raw`(?<!\.)(?=[a-f]{0,31}\d)[0-9a-f]{7,32}(?:(?<=\d{7})\.\d{1,9})?(?![0-9a-z])(?<!${COUNTED}["']?[ :=]{1,4}${COUNT_DIGITS})`,
  // pid 4711, PGID: 4711, process id=4711, Chunk ID: 0c07c7, request_id: "x-1"
  String.raw`(?:p?pid|pgid|tid|(?:process|thread|chunk|request|trace|span|correlation)[ _-]?id)["']?(?: ?[:=#] ?| )["']?[\w-]{1,64}`,
]

/** Begins with the first characters of the masks: most others are passed over without trying each alternative. */
const VOLATILE = new RegExp(`(?=[0-9a-fjlmnoprst])(?<![0-9a-z])(?:${MASKS.join('|')})`, 'gi')

/** Of a longer text only the beginning and the end are masked: a text of figures takes some 100 ns for each character. */
const MAX_MASKED = 131_072

function withoutVolatile(text: string): string {
  if (text.length <= MAX_MASKED) return text.replace(VOLATILE, '#')
  const half = MAX_MASKED / 2
  return `${text.slice(0, half).replace(VOLATILE, '#')}${text.slice(half, -half)}${text.slice(-half).replace(VOLATILE, '#')}`
}

/** Text that a harness adds to a result: Claude Code's countdown, and now and then advice. */
const REMINDER = '<system-reminder>'
const REMINDER_END = '</system-reminder>'

/**
 * What harnesses add to every result, about how the call was run and not what it brought: codex's chunk ids and times,
 * gemini-cli's process groups.
 */
const HARNESS_FIELDS =
  /^(?:Chunk ID: \w{1,64}|Wall time: [\d.]{1,32} seconds|Process Group PGID: \d{1,10})$|"(?:chunk_id|wall_time_seconds)": ?(?:"\w{0,64}"|[\d.e+-]{1,40})/gm

/** Returns the text without what known harnesses add to every result. */
export function withoutHarnessNoise(text: string): string {
  return withoutReminders(text).replace(HARNESS_FIELDS, '')
}

/** Returns the text without reminders. By index, as a regular expression would overflow the stack on some megabytes. */
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

/** Longer texts are compared with their lines as they come: sorting them costs too much. */
const MAX_SORTED_LINES = 20_000

/** Returns the text with its lines sorted: parallel workers and unordered listings give the same lines in another order. */
function sortLines(text: string): string {
  if (!text.includes('\n')) return text
  const lines = text.split('\n')
  return lines.length > MAX_SORTED_LINES ? text : lines.sort().join('\n')
}

/** Returns the text with what is volatile masked, and its lines sorted. */
export function maskVolatile(text: string): string {
  return sortLines(withoutVolatile(text))
}
