/**
 * The meters of a run, one row each: the configuration, the notices, the API and the ends of runs are made of these
 * rows. A new meter is a row here; what it reads is a row of `COUNTERS`.
 */
import type { CounterName, Counts } from '../counters.ts'
import { namesOf, tableBy } from '../names.ts'
import { dollarText } from '../text/dollars.ts'
import type { ScopeName } from './scopes.ts'

/** Cuts a value off after `decimals`. A hair is added first, because sums of money are never quite round. */
function cut(value: number, decimals: number): number {
  const scale = 10 ** decimals
  return Math.floor(value * scale + 1e-6) / scale
}

/** Returns 850, 12.3k, 850k or 1.4M: rounded down. */
function short(amount: number, decimals: number): string {
  if (amount < 1_000) return String(Math.floor(amount))
  const [value, letter] = amount < 1_000_000 ? [amount / 1_000, 'k'] : [amount / 1_000_000, 'M']
  return `${cut(value, letter === 'k' && value >= 100 ? Math.max(0, decimals - 1) : decimals)}${letter}`
}

/** The numbers of a meter as a model reads them, with their unit sign: `$1.20`, `12.3k`. `left` is never negative. */
type FormattedAmounts = Readonly<Record<'used' | 'max' | 'left', string>>

function whole(used: number, max: number): FormattedAmounts {
  // A rate has fractions.
  const made = Math.floor(used)
  return { used: String(made), max: String(max), left: String(Math.max(0, Math.floor(max) - made)) }
}

/** Formats tokens: `12.3k`, `1.4M`; the limit with more decimals, so that it stands as it is configured. */
export function tokens(used: number, max: number): FormattedAmounts {
  return { used: short(used, 1), max: short(max, 3), left: short(Math.max(0, max - used), 1) }
}

function dollars(used: number, max: number): FormattedAmounts {
  // Cents, unless the whole limit is only a few cents.
  const decimals = max < 0.1 ? 4 : 2
  const format = (value: number) => dollarText(cut(value, decimals), decimals)
  return { used: format(used), max: format(max), left: format(Math.max(0, max - cut(used, decimals))) }
}

function seconds(used: number, max: number): FormattedAmounts {
  const passed = Math.floor(used)
  return { used: `${passed}s`, max: `${max}s`, left: `${Math.ceil(Math.max(0, max - passed))}s` }
}

/** All that is particular about one meter. */
export interface MeterRow {
  /** Its name in notices. */
  readonly word: string
  /** What it counts; empty if the numbers say it, as `$5.00` does. */
  readonly unit: string
  readonly format: (used: number, max: number) => FormattedAmounts
  /** What it adds up; unset for one of time, and for the context window. */
  readonly counters?: readonly CounterName[]
  /** It counts steps that the model can plan with; a single token, cent or second means nothing. */
  readonly isCounted?: true
  /** `used` includes the current request, so that `max` itself is still allowed. */
  readonly includesCurrent?: true
  /** The limit that users set; unset for a limit of the model, which never ends a run. */
  readonly limit?: {
    /** Key of the configuration, in the sections of its scopes. */
    readonly setting: string
    /** The only scopes in which it can be set; unset: in all of them. */
    readonly within?: 'runs' | 'time'
    /** How users write it: a whole number, one that may be `250k`, dollars such as `$5`, or a time such as `10m`. */
    readonly value: 'whole' | 'count' | 'dollars' | 'seconds'
    readonly help: string
    readonly reason: string
    /** The limit in the sentence that tells the model of it, as `{limit}`. */
    readonly noun: string
  }
  /** Shares at which its tiers start, and the names of their texts; unset if those of the budget hold. */
  readonly tiers?: Readonly<
    Record<'caution' | 'warning', { readonly share: number; readonly text: 'contextCaution' | 'contextWarning' }>
  >
}

