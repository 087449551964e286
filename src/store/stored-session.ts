/**
 * The form in which a session is stored in Redis: the iterations and minutes of its record are lines of text, which
 * take a third of the room of objects, and are made once. Each request reads and writes the whole session.
 */
import { COUNTERS, type Counts } from '../core/counters.ts'
import { namesOf } from '../core/names.ts'
import {
  type IterationRecord,
  MINUTE_MS,
  type MinuteRecord,
  type SessionRecord,
} from '../core/operator/session-record.ts'
import type { Session } from '../core/session/session.ts'

/**
 * A session as it is stored: with the names of the counters, in the order in which the lines of its record have them.
 */
interface StoredSession extends Omit<Session, 'record'> {
  readonly record?: Omit<SessionRecord, 'iterations' | 'minutes'> & {
    readonly counters: string
    readonly iterations: readonly string[]
    readonly minutes?: readonly string[] | undefined
  }
}

/** How values are stored. */
export interface StoredForm<Value> {
  /** Its version. What another version wrote is neither read nor overwritten. */
  readonly schema: string
  readonly write: (value: Value) => unknown
  /** Reads what `write` returned, after it was JSON. */
  readonly read: (stored: unknown) => Value
}

/** Fractions are kept in whole billionths, and end in this letter; digits are small letters. */
const PER_UNIT = 1e9
const BILLIONTHS = 'B'

/** Returns numbers in base 36, each with a space after it; nothing in place of 0. */
function numbersOf(numbers: readonly number[]): string {
  let line = ''
  for (const one of numbers) {
    if (Number.isInteger(one)) line += one === 0 ? ' ' : `${one.toString(36)} `
    else line += `${Math.round(one * PER_UNIT).toString(36)}${BILLIONTHS} `
  }
  return line
}

/** What can stand in a line as it is. */
const PLAIN_NAME = /^[\w.:-]+$/

/** Returns amounts in the order of the names of their counters. */
function amountsOf(counts: Counts, names: readonly string[]): number[] {
  const amounts: Readonly<Record<string, number>> = counts
  return names.map((name) => amounts[name] ?? 0)
}

/** Returns an iteration as a line: its numbers, then its tools, or as JSON what few iterations have. */
function lineOfIteration(one: IterationRecord, counters: readonly string[]): string {
  const { thread, at, iteration, durationMs, counts, tools, status, verdict, tier, loop, overflow, said } = one
  const line = numbersOf([thread, at, iteration, durationMs, ...amountsOf(counts, counters)])
  const isUsual = status === 200 && verdict === 'allow' && !tier && !loop && !overflow && said === undefined
  if (isUsual && tools.every((name) => PLAIN_NAME.test(name))) return line + tools.join(' ')
  return line + JSON.stringify({ tools, status, verdict, tier, loop, overflow, said })
}

function lineOfMinute({ at, counts }: MinuteRecord, counters: readonly string[]): string {
  return numbersOf([at / MINUTE_MS, ...amountsOf(counts, counters)])
}

const SPACE = 0x20
const DIGIT_END = 0x3a
const DIGIT_ZERO = 0x30
/** What is to be taken from the code of a letter to get its value as a digit. */
const LETTER_ZERO = 0x57
const BILLIONTHS_CODE = 0x42

interface Reader {
  readonly line: string
  at: number
}

/** Reads a line on from a place. A session has up to 108 lines: `split` takes six times as long. */
function nextNumber(reader: Reader): number {
  let number = 0
  while (reader.at < reader.line.length) {
    const code = reader.line.charCodeAt(reader.at++)
    if (code === SPACE) break
    if (code === BILLIONTHS_CODE) number /= PER_UNIT
    else number = number * 36 + code - (code < DIGIT_END ? DIGIT_ZERO : LETTER_ZERO)
  }
  return number
}

/** Reads the counts of a line; `counters`: in which order. */
function nextCounts(reader: Reader, counters: readonly string[]): Counts {
  const counts: Record<string, number> = {}
  for (const name of counters) {
    const amount = nextNumber(reader)
    if (amount > 0) counts[name] = amount
  }
  return counts
}

const JSON_BEGIN = '{'

function iterationIn(line: string, counters: readonly string[]): IterationRecord {
  const reader = { line, at: 0 }
  const tools: readonly string[] = []
  const usual = {
    thread: nextNumber(reader),
    at: nextNumber(reader),
    iteration: nextNumber(reader),
    durationMs: nextNumber(reader),
    counts: nextCounts(reader, counters),
    status: 200,
    verdict: 'allow' as const,
    tier: undefined,
    loop: undefined,
    overflow: undefined,
    tools,
  }
  const rest = line.slice(reader.at)
  if (rest.startsWith(JSON_BEGIN)) return Object.assign(usual, JSON.parse(rest))
  if (rest !== '') usual.tools = rest.split(' ')
  return usual
}

function minuteIn(line: string, counters: readonly string[]): MinuteRecord {
  const reader = { line, at: 0 }
  return { at: nextNumber(reader) * MINUTE_MS, counts: nextCounts(reader, counters) }
}

/** Writes and reads entries as lines, each entry once: most of them are in the next value again. */
function createLines<Entry extends object>(
  counters: readonly string[],
  lineOf: (entry: Entry, counters: readonly string[]) => string,
  entryIn: (line: string, counters: readonly string[]) => Entry,
) {
  const lines = new WeakMap<Entry, string>()
  return {
    write: (entry: Entry): string => {
      const known = lines.get(entry)
      if (known !== undefined) return known
      const line = lineOf(entry, counters)
      lines.set(entry, line)
      return line
    },
    /** `order`: that of the counters in this line. */
    read: (line: string, order: string): Entry => {
      const entry = entryIn(line, order.split(' '))
      if (order === counters.join(' ')) lines.set(entry, line)
      return entry
    },
  }
}

/** Creates the stored form of sessions. */
export function createSessionForm(): StoredForm<Session> {
  // Entries have what answers have counted, and minutes how many there were.
  const counters = namesOf(COUNTERS).filter((name) => 'ofAnswer' in COUNTERS[name])
  const iterationLines = createLines(counters, lineOfIteration, iterationIn)
  const minuteLines = createLines(['iterations', ...counters], lineOfMinute, minuteIn)
  return {
    schema: '3',
    write(session) {
      const { record } = session
      if (!record) return session
      const stored: StoredSession = {
        ...session,
        record: {
          ...record,
          counters: counters.join(' '),
          iterations: record.iterations.map(iterationLines.write),
          minutes: record.minutes?.map(minuteLines.write),
        },
      }
      return stored
    },
    read(stored) {
      const { record: known, ...session } = stored as StoredSession
      if (!known) return session
      const { counters: order, iterations, minutes, ...rest } = known
      const record = {
        ...rest,
        iterations: iterations.map((line) => iterationLines.read(line, order)),
        minutes: minutes?.map((line) => minuteLines.read(line, `iterations ${order}`)),
      }
      return { ...session, record }
    },
  }
}

/** Creates the stored form of all other values: as they are. */
export function createValueForm(): StoredForm<unknown> {
  return {
    // Sums and pauses state a version of their own, which older and newer Governors read: this one stays.
    schema: '3',
    write: (value) => value,
    read: (stored) => stored,
  }
}
