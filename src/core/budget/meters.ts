/**
 * The meters of a run, one row each: the configuration, the notices, the API and the ends of runs are made of these
 * rows. A new meter is a row here; one of something that is not counted yet is counted in `usage.ts` or `count-request.ts`.
 */
import type { Usage } from '../usage.ts'
import { dollars, type FormattedAmounts, seconds, tokens, whole } from './amount.ts'

/** What is counted of a run or a session. */
export interface Sums {
  readonly iterations: number
  readonly toolCalls: number
  /** Unset before the first answer. */
  readonly usage: Usage | undefined
  /** Seconds since it began. */
  readonly seconds: number
}

/** What is counted of one iteration. */
export interface IterationSums {
  /** The tools that it called, one entry for each call. */
  readonly tools: readonly string[]
  /** Tokens of prompt and answer. */
  readonly input: number
  readonly output: number
  /** US dollars. */
  readonly cost: number
}

/** All that is particular about one meter. */
export interface MeterRow {
  /** Its name in notices. */
  readonly word: string
  /** What it counts; empty if the numbers say it, as `$5.00` does. */
  readonly unit: string
  readonly format: (used: number, max: number) => FormattedAmounts
  /** It counts steps that the model can plan with; a single token, cent or second means nothing. */
  readonly isCounted: boolean
  /** `used` includes the current request, so that `max` itself is still allowed. */
  readonly includesCurrent: boolean
  /** The limit that users set; `undefined` for a limit of the model, which never ends a run. */
  readonly limit:
    | {
        /** Key of the configuration, in `budget.run` and `budget.session`. */
        readonly setting: string
        /** How users write it: a whole number, one that may be `250k`, or one with decimals. */
        readonly value: 'whole' | 'count' | 'decimal'
        /** Its description in the configuration. */
        readonly help: string
        /** Returns the amount that a run or a session has used. */
        readonly used: (sums: Sums) => number
        /** Returns the amount that one iteration used; `undefined` for time, which passes by itself. */
        readonly usedByIteration: ((one: IterationSums) => number) | undefined
        /** The terminal reason of a run that reaches the limit. */
        readonly reason: string
        /** The terminal state of such a run. */
        readonly state: 'tool_limit_reached' | 'budget_exceeded'
        /** The limit in the sentence that tells the model of it, as `{limit}`. */
        readonly noun: string
        /** Rounds the amount used for clients. */
        readonly rounded: (used: number) => number
      }
    | undefined
  /** Shares at which its tiers start, and the names of their texts; unset if those of the budget hold. */
  readonly tiers?: Readonly<
    Record<'caution' | 'warning', { readonly share: number; readonly text: 'contextCaution' | 'contextWarning' }>
  >
}

/** Rounds to millionths, the smallest prices in dollars that exist. */
const toMillionths = (used: number) => Math.round(used * 1_000_000) / 1_000_000

/** The meters, in the order in which limits are checked. */
export const METERS = {
  iterations: {
    word: 'Iteration',
    unit: 'iterations',
    format: whole,
    isCounted: true,
    includesCurrent: true,
    limit: {
      setting: 'max_iterations',
      value: 'whole',
      help: 'Model calls.',
      used: ({ iterations }) => iterations,
      usedByIteration: () => 1,
      reason: 'max_iterations',
      state: 'tool_limit_reached',
      noun: 'iteration',
      rounded: toMillionths,
    },
  },
  tool_calls: {
    word: 'Tool call',
    unit: 'tool calls',
    format: whole,
    isCounted: true,
    includesCurrent: false,
    limit: {
      setting: 'max_tool_calls',
      value: 'whole',
      help: 'Tool calls; parallel calls count each.',
      used: ({ toolCalls }) => toolCalls,
      usedByIteration: ({ tools }) => tools.length,
      reason: 'max_tool_calls',
      state: 'tool_limit_reached',
      noun: 'tool call',
      rounded: toMillionths,
    },
  },
  tokens: {
    word: 'Tokens',
    unit: 'tokens',
    format: tokens,
    isCounted: false,
    includesCurrent: false,
    limit: {
      setting: 'max_tokens',
      value: 'count',
      help:
        'Tokens of all prompts and answers, as the provider states them, else estimated. You may write 250k ' +
        'and 2M.',
      used: ({ usage }) => (usage ? usage.input + usage.output : 0),
      usedByIteration: ({ input, output }) => input + output,
      reason: 'max_tokens',
      state: 'budget_exceeded',
      noun: 'token',
      rounded: toMillionths,
    },
  },
  cost: {
    word: 'Cost',
    unit: '',
    format: dollars,
    isCounted: false,
    includesCurrent: false,
    limit: {
      setting: 'max_cost_usd',
      value: 'decimal',
      help: 'US dollars, for models whose price is known (see models, and unknown_price).',
      used: ({ usage }) => (usage ? usage.cost : 0),
      usedByIteration: ({ cost }) => cost,
      reason: 'max_cost',
      state: 'budget_exceeded',
      noun: 'cost',
      rounded: toMillionths,
    },
  },
  seconds: {
    word: 'Time',
    unit: '',
    format: seconds,
    isCounted: false,
    includesCurrent: false,
    limit: {
      setting: 'max_seconds',
      value: 'decimal',
      help: 'Seconds since the first request.',
      used: (sums) => sums.seconds,
      usedByIteration: undefined,
      reason: 'max_seconds',
      state: 'budget_exceeded',
      noun: 'time',
      rounded: Math.floor,
    },
  },
  context: {
    word: 'Context',
    unit: 'tokens',
    format: tokens,
    isCounted: false,
    includesCurrent: false,
    limit: undefined,
    tiers: {
      caution: { share: 0.8, text: 'contextCaution' },
      warning: { share: 0.92, text: 'contextWarning' },
    },
  },
} as const satisfies Readonly<Record<string, MeterRow>>

/** The name of a meter, as in metrics and headers. */
export type MeterName = keyof typeof METERS

/** Meters that users can set a limit on. */
export type LimitName = {
  [Name in MeterName]: (typeof METERS)[Name]['limit'] extends undefined ? never : Name
}[MeterName]

type Limit = (typeof METERS)[LimitName]['limit']

/** Keys of the configuration that set a limit. */
export type LimitSetting = Limit['setting']
/** Terminal reasons of runs that reach a limit. */
export type LimitReason = Limit['reason']
/** Terminal states of runs that reach a limit. */
export type LimitState = Limit['state']

/** The meters with a limit, in the order in which limits are checked. */
export const LIMITS: readonly LimitName[] = (Object.keys(METERS) as MeterName[]).filter(
  (name): name is LimitName => METERS[name].limit !== undefined,
)

/** Amounts used, or limits (0: no limit), by meter: counts, tokens of prompts and answers, US dollars, seconds. */
export type Amounts = Readonly<Record<LimitName, number>>

/** Returns an amount for each meter with a limit. */
export function amountsBy(amount: (name: LimitName) => number): Amounts {
  const amounts = {} as Record<LimitName, number>
  for (const name of LIMITS) amounts[name] = amount(name)
  return amounts
}

/** Returns what a run or a session has used; 0 for a sum that the version which stored it did not know. */
export function amountsOf(sums: Sums): Amounts {
  return amountsBy((name) => METERS[name].limit.used(sums) || 0)
}

/** No limit on any meter. */
export const NO_LIMITS: Amounts = amountsBy(() => 0)

/** `used` of `max`, in the meter's unit; iterations include the current one. */
export interface Meter<Name extends MeterName = MeterName> {
  readonly name: Name
  readonly used: number
  readonly max: number
}
