/** How much of its budget a run has used, and how hard the model is told so. */

/** What a limit can be set on, in the order in which they are looked at. */
export const LIMITS = ['iterations', 'tool_calls', 'tokens', 'cost', 'seconds'] as const

export type LimitName = (typeof LIMITS)[number]

/** What is counted. Each meter has its own words in notices, and each limit its own reason when it stops a run. */
export type MeterName = LimitName | 'context'

/** How much of each there was, or may be at most (0: no limit): tokens of prompts and answers, US dollars, seconds. */
export type Amounts = Readonly<Record<LimitName, number>>

export const NO_LIMITS: Amounts = { iterations: 0, tool_calls: 0, tokens: 0, cost: 0, seconds: 0 }

/** `used` of `max`, in the meter's unit. For iterations the current one is included. */
export interface Meter<Name extends MeterName = MeterName> {
  readonly name: Name
  readonly used: number
  readonly max: number
}

export type Tier = 'none' | 'caution' | 'warning'

/**
 * `tiers`: by the share used. `countdown`: only when three or fewer are left. `tracker`: the budget stated once, then
 * neutral statements of what is used.
 */
export type Style = 'tiers' | 'countdown' | 'tracker'

export interface Thresholds {
  readonly style: Style
  /** Share of the budget used from which the tier holds, 0 to 1. */
  readonly caution: number
  readonly warning: number
  /** Small budgets start earlier and large ones later: see `FLOORS`. */
  readonly adaptive: boolean
}

export interface Pressure {
  readonly tier: Tier
  /** The meter that is nearest to its limit: the one a notice names. */
  readonly meter: Meter
}

/**
 * How many units are left when a tier starts, with `adaptive`. Fixed shares tell an agent with 5 iterations
 * to wrap up when one is left, which is too late to act on, and one with 1,000 when 300 are left, which is
 * nagging.
 */
const FLOORS = {
  caution: { least: 3, most: 30 },
  warning: { least: 2, most: 10 },
} as const

/** How many units are left when a countdown speaks, and when it speaks for the last time. */
const COUNTDOWN = { caution: 3, warning: 1 } as const

/** Below this many iterations or tool calls left, a tracker states them before each call. */
const TRACKER_NEAR_END = 20

/** Shares of the context window: what is told here is not the user's budget but the model's own limit. */
const CONTEXT = { caution: 0.8, warning: 0.92 } as const

const TIERS: readonly Tier[] = ['none', 'caution', 'warning']

/** Steps can be counted on; of tokens, money and time a single one more is nothing. */
function isCounted(name: MeterName): boolean {
  return name === 'iterations' || name === 'tool_calls'
}

/** Is tier `name` reached? Compares shares, not products: 42/60 and 0.7 are the same double. */
function reached(name: 'caution' | 'warning', meter: Meter, thresholds: Thresholds): boolean {
  const { used, max } = meter
  if (meter.name === 'context') return used / max >= CONTEXT[name]
  const left = max - used
  if (isCounted(meter.name)) {
    if (thresholds.style === 'countdown') return left <= COUNTDOWN[name]
    const floor = FLOORS[name]
    if (thresholds.adaptive && left <= floor.least) return true
    if (thresholds.adaptive && left > floor.most) return false
  }
  return used / max >= thresholds[name]
}

/** Does a tracker state this meter at this iteration? `every`: iterations between two statements, from 1. */
export function isStatementDue({ name, used, max }: Meter, iteration: number, every: number): boolean {
  return (isCounted(name) && max - used < TRACKER_NEAR_END) || iteration % every === 0
}

/** Is this surely the last call before the run is stopped? Of tokens, cost and time it is not known beforehand. */
export function isLastCall({ name, used, max }: Meter): boolean {
  return name === 'iterations' ? used >= max : name === 'tool_calls' && max - used <= 1
}

/** The tier of one meter. A meter that nothing was used of yet presses nobody. */
export function tierOf(meter: Meter, thresholds: Thresholds): Tier {
  if (meter.max <= 0 || meter.used <= 0) return 'none'
  if (reached('warning', meter, thresholds)) return 'warning'
  if (reached('caution', meter, thresholds)) return 'caution'
  return 'none'
}

/** The highest tier of several meters and the meter that has it; between equals, the one with the larger share used. */
export function pressureOf(meters: readonly Meter[], thresholds: Thresholds): Pressure | undefined {
  let highest: Pressure | undefined
  for (const meter of meters) {
    const tier = tierOf(meter, thresholds)
    if (!highest || ranksAbove({ tier, meter }, highest)) highest = { tier, meter }
  }
  return highest
}

function ranksAbove(a: Pressure, b: Pressure): boolean {
  const byTier = TIERS.indexOf(a.tier) - TIERS.indexOf(b.tier)
  return byTier > 0 || (byTier === 0 && a.meter.used / a.meter.max > b.meter.used / b.meter.max)
}

/** Is it used up? The context window is no budget: what does not fit is the provider's to refuse. */
export function isExhausted(meter: Meter): meter is Meter<LimitName> {
  const { name, used, max } = meter
  if (max <= 0 || name === 'context') return false
  return name === 'iterations' ? used > max : used >= max
}

/**
 * The first meter that is used up, if any. Iterations 1 to max are normal and number max + 1 is one too many;
 * of the others, a model that has used them up can't be let make another call.
 */
export function exhausted(meters: readonly Meter[]): Meter<LimitName> | undefined {
  return meters.find(isExhausted)
}

/** One of the amounts. Each is loaded by its own name, which costs a fraction of looking one up by a name in hand. */
function amountOf(amounts: Amounts, name: LimitName): number {
  switch (name) {
    case 'iterations':
      return amounts.iterations
    case 'tool_calls':
      return amounts.tool_calls
    case 'tokens':
      return amounts.tokens
    case 'cost':
      return amounts.cost
    case 'seconds':
      return amounts.seconds
  }
}

/** Adds the limits that are set to `meters`, and how much of each is used. */
export function addMeters(meters: Meter[], used: Amounts, limits: Amounts): void {
  for (const name of LIMITS) {
    const max = amountOf(limits, name)
    if (max > 0) meters.push({ name, used: amountOf(used, name), max })
  }
}
