/** Reads sessions that an older version of Governor stored, which kept each count in a place of its own. */
import { add, type Counts, countsOf, NO_COUNTS } from '../core/counters.ts'
import type { IterationRecord, MinuteRecord, SessionRecord } from '../core/operator/session-record.ts'
import type { Run, RunSettings, Session, SessionSettings, Thread } from '../core/session/session.ts'
import type { FinalAnswer } from '../core/terminal.ts'
import type { CallUsage } from '../core/usage.ts'

/** A record as it is stored: with the names of counters, in the order in which its lines have them. */
export interface StoredRecord extends Omit<SessionRecord, 'iterations' | 'minutes'> {
  readonly counters: string
  readonly iterations: readonly (string | IterationRecord)[]
  readonly minutes?: readonly (string | MinuteRecord)[] | undefined
}

/** A session as it is stored. */
export interface StoredSession extends Omit<Session, 'record'> {
  readonly record?: StoredRecord | undefined
}

/** A type whose members of the same names had other types in older versions. */
type Older<Newer, Members> = Omit<Newer, keyof Members | 'counts'> & Members

interface OlderCounts {
  readonly iterations: number
  readonly toolCalls: number
}

interface OlderBase {
  readonly base?: Readonly<Partial<Record<'iterations' | 'tool_calls' | 'tokens' | 'cost' | 'seconds', number>>>
}

type OlderRun = Older<
  Run,
  {
    readonly iteration: number
    readonly toolCalls: number
    readonly usage?: CallUsage
    readonly inherited?: OlderCounts
    readonly operator?: Older<RunSettings, OlderBase>
    readonly finalAnswer?: Older<FinalAnswer, { readonly ended?: OlderCounts & { readonly at: number } }>
  }
>

type OlderSession = Older<
  Session,
  {
    readonly threads: readonly Older<
      Thread,
      {
        readonly run: OlderRun
        readonly interrupted?: Older<NonNullable<Thread['interrupted']>, { readonly run: OlderRun }>
      }
    >[]
    readonly usage?: CallUsage
    readonly totals?: OlderCounts & {
      readonly startedAt: number
      readonly acknowledged: number
      readonly ignored: number
    }
    readonly operator?: Older<SessionSettings, OlderBase>
    readonly record?: Older<
      SessionRecord,
      {
        readonly iterations: readonly (string | OlderEntry)[]
        readonly minutes?: readonly (string | OlderEntry)[]
        readonly runs: readonly OlderEntry[]
      }
    >
  }
>

/** An iteration, a minute or a run of a record; of the last two only the sum of their tokens was kept. */
type OlderEntry = Partial<OlderCounts & Pick<CallUsage, 'input' | 'output' | 'cost' | 'costGap'>> & {
  readonly tokens?: number
}

function countsIn({ iterations, toolCalls }: OlderCounts, usage?: CallUsage): Counts {
  return add({ iterations, tool_calls: toolCalls }, usage ? countsOf(usage) : NO_COUNTS)
}

/** Returns the counts of a reset. Its tokens were one sum: which of them were of prompts does not matter. */
function baseIn({ base }: OlderBase, startedAt: number, { input = 0 }: Counts): RunSettings['base'] {
  if (!base) return undefined
  const { seconds = 0, tokens = 0, ...counts } = base
  const ofPrompts = Math.min(tokens, input)
  return { at: startedAt + seconds * 1_000, counts: add(counts, { input: ofPrompts, output: tokens - ofPrompts }) }
}

function runIn({ iteration, toolCalls, usage, inherited, operator, finalAnswer, ...run }: OlderRun): Run {
  const counts = add({ runs: 1 }, countsIn({ iterations: iteration, toolCalls }, usage))
  const { ended } = finalAnswer ?? {}
  return {
    ...run,
    counts,
    inherited: inherited && countsIn(inherited),
    operator: operator && { ...operator, base: baseIn(operator, run.startedAt, counts) },
    finalAnswer: finalAnswer && {
      ...finalAnswer,
      ended: ended && { at: ended.at, counts: countsIn(ended) },
    },
  }
}

function entryIn({ iterations = 0, toolCalls = 0, tokens = 0, cost, costGap, ...entry }: OlderEntry): object {
  const { input = tokens, output = 0, ...rest } = entry
  return { ...rest, counts: countsIn({ iterations, toolCalls }, { input, output, cost, costGap, estimated: false }) }
}

/** What older lines have counted, in the order that they have here. */
const COUNTERS_OF_LINES = 'input output cost unpriced_answers estimated_prices'
/** The last two of them, by the number of the gap that was kept in their place. */
const GAPS = ['  ', '1  ', ' 1 ']

/** Returns a line with that order. A cost was in billionths, and had its gap after it; a minute had one sum of tokens. */
function lineIn(line: string, isMinute: boolean): string {
  const numbers = isMinute ? /^((?:\w+ ){2})(\w+) (\d) / : /^((?:\w+ ){6})(\w+) (\d) /
  return line.replace(numbers, (_, first, cost, gap) => `${first}${isMinute ? ' ' : ''}${cost}B ${GAPS[gap] ?? '  '}`)
}

function recordIn({ iterations, minutes, runs, ...record }: NonNullable<OlderSession['record']>): StoredRecord {
  const entry = (isMinute: boolean) => (one: string | OlderEntry) =>
    typeof one === 'string' ? lineIn(one, isMinute) : entryIn(one)
  const entries = {
    iterations: iterations.map(entry(false)),
    minutes: minutes?.map(entry(true)),
    runs: runs.map(entryIn),
  }
  return { ...record, counters: COUNTERS_OF_LINES, ...entries } as StoredRecord
}

/** Returns a session in the form in which this version stores it: one that it stored itself as it is. */
export function fromOlder(stored: unknown): StoredSession {
  const known = stored as StoredSession | OlderSession
  if ('counts' in known) return known
  const { threads, usage, totals, operator, record, ...session } = known
  const { startedAt, acknowledged = 0, ignored = 0, iterations = 0, toolCalls = 0 } = totals ?? {}
  const counts = add({ acknowledged, ignored }, countsIn({ iterations, toolCalls }, usage))
  return {
    ...session,
    threads: threads.map(({ run, interrupted, ...thread }) => ({
      ...thread,
      run: runIn(run),
      interrupted: interrupted && { ...interrupted, run: runIn(interrupted.run) },
    })),
    startedAt,
    counts,
    operator: operator && { ...operator, base: baseIn(operator, startedAt ?? 0, counts) },
    record: record && recordIn(record),
  }
}
