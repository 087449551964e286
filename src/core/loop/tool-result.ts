/** Tool results and how they are compared: masked, which is slow, only if a call had another result before. */

import { STEPS_PER_SEARCHED, STEPS_PER_VALUE, type Work } from '../bounds/work.ts'
import type { Conversation, RawResult } from '../conversation/conversation.ts'
import { PLACEHOLDER_RESULTS } from '../harness/texts.ts'
import { branded, type Hash, hashOfBytes, hashOfText } from '../hash.ts'
import type { ToolCallRecord } from './call-history.ts'
import { withoutNotices } from './loop-notices.ts'
import type { MaskMode } from './patterns.ts'

/** The result of a call in a transcript. */
export interface TranscriptResult {
  readonly callId: string
  readonly name?: string | undefined
  /** Returns the text; decodes it if that was not done yet. */
  readonly text: () => string
  /** The result as its bytes stand in the request; unset if they do not hold just this result. */
  readonly json?: RawResult | undefined
}

/** Returns the results that follow the assistant message at `index`; for -1, those that the input begins with. */
export function resultsAfter(conversation: Conversation, index: number): readonly TranscriptResult[] {
  const results: TranscriptResult[] = []
  for (let at = index + 1; at < conversation.length && conversation.role(at) !== 'assistant'; at++) {
    conversation.work?.spend(STEPS_PER_VALUE)
    const json = conversation.rawResult?.(at)
    if (json) results.push({ callId: json.callId, text: () => conversation.results(at)[0]?.text ?? '', json })
    else for (const { callId, name, text } of conversation.results(at)) results.push({ callId, name, text: () => text })
    // Some APIs allow no picture in a result, so that it follows in a message of a user.
    const last = results.at(-1)
    const pictures = last && conversation.role(at) === 'user' ? (conversation.pictures?.(at) ?? []) : []
    if (!last || pictures.length === 0) continue
    const text = [last.text(), ...pictures].join('\n')
    results[results.length - 1] = { callId: last.callId, name: last.name, text: () => text }
  }
  return results
}

/** A result of more characters is a document, which may say anything: only a state in JSON says that work goes on. */
const SHORT = 300
/** The same in JSON, where a character takes six bytes at most. */
const SHORT_BYTES = 6 * SHORT + 2
/** So few characters cannot show whether anything has changed: `ok`, `pressed`, or none. */
const TERSE = 16

const GOING = 'queued|running|waiting|processing|building|deploying|starting|in[ _-]?progress'
/** Not what an error occurred while running or waiting for. */
const GOES_ON = new RegExp(
  String.raw`(?:\b(?<!while )(?:pending|${GOING}|not (?:yet )?(?:ready|finished|done|complete))|_in_progress)\b`,
  'i',
)
/** A longer result is not searched for a state. */
const MAX_JSON = 65_536
/** A state in JSON that says the same. Not `pending`: an order may be that for days. */
const STATE_GOES_ON = new RegExp(
  String.raw`^[{[][^]*["']\w{0,40}(?:status|state|phase)\\?["']\s{0,4}:\s{0,4}\\?["'](?:\w{0,40}_)?(?:${GOING})\\?["']`,
  'i',
)

/** Tells whether work goes on, whether a result is too short to show it, and whether every failed call has it. */
export function progressIn(result: TranscriptResult | undefined) {
  if (!result) return { goesOn: false, isTerse: true, isPlaceholder: false }
  const { bytes = [] } = result.json ?? {}
  // Other long results than a list or an object need not be decoded.
  const mayBeState = bytes.length <= MAX_JSON && (bytes[1] === 0x5b || bytes[1] === 0x7b)
  if (bytes.length > SHORT_BYTES && !mayBeState) return { goesOn: false, isTerse: false, isPlaceholder: false }
  const text = result.text()
  const isLong = text.length > SHORT
  const goesOn = isLong ? text.length <= MAX_JSON && STATE_GOES_ON.test(text) : GOES_ON.test(text)
  return { goesOn, isTerse: text.length <= TERSE, isPlaceholder: PLACEHOLDER_RESULTS.has(text) }
}

/** Hash of a result, letter by letter: of its bytes in the request if they can be used, else of its text. */
export function exactHash({ json, text }: TranscriptResult, volatile: MaskMode): Hash {
  return json && volatile !== 'none' ? hashOfBytes(json.bytes) : hashOfText(withoutNotices(text()))
}

