/**
 * What Governor counts: one row for each counter. All sums have one shape, `Counts`: those of an answer, a run, a
 * session, a minute, a day and a window of time. Meters read counters; the journal and the merge of replicas go over
 * all of them.
 */
import type { CallUsage, CostGap } from './usage.ts'

/** All that is particular about one counter. */
export interface CounterRow {
  /** What one answer adds; unset for what is counted with a request. */
  readonly ofAnswer?: (usage: CallUsage) => number
  /**
   * How the counts of two replicas for one run become one. `max`: the transcript shows it to both, and what a request
   * without an answer had counted is taken back. `growth`: each replica counts what it alone has seen.
   */
  readonly join: 'max' | 'growth'
  /** The end of a run freezes it: nothing that the run's agent sends afterwards is counted. */
  readonly isFrozen?: true
  /** Its name in the lines of the journal; unset if they do not contain it. */
  readonly journal?: string
}

/** The counters, in the order in which the journal has them. */
export const COUNTERS = {
  runs: { join: 'max', journal: 'runs' },
  /** Model calls that were answered, or are in flight. */
  iterations: { join: 'max', isFrozen: true, journal: 'iterations' },
  tool_calls: { join: 'max', isFrozen: true, journal: 'calls' },
  /** Tokens of prompts; the next two are parts of them. */
  input: { ofAnswer: ({ input }) => input, join: 'growth', journal: 'input' },
  cached_input: { ofAnswer: ({ cachedInput = 0 }) => cachedInput, join: 'growth', journal: 'cached_input' },
  cache_write: { ofAnswer: ({ cacheWrite = 0 }) => cacheWrite, join: 'growth', journal: 'cache_write' },
  /** Tokens of answers; reasoning is a part of them. */
  output: { ofAnswer: ({ output }) => output, join: 'growth', journal: 'output' },
  reasoning: { ofAnswer: ({ reasoning = 0 }) => reasoning, join: 'growth', journal: 'reasoning' },
  /** US dollars. */
  cost: { ofAnswer: ({ cost = 0 }) => cost, join: 'growth', journal: 'cost_usd' },
  /** Answers of unknown price, which count 0 in `cost`, and answers whose price is estimated. */
  unpriced_answers: { ofAnswer: ({ costGap }) => Number(costGap === 'partial'), join: 'growth' },
  estimated_prices: { ofAnswer: ({ costGap }) => Number(costGap === 'estimate'), join: 'growth' },
  /** Warnings that the model acknowledged, and warnings that it ignored. */
  acknowledged: { join: 'growth' },
  ignored: { join: 'growth' },
  /** Tokens, each once, of runs with a limit on them: of answers, and of results in the first prompt with them. */
  task_tokens: { ofAnswer: ({ output, added }) => (added === undefined ? 0 : output + added), join: 'growth' },
} as const satisfies Readonly<Record<string, CounterRow>>

/** The same by any name. */
const ROWS: Readonly<Record<string, CounterRow>> = COUNTERS

/** The name of a counter, as it is stored. */
export type CounterName = keyof typeof COUNTERS

/** Amounts by counter, never negative; what is unset is 0. One that a newer version counts is carried along. */
export type Counts = { readonly [Name in CounterName]?: number }

/** Nothing was counted. */
export const NO_COUNTS: Counts = {}

/** Returns an amount rounded to a billionth: sums of fractions drift. */
export function rounded(amount: number): number {
  return Number.isInteger(amount) ? amount : Math.round(amount * 1e9) / 1e9
}

type Amounts = Readonly<Record<string, number>>

/** Returns counts with an amount for each name that is in one of two; amounts of 0 and below are left out. */
function countsBy(one: Counts, other: Counts, amount: (a: number, b: number, name: string) => number): Counts {
  const [a, b]: readonly [Amounts, Amounts] = [one, other]
  const counts: Record<string, number> = {}
  for (const name in { ...a, ...b }) {
    const made = rounded(amount(a[name] ?? 0, b[name] ?? 0, name))
    if (made > 0) counts[name] = made
  }
  return counts
}

/** Returns the sum of two counts. */
export function add(counts: Counts, more: Counts): Counts {
  const sum: Record<string, number> = { ...counts }
  const added: Amounts = more
  for (const name in added) {
    const amount = added[name] ?? 0
    if (amount > 0) sum[name] = rounded((sum[name] ?? 0) + amount)
  }
  return sum
}

/** Returns what is left of counts without others; no amount is less than 0. */
export function minus(counts: Counts, others: Counts): Counts {
  return countsBy(counts, others, (a, b) => a - b)
}

/** Returns the counts of a run that is over: what the end of a run freezes is as it was `atEnd`. */
export function frozen(counts: Counts, atEnd: Counts): Counts {
  return countsBy(counts, atEnd, (now, then, name) => (ROWS[name]?.isFrozen ? then : now))
}

/** Returns an amount of `there` with what `here` has more than both began with; the larger one if that was lost. */
export function grown(was: number, here: number, there: number, isLost: boolean): number {
  return isLost ? Math.max(here, there) : there + Math.max(0, here - was)
}

/** What two replicas counted apart: in one run, whose transcript both may have read, or in a sum of other counts. */
type Joined = 'run' | 'sum'

/**
 * Returns the counts of two replicas as one. `base`: what both began with; unset if one of them began with nothing.
 * `isLost`: nobody knows what they have in common any more, so the larger amounts count.
 */
export function join(base: Counts | undefined, local: Counts, remote: Counts, of: Joined, isLost = false): Counts {
  const before: Amounts = base ?? {}
  return countsBy(local, remote, (here, there, name) => {
    const was = before[name] ?? 0
    if (isLost || ROWS[name]?.join !== 'max') return grown(was, here, there, isLost)
    // What a request without an answer had counted was taken back here.
    const left = there - (base ? Math.max(0, was - here) : 0)
    return of === 'run' ? Math.max(here, left) : grown(was, here, left, isLost)
  })
}

/** Returns what one answer adds to counts. */
export function countsOf(usage: CallUsage): Counts {
  const counts: Record<string, number> = {}
  for (const name in ROWS) {
    const amount = ROWS[name]?.ofAnswer?.(usage) ?? 0
    if (amount > 0) counts[name] = amount
  }
  return counts
}

/** Returns those of counts that are counted with requests, and not of answers. */
export function countedWithRequests(counts: Counts): Counts {
  return countsBy(counts, NO_COUNTS, (amount, _, name) => (ROWS[name]?.ofAnswer ? 0 : amount))
}

/** Returns the tokens of all prompts and answers. */
export function tokensIn({ input = 0, output = 0 }: Counts): number {
  return input + output
}

/** Returns why the cost in counts is not exact; `undefined` if it is. */
export function costGapOf({ unpriced_answers, estimated_prices }: Counts): CostGap | undefined {
  if (unpriced_answers) return 'partial'
  return estimated_prices ? 'estimate' : undefined
}
