/**
 * The form in which a session is stored in Redis: the iterations and minutes of its record are lines of text, which
 * take a quarter of the room of objects. Each request reads and writes the whole session.
 */
import type { IterationRecord, MinuteRecord, SessionRecord } from '../core/operator/session-record.ts'
import type { Session } from '../core/session/session.ts'
import type { CostGap } from '../core/usage.ts'

/** How values are stored. */
export interface StoredForm<Value> {
  readonly write: (value: Value) => unknown
  /** Reads what `write` returned, after it was JSON. */
  readonly read: (stored: unknown) => Value
}

/** Costs are kept in whole billionths of a dollar. */
const PER_DOLLAR = 1e9
const MINUTE = 60_000
/** A gap in a cost is kept as its place in this list. */
const GAPS: readonly (CostGap | undefined)[] = [undefined, 'partial', 'estimate']

/** Returns whole numbers in base 36, each with a space after it. */
function numbersOf(...numbers: readonly number[]): string {
  let line = ''
  for (const one of numbers) line += `${Math.round(one).toString(36)} `
  return line
}

/** What can stand in a line as it is. */
const PLAIN_NAME = /^[\w.:-]+$/

/** Returns an iteration as a line: its numbers, then its tools, or as JSON what few iterations have. */
function lineOfIteration(one: IterationRecord): string {
  const { thread, at, iteration, durationMs, input, output, cost, costGap, tools } = one
  const { status, verdict, tier, loop, overflow, said } = one
  const line = numbersOf(thread, at, iteration, durationMs, input, output, cost * PER_DOLLAR, GAPS.indexOf(costGap))
  const isUsual = status === 200 && verdict === 'allow' && !tier && !loop && !overflow && said === undefined
  if (isUsual && tools.every((name) => PLAIN_NAME.test(name))) return line + tools.join(' ')
  return line + JSON.stringify({ tools, status, verdict, tier, loop, overflow, said })
}

/** Returns a minute as a line. */
function lineOfMinute({ at, tokens, cost, costGap }: MinuteRecord): string {
  return numbersOf(at / MINUTE, tokens, cost * PER_DOLLAR, GAPS.indexOf(costGap))
}

/** Reads a line from its beginning. A session has up to 108: `split` takes six times as long. */
interface LineReader {
  readonly line: string
  at: number
}

const SPACE = 0x20
const DIGIT_END = 0x3a
const DIGIT_ZERO = 0x30
/** What is to be taken from the code of a letter to get its value as a digit. */
const LETTER_ZERO = 0x57

function nextNumber(reader: LineReader): number {
  let number = 0
  while (reader.at < reader.line.length) {
    const code = reader.line.charCodeAt(reader.at++)
    if (code === SPACE) break
    number = number * 36 + code - (code < DIGIT_END ? DIGIT_ZERO : LETTER_ZERO)
  }
  return number
}

const JSON_BEGIN = '{'

function iterationIn(line: string): IterationRecord {
  const reader: LineReader = { line, at: 0 }
  const thread = nextNumber(reader)
  const at = nextNumber(reader)
  const iteration = nextNumber(reader)
  const durationMs = nextNumber(reader)
  const input = nextNumber(reader)
  const output = nextNumber(reader)
  const cost = nextNumber(reader) / PER_DOLLAR
  const costGap = GAPS[nextNumber(reader)]
  const rest = line.slice(reader.at)
  const rare = rest.startsWith(JSON_BEGIN) ? (JSON.parse(rest) as Partial<IterationRecord>) : undefined
  return {
    status: rare?.status ?? 200,
    verdict: rare?.verdict ?? 'allow',
    tier: rare?.tier,
    loop: rare?.loop,
    overflow: rare?.overflow,
    thread,
    iteration,
    at,
    durationMs,
    tools: rare?.tools ?? (rest === '' ? [] : rest.split(' ')),
    said: rare?.said,
    input,
    output,
    cost,
    costGap,
  }
}

function minuteIn(line: string): MinuteRecord {
  const reader: LineReader = { line, at: 0 }
  return {
    at: nextNumber(reader) * MINUTE,
    tokens: nextNumber(reader),
    cost: nextNumber(reader) / PER_DOLLAR,
    costGap: GAPS[nextNumber(reader)],
  }
}

/** Writes and reads entries as lines, each entry once: most of them are in the next value again. */
function createLines<Entry extends object>(lineOf: (entry: Entry) => string, entryIn: (line: string) => Entry) {
  const lines = new WeakMap<Entry, string>()
  return {
    write: (entry: Entry): string => {
      const known = lines.get(entry)
      if (known !== undefined) return known
      const line = lineOf(entry)
      lines.set(entry, line)
      return line
    },
    /** Records of an older version have entries as they are. */
    read: (stored: string | Entry): Entry => {
      if (typeof stored !== 'string') return stored
      const entry = entryIn(stored)
      lines.set(entry, stored)
      return entry
    },
  }
}

/** A session as it is stored. */
type StoredSession = Omit<Session, 'record'> & {
  readonly record?: Omit<SessionRecord, 'iterations' | 'minutes'> & {
    readonly iterations: readonly (string | IterationRecord)[]
    readonly minutes?: readonly (string | MinuteRecord)[] | undefined
  }
}

/** Creates the stored form of sessions. */
export function createSessionForm(): StoredForm<Session> {
  const iterationLines = createLines(lineOfIteration, iterationIn)
  const minuteLines = createLines(lineOfMinute, minuteIn)
  return {
    write(session): StoredSession {
      const { record } = session
      if (!record) return session as StoredSession
      const iterations = record.iterations.map(iterationLines.write)
      return { ...session, record: { ...record, iterations, minutes: record.minutes?.map(minuteLines.write) } }
    },
    read(stored) {
      const session = stored as StoredSession
      const { record } = session
      if (!record) return session as Session
      const iterations = record.iterations.map(iterationLines.read)
      return { ...session, record: { ...record, iterations, minutes: record.minutes?.map(minuteLines.read) } }
    },
  }
}