/** The same hash where the result stood in the other form: of its text, or of its bytes as most programs write them. */
export function otherExactHash({ json, text }: TranscriptResult): Hash {
  return json ? hashOfText(withoutNotices(text())) : hashOfBytes(Buffer.from(JSON.stringify(text())))
}

export type ResultHashes = Pick<ToolCallRecord, 'resultHash' | 'maskedHash'>

/** The first character of the hashes of a text that was compared with another; exact hashes never begin with it. */
export const COMPARED = '~'

/** Hashes a result as text, without what a harness adds, also with what is volatile masked. Throws `TooMuchToRead`. */
export function textHashes(result: string, volatile: MaskMode, work?: Work): ResultHashes {
  const text = withoutNotices(result)
  if (volatile === 'none') {
    const hash = hashOfText(text)
    return { resultHash: hash, maskedHash: hash }
  }
  work?.spend(result.length * STEPS_PER_SEARCHED)
  const said = withoutHarnessNoise(text)
  return {
    resultHash: branded(`${COMPARED}${hashOfText(said)}`),
    maskedHash: branded(`${COMPARED}${hashOfText(maskVolatile(said))}`),
  }
}

// Masked is what may differ between two results that say the same: times, durations, and the ids of a single call.
// Small numbers stay, because progress shows in them.
const MONTHS =
  'Jan(?:uary)? Feb(?:ruary)? Mar(?:ch)? Apr(?:il)? May June? July? Aug(?:ust)? Sept?(?:ember)? Oct(?:ober)? ' +
  'Nov(?:ember)? Dec(?:ember)?'
const MONTH = `(?:${MONTHS.replaceAll(' ', '|')})`
const CLOCK = String.raw`(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?`
const ZONE = String.raw`(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?`
const UNIT = '(?:ns|[uµ]s|m?s|(?:nano|micro|milli)?sec(?:ond)?s?|msecs?|mins?|minutes?|hrs?|hours?|days?)'
/** A measured number: a clock of high resolution writes many digits, or an exponent. */
const MEASURED = String.raw`\d{1,32}(?:[.,]\d{1,32})?(?:e[+-]?\d{1,3})?`
const IS = `["']? ?[:=] {0,4}`
const DURATION_KEY = `(?:took|elapsed|duration|latency)(?:_?${UNIT})?${IS}`
const UNIT_KEY = `(?<=_(?!min)${UNIT}${IS})`
/** Words before a long number that counts something, so that progress shows in it. */
const COUNTS =
  'bytes size loaded done processed written (?<!th|sp)read received sent transferred offset position progress ' +
  'rows lines records tokens (?<!ac)count total'
const COUNTED = `(?:${COUNTS.replaceAll(' ', '|')})`
/** Digits of such a number: 13 are milliseconds since the epoch, more often than not. */
const COUNT_DIGITS = String.raw`(?:\d{7,12}|\d{14,32})`

const DURATIONS: readonly string[] = [
  // 1m30.5s, 0.05 seconds, 3 minutes, 7.2e-06 s, 2h
  String.raw`(?:\d{1,4}h)?(?:\d{1,4}m)?${MEASURED}(?: ?${UNIT}|[hm])(?![0-9a-z])`,
  // "duration_ms": 12, "wall_time_seconds": 0.000007211
  `(?:${DURATION_KEY}|${UNIT_KEY})${MEASURED}(?![\\d.:a-z%])`,
]

