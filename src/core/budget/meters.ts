/**
 * What Governor measures of a run, one row each. A new meter is a row here, its setting in `config/budget.ts`, and how
 * much of it a run and a session used in `session.ts`; the compiler asks for both.
 */
import { dollars, type FormattedAmounts, seconds, tokens, whole } from './amount.ts'

interface MeterRow {
  /** What a notice calls it. */
  readonly word: string
  /** What is counted; empty where the numbers say it, as `$5.00` does. */
  readonly unit: string
  readonly format: (used: number, max: number) => FormattedAmounts
  /** The model can count on single steps of it; of tokens, money and time one more is nothing. */
  readonly isCounted: boolean
  /** `used` includes what the current request adds, so that `max` itself is still allowed. */
  readonly includesCurrent: boolean
  /** The limit that users set; `undefined` for a limit of the model's own, which never ends a run. */
  readonly limit:
    | {
        /** Key of the configuration, in `budget.run` and `budget.session`. */
        readonly setting: string
        /** Why a run ends that reaches the limit, and in which state. */
        readonly reason: string
        readonly state: 'tool_limit_reached' | 'budget_exceeded'
        /** What clients get as the amount used. */
        readonly rounded: (used: number) => number
      }
    | undefined
  /** Where its tiers start, as shares, and the names of their texts; `undefined` where the budget's own hold. */
  readonly tiers:
    | Readonly<Record<'caution' | 'warning', { readonly share: number; readonly text: string }>>
    | undefined
}

/** Millionths of a dollar are the smallest prices that exist. */
const toMillionths = (used: number) => Math.round(used * 1_000_000) / 1_000_000

/** Limits are looked at in this order. */
export const METERS = {
  iterations: {
    word: 'Iteration',
    unit: 'iterations',
    format: whole,
    isCounted: true,
    includesCurrent: true,
    limit: {
      setting: 'max_iterations',
      reason: 'max_iterations',
      state: 'tool_limit_reached',
      rounded: toMillionths,
    },
    tiers: undefined,
  },
  tool_calls: {
    word: 'Tool call',
    unit: 'tool calls',
    format: whole,
    isCounted: true,
    includesCurrent: false,
    limit: {
      setting: 'max_tool_calls',
      reason: 'max_tool_calls',
      state: 'tool_limit_reached',
      rounded: toMillionths,
    },
    tiers: undefined,
  },
  tokens: {
    word: 'Tokens',
    unit: 'tokens',
    format: tokens,
    isCounted: false,
    includesCurrent: false,
    limit: { setting: 'max_tokens', reason: 'max_tokens', state: 'budget_exceeded', rounded: toMillionths },
    tiers: undefined,
  },
  cost: {
    word: 'Cost',
    unit: '',
    format: dollars,
    isCounted: false,
    includesCurrent: false,
    limit: { setting: 'max_cost_usd', reason: 'max_cost', state: 'budget_exceeded', rounded: toMillionths },
    tiers: undefined,
  },
  seconds: {
    word: 'Time',
    unit: '',
    format: seconds,
    isCounted: false,
    includesCurrent: false,
    limit: { setting: 'max_seconds', reason: 'max_seconds', state: 'budget_exceeded', rounded: Math.floor },
    tiers: undefined,
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

export type MeterName = keyof typeof METERS

/** Meters that users can set a limit on. */
export type LimitName = {
  [Name in MeterName]: (typeof METERS)[Name]['limit'] extends undefined ? never : Name
}[MeterName]

type Limit = (typeof METERS)[LimitName]['limit']

/** Keys of the configuration that set a limit. */
export type LimitSetting = Limit['setting']
export type LimitReason = Limit['reason']
export type LimitState = Limit['state']

function isLimit(name: string): name is LimitName {
  return METERS[name as MeterName].limit !== undefined
}

/** What a limit can be set on, in the order in which limits are looked at. */
export const LIMITS: readonly LimitName[] = Object.keys(METERS).filter(isLimit)

/** How much of each there was, or may be at most (0: no limit): tokens of prompts and answers, US dollars, seconds. */
export type Amounts = Readonly<Record<LimitName, number>>

/** An amount for each meter that can have a limit. */
export function amountsBy(amount: (name: LimitName) => number): Amounts {
  return Object.fromEntries(LIMITS.map((name) => [name, amount(name)])) as Amounts
}

export const NO_LIMITS: Amounts = amountsBy(() => 0)

/** `used` of `max`, in the meter's unit. For iterations the current one is included. */
export interface Meter<Name extends MeterName = MeterName> {
  readonly name: Name
  readonly used: number
  readonly max: number
}
