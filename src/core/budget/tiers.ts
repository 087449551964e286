/** How much of its budget a run has used, and how hard the model is told so. */

import { type Amounts, LIMITS, type LimitName, METERS, type Meter } from './meters.ts'

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

const TIERS: readonly Tier[] = ['none', 'caution', 'warning']

/** Is tier `name` reached? Compares shares, not products: 42/60 and 0.7 are the same double. */
function reached(name: 'caution' | 'warning', meter: Meter, thresholds: Thresholds): boolean {
  const { used, max } = meter
  const { tiers, isCounted } = METERS[meter.name]
  if (tiers) return used / max >= tiers[name].share
  const left = max - used
  if (isCounted) {
    if (thresholds.style === 'countdown') return left <= COUNTDOWN[name]
    const floor = FLOORS[name]
    if (thresholds.adaptive && left <= floor.least) return true
    if (thresholds.adaptive && left > floor.most) return false
  }
  return used / max >= thresholds[name]
}

/** Does a tracker state this meter at this iteration? `every`: iterations between two statements, from 1. */
export function isStatementDue({ name, used, max }: Meter, iteration: number, every: number): boolean {
  return (METERS[name].isCounted && max - used < TRACKER_NEAR_END) || iteration % every === 0
}

/** Is this surely the last call before the run is stopped? Of tokens, cost and time it is not known beforehand. */
export function isLastCall({ name, used, max }: Meter): boolean {
  const { isCounted, includesCurrent } = METERS[name]
  return isCounted && max - used <= (includesCurrent ? 0 : 1)
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
  const { limit, includesCurrent } = METERS[name]
  if (max <= 0 || !limit) return false
  return includesCurrent ? used > max : used >= max
}

/**
 * The first meter that is used up, if any. Iterations 1 to max are normal and number max + 1 is one too many;
 * of the others, a model that has used them up can't be let make another call.
 */
export function exhausted(meters: readonly Meter[]): Meter<LimitName> | undefined {
  return meters.find(isExhausted)
}

/** Adds the limits that are set to `meters`, and how much of each is used. */
export function addMeters(meters: Meter[], used: Amounts, limits: Amounts): void {
  for (const name of LIMITS) {
    const max = limits[name]
    if (max > 0) meters.push({ name, used: used[name], max })
  }
}
