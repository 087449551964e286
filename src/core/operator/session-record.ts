/**
 * The record of a session that operators can read: its newest iterations and its finished runs. It is plain and
 * bounded data, and never contains an argument, a prompt or a result.
 */

import type { Recovery } from '../../overflow/meaning.ts'
import type { Tier } from '../budget/budget-notices.ts'
import { add, type Counts, countsOf, NO_COUNTS } from '../counters.ts'
import type { Pattern } from '../loop/patterns.ts'
import type { EndState, Terminal } from '../terminal.ts'
import type { CallUsage } from '../usage.ts'

/** How many iterations, finished runs and minutes of its spend a session keeps, of all its threads together. */
export const MAX_ITERATIONS_KEPT = 48
export const MAX_RUNS_KEPT = 16
export const MAX_MINUTES_KEPT = 60
export const MINUTE_MS = 60_000
/** How many characters it keeps of what Governor said in one iteration. */
const MAX_SAID = 400
/** How many tool names one iteration keeps, and how many characters of each. */
const MAX_TOOLS = 8
const MAX_TOOL_NAME = 64

/** One model call of a run, with its outcome. */
export interface IterationRecord {
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
  /**
   * The error that its client got, with status 0 if a response broke off; `code`: what the provider, or Governor, calls
   * it. Unset after an answer, and where the client left.
   */
  readonly error?: { readonly status: number; readonly code?: string | undefined } | undefined
  /** Names of the tools that it called; known once a request shows them. */
  readonly tools: readonly string[]
  /** What Governor said to the model; unset if it said nothing. */
  readonly said?: string | undefined
  /** What its answers have counted. */
  readonly counts: Counts
}

/** What a session used within one minute: its answers that ended in it, the model calls as iterations. */
export interface MinuteRecord {
  /** When the minute began, in milliseconds since the epoch. */
  readonly at: number
  readonly counts: Counts
}

/** How a run went. */
export interface RunRecord {
  readonly thread: number
  /** When its first request came, and its last one or the answer to that, in milliseconds since the epoch. */
  readonly startedAt: number
  readonly endedAt: number
  readonly counts: Counts
  /** The model, and the client's program, of its newest request; unset if that is not known. */
  readonly model?: string | undefined
  readonly agent?: string | undefined
  /** Unset if a human spoke before it had ended. */
  readonly state: EndState | undefined
  /** The terminal state that the client got at its end; unset if it got none. */
  readonly terminal: Terminal | undefined
}

export type EndedRun = RunRecord & { readonly state: EndState }

export interface SessionRecord {
  /** The client's own name for it, which may be a secret. */
  readonly name: string | undefined
  /** What it is about, for people alone; empty if its prompt does not say that, unset where labels are off. */
  readonly label?: string | undefined
  /** How many threads it has had. */
  readonly threads: number
  /** Oldest first. */
  readonly iterations: readonly IterationRecord[]
  /** Finished runs, oldest first. */
  readonly runs: readonly RunRecord[]
  /** The newest minutes in which it used something, oldest first; unset before the first. */
  readonly minutes?: readonly MinuteRecord[] | undefined
}

export const EMPTY_RECORD: SessionRecord = {
  name: undefined,
  label: undefined,
  threads: 0,
  iterations: [],
  minutes: undefined,
  runs: [],
}

/** The facts about a request when its answer is over. Times are milliseconds since the epoch. */
export interface IterationFacts
  extends Pick<IterationRecord, 'status' | 'verdict' | 'tier' | 'loop' | 'overflow' | 'error' | 'said'> {
  readonly askedAt: number
  readonly endedAt: number
}

/** Adds what an answer used to the minute in which it ended. `endedAt`: milliseconds since the epoch. */
export function withMinute(
  minutes: readonly MinuteRecord[] = [],
  endedAt: number,
  counts: Counts,
): readonly MinuteRecord[] {
  const at = endedAt - (endedAt % MINUTE_MS)
  const place = minutes.findIndex((one) => one.at === at)
  const minute = { at, counts: add(minutes[place]?.counts ?? NO_COUNTS, counts) }
  return place === -1 ? [...minutes.slice(1 - MAX_MINUTES_KEPT), minute] : minutes.with(place, minute)
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
  const { iterations } = record
  const { askedAt, endedAt, said } = facts
  // A late cost may come after further iterations.
  const isLateCost = usage !== undefined && usage.input + usage.output === 0
  const isSame = (one: IterationRecord) => one.thread === thread && one.at === askedAt
  let at = iterations.findLastIndex((one) => isSame(one) && one.iteration === iteration)
  if (at === -1 && isLateCost) at = iterations.findLastIndex(isSame)
  const before = iterations[at]
  const counts = usage ? countsOf(usage) : NO_COUNTS
  const entry: IterationRecord = {
    status: facts.status,
    verdict: facts.verdict,
    tier: facts.tier,
    loop: facts.loop,
    overflow: facts.overflow,
    error: facts.error,
    thread,
    iteration: before?.iteration ?? iteration,
    at: askedAt,
    durationMs: before && isLateCost ? before.durationMs : Math.max(0, endedAt - askedAt),
    tools: before?.tools ?? [],
    said: said?.slice(0, MAX_SAID) ?? before?.said,
    counts: add(before?.counts ?? NO_COUNTS, counts),
  }
  const isFirst = before === undefined && !isLateCost
  return {
    name: record.name,
    label: record.label,
    threads: record.threads,
    iterations: before ? iterations.with(at, entry) : [...iterations.slice(1 - MAX_ITERATIONS_KEPT), entry],
    runs: record.runs,
    minutes: usage
      ? withMinute(record.minutes, endedAt, isFirst ? { ...counts, iterations: 1 } : counts)
      : record.minutes,
  } satisfies Required<SessionRecord>
}

/** Adds the names of the tools that the newest iteration of a thread called, if they are not known yet. */
export function withTools(record: SessionRecord, thread: number, tools: readonly string[]): SessionRecord {
  const { iterations } = record
  const at = iterations.findLastIndex((one) => one.thread === thread)
  const entry = iterations[at]
  if (!entry || tools.length === 0 || entry.tools.length > 0 || entry.status !== 200) return record
  const kept = tools.slice(0, MAX_TOOLS).map((tool) => tool.slice(0, MAX_TOOL_NAME))
  return { ...record, iterations: iterations.with(at, { ...entry, tools: kept }) }
}

export function withRun(record: SessionRecord, run: RunRecord): SessionRecord {
  return { ...record, runs: [...record.runs.slice(1 - MAX_RUNS_KEPT), run] }
}