/** Alternatives, a longer one before a shorter one that it begins with; each repetition is bounded: linear. */
const MASKS: readonly string[] = [
  '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}',
  // Dates: 2026-03-04, with or without a time; 04/03/2026; March 4, 2026; 4 Mar 2026
  String.raw`\d{4}[-/]\d{2}[-/]\d{2}(?:[T ]${CLOCK}${ZONE})?`,
  String.raw`\d{1,2}/\d{1,2}/\d{4}`,
  String.raw`${MONTH} {1,2}\d{1,2}(?:,? \d{4})?(?!\d)`,
  String.raw`\d{1,2} ${MONTH} \d{4}`,
  // Clocks: 15:04, 15:04:05.678; after a colon it is a line and a column
  String.raw`(?<!:)${CLOCK}(?: ?[ap]m)?${ZONE}(?![\d:])`,
  ...DURATIONS,
  // What an agent's own step is: step 11/20, turn 3 of 9, "attempt": 2
  String.raw`(?:steps?|turns?|attempts?|iterations?|rounds?)["']?(?: ?[:=#] ?| )\d{1,5}` +
    String.raw`(?: ?(?:/|(?:out )?of) ?\d{1,5})?(?![\d%]|[.:]\d)`,
  '0x[0-9a-f]{4,16}(?![0-9a-z])',
  // Hex ids and long numbers. Hex of 40 and 64 digits is a digest, which differs only if the digested bytes differ;
  // digits after a point are the rest of a measure.
  String.raw`(?<!\.)(?=[a-f]{0,31}\d)[0-9a-f]{7,32}(?:(?<=\d{7})\.\d{1,9})?(?![0-9a-z])` +
    `(?<!${COUNTED}["']?[ :=]{1,4}${COUNT_DIGITS})`,
  // pid 4711, PGID: 4711, process id=4711, Chunk ID: 0c07c7, request_id: "x-1"
  '(?:p?pid|pgid|tid|(?:process|thread|chunk|request|trace|span|correlation)[ _-]?id)' +
    String.raw`["']?(?: ?[:=#] ?| )["']?[\w-]{1,64}`,
]

/** Begins with the first characters of the masks: most others are passed over without trying each alternative. */
const VOLATILE = new RegExp(`(?=[0-9a-fijlmnoprst])(?<![0-9a-z])(?:${MASKS.join('|')})`, 'gi')

/** Text that a harness adds to a result: Claude Code's countdown, and now and then advice. */
const REMINDER = '<system-reminder>'
const REMINDER_END = '</system-reminder>'

/**
 * What harnesses add to every result about how the call was run: codex's chunk ids and times, gemini-cli's groups,
 * Copilot's shells.
 */
const HARNESS_FIELDS = new RegExp(
  String.raw`^(?:Chunk ID: \w{1,64}|Wall time:? [\d.]{1,32} seconds|Process Group PGID: \d{1,10})$` +
    String.raw`|^<shellId: \w{1,64}|"chunk_id": ?"\w{0,64}"`,
  'gm',
)

/** The lines before the output of a call, and the members beside it, in which a harness says how the call was run. */
const BEFORE_OUTPUT = /^(?:[^\n]{0,200}\n){1,8}Output:/
const HAS_OUTPUT = /"(?:output|stdout)":/
const RUN_TIMES = new RegExp(`(?<![0-9a-z])(?:${DURATIONS.join('|')})`, 'gi')
const RUN_TIME_MEMBER = /(?<=[{,]\s{0,8})"\w{0,40}(?:duration|elapsed|_seconds|_secs|_ms)": ?[\d.e+-]{1,40}/gi

/** Returns the text without what known harnesses add to every result. */
export function withoutHarnessNoise(text: string): string {
  let kept = ''
  let at = 0
  // By index, as a regular expression would overflow the stack on some megabytes.
  for (;;) {
    const start = text.indexOf(REMINDER, at)
    const end = start === -1 ? -1 : text.indexOf(REMINDER_END, start)
    if (end === -1) break
    kept += text.slice(at, start)
    at = end + REMINDER_END.length
  }
  // A line ends with a reminder after it or without one. White space alone is still something.
  const trimmed = (kept + text.slice(at)).trimEnd()
  const said = (at === 0 && trimmed === '' ? text : trimmed).replace(HARNESS_FIELDS, '')
  const result = HAS_OUTPUT.test(said) ? said.replace(RUN_TIME_MEMBER, '') : said
  return result.replace(BEFORE_OUTPUT, (head) => head.replace(RUN_TIMES, ''))
}

/** Of a longer text only the beginning and the end are masked: figures take some 100 ns for each character. */
const MAX_MASKED = 131_072
/** Longer texts are compared with their lines as they come: sorting them costs too much. */
const MAX_SORTED_LINES = 20_000

/** Returns the text with what is volatile masked, and its lines sorted, as parallel workers give them in any order. */
export function maskVolatile(text: string): string {
  const half = MAX_MASKED / 2
  const [head, middle, tail] =
    text.length <= MAX_MASKED ? [text, '', ''] : [text.slice(0, half), text.slice(half, -half), text.slice(-half)]
  const whole = head.replace(VOLATILE, '#') + middle + tail.replace(VOLATILE, '#')
  const lines = whole.split('\n')
  return lines.length > MAX_SORTED_LINES ? whole : lines.sort().join('\n')
}
