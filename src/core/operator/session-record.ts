/**
 * The record of a session that operators can read: its newest iterations and its finished runs. It is plain and
 * bounded data, and never contains an argument, a prompt or a result.
 *
 * Iterations and minutes are kept as lines of text, which take a quarter of the room of objects: a shared store gets
 * the whole session twice for each request.
 */

import type { Recovery } from '../../overflow/meaning.ts'
import type { Tier } from '../budget/budget-notices.ts'
import type { Pattern } from '../loop/patterns.ts'
import type { EndState, Terminal } from '../terminal.ts'
import { type CallUsage, type CostGap, gapOfSum } from '../usage.ts'

/** How many iterations, finished runs and minutes of its spend a session keeps, of all its threads together. */
export const MAX_ITERATIONS_KEPT = 48
export const MAX_RUNS_KEPT = 16
export const MAX_MINUTES_KEPT = 60
/** How many characters it keeps of what Governor said in one iteration. */
const MAX_SAID = 400
/** How many tool names one iteration keeps, and how many characters of each. */
const MAX_TOOLS = 8
const MAX_TOOL_NAME = 64
const MINUTE = 60_000

/** What was spent. */
interface Spend {
  readonly tokens: number
  /** US dollars. */
  readonly cost: number
  /** Unset if all prices are known. */
  readonly costGap?: CostGap | undefined
}

/** One model call of a run, with its outcome. */
export interface IterationRecord extends Omit<Spend, 'tokens'> {
  /** Number of the thread in its session, from 1. */
  readonly thread: number
  readonly iteration: number
  /** When it was requested, in milliseconds since the epoch. */
  readonly at: number
  /** From then to the end of the answer, in milliseconds. */
  readonly durationMs: number
  /** HTTP status of the answer; 0 if there was none. */
  readonly status: number
  readonly verdict: 'allow' | 'warn' | 'block' | 'stop'
  readonly tier: Exclude<Tier, 'none'> | undefined
  readonly loop: Pattern | undefined
  /** The recovery, if it was too large for the model. */
  readonly overflow: Recovery | undefined
  /** Names of the tools that it called; known once a request shows them. */
  readonly tools: readonly string[]
  /** What Governor said to the model; unset if it said nothing. */
  readonly said?: string | undefined
  readonly input: number
  readonly output: number
}

/** What a session used within one minute. */
export interface MinuteRecord extends Spend {
  /** When the minute began, in milliseconds since the epoch. */
  readonly at: number
}

/** How a run went. */
export interface RunRecord extends Spend {
  readonly thread: number
  /** When its first request came, and its last one or the answer to that, in milliseconds since the epoch. */
  readonly startedAt: number
  readonly endedAt: number
  readonly iterations: number
  readonly toolCalls: number
  /** The model, and the client's program, of its newest request; unset if that is not known. */
  readonly model?: string | undefined
  readonly agent?: string | undefined
  /** Unset if a human spoke before it had ended. */
  readonly state: EndState | undefined
  /** The terminal state that the client got at its end; unset if it got none. */
  readonly terminal: Terminal | undefined
}

/** A run whose end is known. */
export type EndedRun = RunRecord & { readonly state: EndState }

/** The record of a session, see above. */
export interface SessionRecord {
  /** The client's own name for it, which may be a secret. */
  readonly name: string | undefined
  /** How many threads it has had. */
  readonly threads: number
  /** Its newest iterations, oldest first, see `iterationsOf`; unset in records of older versions. */
  readonly iterationLines?: readonly string[] | undefined
  /** The newest minutes in which it used something, oldest first, see `minutesOf`. */
  readonly minuteLines?: readonly string[] | undefined
  /** Finished runs, oldest first. */
  readonly runs: readonly RunRecord[]
}

export const EMPTY_RECORD: SessionRecord = {
  name: undefined,
  threads: 0,
  iterationLines: undefined,
  minuteLines: undefined,
  runs: [],
}