/** The meters, in the order in which limits are checked. */
export const METERS = {
  iterations: {
    word: 'Iteration',
    unit: 'iterations',
    format: whole,
    counters: ['iterations'],
    isCounted: true,
    includesCurrent: true,
    limit: {
      setting: 'max_iterations',
      value: 'whole',
      help: 'Model calls.',
      reason: 'max_iterations',
      noun: 'iteration',
    },
  },
  tool_calls: {
    word: 'Tool call',
    unit: 'tool calls',
    format: whole,
    counters: ['tool_calls'],
    isCounted: true,
    limit: {
      setting: 'max_tool_calls',
      within: 'runs',
      value: 'whole',
      help: 'Tool calls; parallel calls count each.',
      reason: 'max_tool_calls',
      noun: 'tool call',
    },
  },
  tokens: {
    word: 'Tokens',
    unit: 'tokens',
    format: tokens,
    counters: ['input', 'output'],
    limit: {
      setting: 'max_tokens',
      value: 'count',
      help:
        'Tokens of all prompts and answers, as the provider states them, else estimated. You may write 250k ' +
        'and 2M.',
      reason: 'max_tokens',
      noun: 'token',
    },
  },
  task_tokens: {
    word: 'Task tokens',
    unit: 'tokens',
    format: tokens,
    counters: ['task_tokens'],
    limit: {
      setting: 'max_task_tokens',
      within: 'runs',
      value: 'count',
      help: 'Tokens, each counted once: of answers, and of new results in prompts, as in a task budget of Anthropic.',
      reason: 'max_tokens',
      noun: 'token',
    },
  },
  cost: {
    word: 'Cost',
    unit: '',
    format: dollars,
    counters: ['cost'],
    limit: {
      setting: 'max_cost_usd',
      value: 'dollars',
      help: 'US dollars, for models whose price is known (see models, and unknown_price).',
      reason: 'max_cost',
      noun: 'cost',
    },
  },
  seconds: {
    word: 'Time',
    unit: '',
    format: seconds,
    limit: {
      setting: 'max_seconds',
      within: 'runs',
      value: 'seconds',
      help: 'Seconds since the first request. You may write 90s, 10m and 2h.',
      reason: 'max_seconds',
      noun: 'time',
    },
  },
  runs: {
    word: 'Run',
    unit: 'runs',
    format: whole,
    counters: ['runs'],
    includesCurrent: true,
    limit: {
      setting: 'max_runs',
      within: 'time',
      value: 'whole',
      help: 'Runs that begin: human messages that agents work on.',
      reason: 'max_runs',
      noun: 'run',
    },
  },
  context: {
    word: 'Context',
    unit: 'tokens',
    format: tokens,
    tiers: {
      caution: { share: 0.8, text: 'contextCaution' },
      warning: { share: 0.92, text: 'contextWarning' },
    },
  },
} as const satisfies Readonly<Record<string, MeterRow>>

/** The name of a meter, as in metrics and headers. */
export type MeterName = keyof typeof METERS

/** The meters whose limit may be set in all scopes, or in the other ones than `Where`. */
type LimitsBeside<Where extends string> = {
  [Name in MeterName]: (typeof METERS)[Name] extends { readonly limit: infer Limit }
    ? Limit extends { readonly within: Where }
      ? never
      : Name
    : never
}[MeterName]

/** Meters with a limit of a run and of a session. */
export type LimitName = LimitsBeside<'time'>
/** Meters with a limit of a scope of time. */
export type TimeLimitName = LimitsBeside<'runs'>
/** Meters that users can set a limit on. */
export type AnyLimitName = LimitName | TimeLimitName

/** Keys of the configuration that set a limit of a run or a session. */
export type LimitSetting = (typeof METERS)[LimitName]['limit']['setting']
/** Keys of the configuration that set a limit of a scope of time. */
export type TimeLimitSetting = (typeof METERS)[TimeLimitName]['limit']['setting']
/** Terminal reasons of runs that reach a limit. */
export type LimitReason = (typeof METERS)[AnyLimitName]['limit']['reason']

/** All meters with a limit, in the order in which limits are checked. */
export const ALL_LIMITS: readonly AnyLimitName[] = namesOf(METERS).filter(
  (name): name is AnyLimitName => 'limit' in METERS[name],
)

function limitsBeside<Name extends AnyLimitName>(where: 'runs' | 'time'): readonly Name[] {
  return ALL_LIMITS.filter((name): name is Name => {
    const { limit }: MeterRow = METERS[name]
    return limit?.within !== where
  })
}

/** The meters with a limit of a run, in the order in which limits are checked. */
export const LIMITS = limitsBeside<LimitName>('time')
/** The meters with a limit of a scope of time, in that order. */
export const TIME_LIMITS = limitsBeside<TimeLimitName>('runs')

