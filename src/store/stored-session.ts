/**
 * The form in which a session is stored in Redis: the iterations and minutes of its record are lines of text, which
 * take a quarter of the room of objects. Each request reads and writes the whole session.
 */
import { isObject } from '../core/json-object.ts'
import type { IterationRecord, MinuteRecord } from '../core/operator/session-record.ts'
import type { Session } from '../core/session/session.ts'
import type { CostGap } from '../core/usage.ts'
import { fromOlder } from './older-session.ts'

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

const SPACE = 0x20
const DIGIT_END = 0x3a
const DIGIT_ZERO = 0x30
/** What is to be taken from the code of a letter to get its value as a digit. */
const LETTER_ZERO = 0x57

/** Reads a line on from a place. A session has up to 108 lines: `split` takes six times as long. */
function nextNumber(reader: { readonly line: string; at: number }): number {
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
  const reader = { line, at: 0 }
  const tools: readonly string[] = []
  const usual = {
    thread: nextNumber(reader),
    at: nextNumber(reader),
    iteration: nextNumber(reader),
    durationMs: nextNumber(reader),
    input: nextNumber(reader),
    output: nextNumber(reader),
    cost: nextNumber(reader) / PER_DOLLAR,
    costGap: GAPS[nextNumber(reader)],
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

function minuteIn(line: string): MinuteRecord {
  const reader = { line, at: 0 }
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

/** The stored form of all other values: as they are. Some hold the first state of a session. */
export const PLAIN: StoredForm<unknown> = {
  write: (value) => value,
  read(stored) {
    if (!isObject(stored) || !isObject(stored['begun'])) return stored
    return { ...stored, begun: fromOlder(stored['begun']) }
  },
}

/** Creates the stored form of sessions. */
export function createSessionForm(): StoredForm<Session> {
  const iterationLines = createLines(lineOfIteration, iterationIn)
  const minuteLines = createLines(lineOfMinute, minuteIn)
  return {
    write(session) {
      const { record } = session
      if (!record) return session
      const iterations = record.iterations.map(iterationLines.write)
      return { ...session, record: { ...record, iterations, minutes: record.minutes?.map(minuteLines.write) } }
    },
    read(stored) {
      // Its record contains lines of text in place of objects.
      const session = fromOlder(stored as object)
      const { record } = session
      if (!record) return session
      const iterations = record.iterations.map(iterationLines.read)
      return { ...session, record: { ...record, iterations, minutes: record.minutes?.map(minuteLines.read) } }
    },
  }
}