/** Costs are kept in whole billionths of a dollar. */
const PER_DOLLAR = 1e9
/** A gap in a cost is kept as its place in this list. */
const GAPS: readonly (CostGap | undefined)[] = [undefined, 'partial', 'estimate']

/** Returns the beginning of a line: whole numbers in base 36, each with a space after it. */
function beginLine(...numbers: readonly number[]): string {
  let line = ''
  for (const one of numbers) line += `${Math.round(one).toString(36)} `
  return line
}

/** Returns an iteration as a line: its numbers, its tools, and as JSON what few iterations have. */
export function iterationLine(one: IterationRecord): string {
  const { thread, at, iteration, durationMs, input, output, cost, costGap, tools } = one
  const { status, verdict, tier, loop, overflow, said } = one
  const gap = GAPS.indexOf(costGap)
  let line = beginLine(thread, at, iteration, durationMs, input, output, cost * PER_DOLLAR, gap)
  line += tools.map(encodeURIComponent).join()
  if (status === 200 && verdict === 'allow' && !tier && !loop && !overflow && said === undefined) return line
  return `${line} ${JSON.stringify({ status, verdict, tier, loop, overflow, said })}`
}

/** Reads a line from its beginning. A list of sessions reads some 50 for each: `split` takes six times as long. */
interface LineReader {
  readonly line: string
  at: number
}

const SPACE = 0x20
const DIGIT_END = 0x3a
const DIGIT_ZERO = 0x30
/** What is to be taken from the code of a letter to get its value as a digit. */
const LETTER_ZERO = 0x57

/** Returns the next number. */
function nextNumber(reader: LineReader): number {
  let number = 0
  while (reader.at < reader.line.length) {
    const code = reader.line.charCodeAt(reader.at++)
    if (code === SPACE) break
    number = number * 36 + code - (code < DIGIT_END ? DIGIT_ZERO : LETTER_ZERO)
  }
  return number
}

/** Returns the iteration of a line. */
export function iterationIn(line: string): IterationRecord {
  const reader: LineReader = { line, at: 0 }
  const thread = nextNumber(reader)
  const at = nextNumber(reader)
  const iteration = nextNumber(reader)
  const durationMs = nextNumber(reader)
  const input = nextNumber(reader)
  const output = nextNumber(reader)
  const cost = nextNumber(reader) / PER_DOLLAR
  const costGap = GAPS[nextNumber(reader)]
  const space = line.indexOf(' ', reader.at)
  const names = space === -1 ? line.slice(reader.at) : line.slice(reader.at, space)
  const tools = names === '' ? [] : names.split(',').map(decodeURIComponent)
  const rare = space === -1 ? undefined : (JSON.parse(line.slice(space)) as Partial<IterationRecord>)
  const { status = 200, verdict = 'allow', tier, loop, overflow, said } = rare ?? {}
  return {
    status,
    verdict,
    tier,
    loop,
    overflow,
    said,
    thread,
    iteration,
    at,
    durationMs,
    tools,
    input,
    output,
    cost,
    costGap,
  }
}

/** Returns a minute as a line. */
export function minuteLine({ at, tokens, cost, costGap }: MinuteRecord): string {
  return beginLine(at / MINUTE, tokens, cost * PER_DOLLAR, GAPS.indexOf(costGap))
}

/** Returns the minute of a line. */
export function minuteIn(line: string): MinuteRecord {
  const reader: LineReader = { line, at: 0 }
  return {
    at: nextNumber(reader) * MINUTE,
    tokens: nextNumber(reader),
    cost: nextNumber(reader) / PER_DOLLAR,
    costGap: GAPS[nextNumber(reader)],
  }
}

/** The facts about a request when its answer is over. Times are milliseconds since the epoch. */
export interface IterationFacts
  extends Pick<IterationRecord, 'status' | 'verdict' | 'tier' | 'loop' | 'overflow' | 'said'> {
  readonly askedAt: number
  readonly endedAt: number
}

