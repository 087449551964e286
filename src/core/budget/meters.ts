/**
 * The meters of a run, one row each. A new meter is a row here, its setting in `config/budget.ts`, and the amount that a
 * run and a session used in `session.ts`; the compiler asks for both.
 */
import { dollars, type FormattedAmounts, seconds, tokens, whole } from './amount.ts'

interface MeterRow {
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
        /** The terminal reason of a run that reaches the limit. */
        readonly reason: string
        /** The terminal state of such a run. */
        readonly state: 'tool_limit_reached' | 'budget_exceeded'
        /** The limit in the sentence that tells the model of it, as `{limit}`. */
        readonly noun: string
        /** The name of the text that asks the model of such a run for its final answer. */
        readonly stopText: 'stop' | 'stopAtLimit'
        /** Rounds the amount used for clients. */
        readonly rounded: (used: number) => number
      }
    | undefined
  /** Shares at which its tiers start, and the names of their texts; `undefined`: those of the budget hold. */
  readonly tiers:
    | Readonly<Record<'caution' | 'warning', { readonly share: number; readonly text: string }>>
    | undefined
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
      reason: 'max_iterations',
      state: 'tool_limit_reached',
      noun: 'iteration',
      stopText: 'stop',
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
      noun: 'tool call',
      stopText: 'stop',
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
    limit: {
      setting: 'max_tokens',
      reason: 'max_tokens',
      state: 'budget_exceeded',
      noun: 'token',
      stopText: 'stopAtLimit',
      rounded: toMillionths,
    },
    tiers: undefined,
  },
  cost: {
    word: 'Cost',
    unit: '',
    format: dollars,
    isCounted: false,
    includesCurrent: false,
    limit: {
      setting: 'max_cost_usd',
      reason: 'max_cost',
      state: 'budget_exceeded',
      noun: 'cost',
      stopText: 'stopAtLimit',
      rounded: toMillionths,
    },
    tiers: undefined,
  },
  seconds: {
    word: 'Time',
    unit: '',
    format: seconds,
    isCounted: false,
    includesCurrent: false,
    limit: {
      setting: 'max_seconds',
      reason: 'max_seconds',
      state: 'budget_exceeded',
      noun: 'time',
      stopText: 'stopAtLimit',
      rounded: Math.floor,
    },
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

function isLimit(name: string): name is LimitName {
  return METERS[name as MeterName].limit !== undefined
}

/** The meters with a limit, in the order in which limits are checked. */
export const LIMITS: readonly LimitName[] = Object.keys(METERS).filter(isLimit)

/** Amounts used, or limits (0: no limit), by meter: counts, tokens of prompts and answers, US dollars, seconds. */
export type Amounts = Readonly<Record<LimitName, number>>

/** Returns an amount for each meter with a limit. */
export function amountsBy(amount: (name: LimitName) => number): Amounts {
  return Object.fromEntries(LIMITS.map((name) => [name, amount(name)])) as Amounts
}

/** No limit on any meter. */
export const NO_LIMITS: Amounts = amountsBy(() => 0)

/** `used` of `max`, in the meter's unit; iterations include the current one. */
export interface Meter<Name extends MeterName = MeterName> {
  readonly name: Name
  readonly used: number
  readonly max: number
}