/** Their fields in the API: that of the cost says that it is in US dollars. */
export const TIME_FIELDS = {
  cost: 'cost_usd',
  tokens: 'tokens',
  iterations: 'iterations',
  runs: 'runs',
} as const satisfies Readonly<Record<TimeLimitName, string>>

/** Amounts used, or limits (0: no limit), by meter: counts, tokens of prompts and answers, US dollars, seconds. */
export type Amounts = Readonly<Record<LimitName, number>>

/** Limits of a run, and of all runs of its session together; 0 is no limit. */
export interface LimitPair {
  readonly run: Amounts
  readonly session: Amounts
}

export function amountsBy(amount: (name: LimitName) => number): Amounts {
  return tableBy(LIMITS, amount)
}

/** Returns what a meter adds up of counts; `undefined` for one that reads no counters. */
export function amountIn(counts: Counts, name: AnyLimitName): number | undefined {
  const { counters }: MeterRow = METERS[name]
  if (!counters) return undefined
  let amount = 0
  for (const counter of counters) amount += counts[counter] ?? 0
  return amount
}

/** Returns what the meters with a limit read of counts, and of a time. */
export function amountsOf(counts: Counts, seconds: number): Amounts {
  return amountsBy((name) => amountIn(counts, name) ?? seconds)
}

export const NO_LIMITS: Amounts = amountsBy(() => 0)

/** `used` of `max`, in the meter's unit; iterations and runs include the current one. */
export interface Meter<Name extends MeterName = MeterName> {
  readonly name: Name
  readonly used: number
  readonly max: number
  /** Unset for a run. */
  readonly scope?: ScopeName
  /** Set for a scope of time, and for a rate. */
  readonly time?: MeterTime
}

/** What a meter of a scope of time, or of a rate, knows besides its amounts. */
export interface MeterTime {
  /** When it begins at 0 again, in milliseconds since the epoch, and as people of the time zone read it. */
  readonly resetsAt: number
  readonly resets: string
  /** What is left for the run: requests in flight hold the rest. */
  readonly left: number
  /** What a step of the run uses on average; unset while nobody knows. */
  readonly step?: number | undefined
  /** The request would fit, if no other were in flight. */
  readonly isCrowded?: boolean
  /** The agent has not read yet that the limit is reached: this request tells it, and ends nothing. */
  readonly isNoticeDue?: boolean
}

/** A meter of a scope of time, or of a rate. */
export type TimeMeter = Meter<TimeLimitName> & { readonly time: MeterTime }

/** True if a meter is one of a run or a session. */
export function isOfRuns(meter: Meter<AnyLimitName>): meter is Meter<LimitName> {
  return meter.time === undefined
}

/**
 * True if a meter with a limit is used up: iteration max + 1 is one too many; of the others, a run that has used `max`
 * may make no further call. The context window is no budget: the provider refuses what does not fit.
 */
export function isExhausted(meter: Meter): meter is Meter<AnyLimitName> {
  const { name, used, max, time } = meter
  const { limit, includesCurrent }: MeterRow = METERS[name]
  if (max <= 0 || !limit || time?.isNoticeDue) return false
  return time?.isCrowded === true || (includesCurrent ? used > max : used >= max)
}

/**
 * Returns the limit on cost, in US dollars: that of the run, else of the session, a scope of time or the rate, if any.
 * Where the budget is not enabled, only an access key has limits.
 */
export function costLimit({
  enabled,
  run,
  session,
  scopes,
  velocity,
}: LimitPair & {
  readonly enabled: boolean
  readonly scopes: readonly { readonly limits: { readonly cost: number } }[]
  readonly velocity?: { readonly limits: { readonly cost: number } } | undefined
}): number | undefined {
  const ofTime = scopes.find(({ limits }) => limits.cost > 0) ?? velocity
  return (enabled && (run.cost || session.cost)) || ofTime?.limits.cost || undefined
}

/** Returns a meter for each limit that is set, in the order in which limits are checked. */
export function metersOf(used: Amounts, limits: Amounts, scope?: 'session'): Meter<LimitName>[] {
  const meters: Meter<LimitName>[] = []
  for (const name of LIMITS)
    if (limits[name] > 0) meters.push({ name, used: used[name], max: limits[name], ...(scope && { scope }) })
  return meters
}