/**
 * Adds an iteration, or the usage of a further answer to the same iteration: of a model that was asked again, or
 * with a price that became known later.
 */
export function withIteration(
  record: SessionRecord,
  thread: number,
  iteration: number,
  facts: IterationFacts,
  usage: CallUsage | undefined,
): SessionRecord {
  const { iterationLines: lines = [], minuteLines = [] } = record
  const { askedAt, endedAt, said } = facts
  // A late cost may come after further iterations.
  const isLateCost = usage !== undefined && usage.input + usage.output === 0
  let at = findLine(lines, thread, askedAt, iteration)
  if (at === -1 && isLateCost) at = findLine(lines, thread, askedAt)
  const known = lines[at]
  const before = known === undefined ? undefined : iterationIn(known)
  const { input = 0, output = 0, cost = 0, costGap } = usage ?? {}
  const line = iterationLine({
    status: facts.status,
    verdict: facts.verdict,
    tier: facts.tier,
    loop: facts.loop,
    overflow: facts.overflow,
    thread,
    iteration: before?.iteration ?? iteration,
    at: askedAt,
    durationMs: before && isLateCost ? before.durationMs : Math.max(0, endedAt - askedAt),
    tools: before?.tools ?? [],
    said: said?.slice(0, MAX_SAID) ?? before?.said,
    input: (before?.input ?? 0) + input,
    output: (before?.output ?? 0) + output,
    cost: (before?.cost ?? 0) + cost,
    costGap: gapOfSum(before?.costGap, costGap),
  })
  return {
    ...record,
    iterationLines: before ? lines.with(at, line) : [...lines.slice(1 - MAX_ITERATIONS_KEPT), line],
    minuteLines: usage ? withUsage(minuteLines, endedAt, usage) : minuteLines,
  }
}

/** Returns the place of the newest line that begins with these numbers; -1 if there is none. */
function findLine(lines: readonly string[], ...numbers: readonly number[]): number {
  const beginning = beginLine(...numbers)
  return lines.findLastIndex((line) => line.startsWith(beginning))
}

/** Adds what an answer used to the minute in which it ended. */
function withUsage(lines: readonly string[], endedAt: number, { input, output, cost = 0, costGap }: CallUsage) {
  const minute = Math.floor(endedAt / MINUTE)
  const place = findLine(lines, minute)
  const known = lines[place]
  const sum = known === undefined ? undefined : minuteIn(known)
  const line = minuteLine({
    at: minute * MINUTE,
    tokens: (sum?.tokens ?? 0) + input + output,
    cost: (sum?.cost ?? 0) + cost,
    costGap: gapOfSum(sum?.costGap, costGap),
  })
  return place === -1 ? [...lines.slice(1 - MAX_MINUTES_KEPT), line] : lines.with(place, line)
}

/** A lone half of a pair of code units, which no URI can contain. */
const LONE_SURROGATE = /\p{Surrogate}/gu

/** Adds the names of the tools that the newest iteration of a thread called, if they are not known yet. */
export function withTools(record: SessionRecord, thread: number, tools: readonly string[]): SessionRecord {
  const { iterationLines: lines = [] } = record
  const at = findLine(lines, thread)
  const line = lines[at]
  if (line === undefined || tools.length === 0) return record
  const entry = iterationIn(line)
  if (entry.tools.length > 0 || entry.status !== 200) return record
  const kept: string[] = []
  for (const tool of tools.slice(0, MAX_TOOLS)) kept.push(tool.slice(0, MAX_TOOL_NAME).replace(LONE_SURROGATE, ''))
  return { ...record, iterationLines: lines.with(at, iterationLine({ ...entry, tools: kept })) }
}

/** Adds a finished run. */
export function withRun(record: SessionRecord, run: RunRecord): SessionRecord {
  return { ...record, runs: [...record.runs.slice(1 - MAX_RUNS_KEPT), run] }
}
