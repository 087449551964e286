/** Tiers: how urgent the notice is, by the share of the budget that is used. */

import { type Amounts, LIMITS, type LimitName, METERS, type Meter, type MeterRow } from './meters.ts'

/** The urgency of a notice: `none` sends no notice. */
export type Tier = 'none' | 'caution' | 'warning'

/**
 * When notices are sent. `tiers`: by the share used. `countdown`: only when three or fewer are left. `tracker`: the
 * budget once, then neutral statements of what is used.
 */
export type Style = 'tiers' | 'countdown' | 'tracker'

/** The settings that decide the tier of a meter. */
export interface Thresholds {
  readonly style: Style
  /** Shares of the budget, 0 to 1, at which the tiers start. */
  readonly caution: number
  readonly warning: number
  /** Tiers of small budgets start earlier, and those of large ones later: see `FLOORS`. */
  readonly adaptive: boolean
}

/** The highest tier of a run's meters, and the meter that has it, which the notice names. */
export interface Pressure {
  readonly tier: Tier
  readonly meter: Meter
}

/**
 * How many units are left when a tier starts, with `adaptive`. With fixed shares, an agent with 5 iterations would hear
 * of it when one is left, which is too late, and one with 1,000 when 300 are left, which is nagging.
 */
const FLOORS = { caution: { least: 3, most: 30 }, warning: { least: 2, most: 10 } } as const

/** How many units are left when the tiers of a countdown start, and when a tracker begins to state each request. */
const COUNTDOWN = { caution: 3, warning: 1 } as const
const TRACKER_NEAR_END = 20

/** True if tier `name` is reached. It compares shares, not products: 42/60 and 0.7 are the same double. */
function reached(name: 'caution' | 'warning', meter: Meter, thresholds: Thresholds): boolean {
  const { used, max } = meter
  const { tiers, isCounted }: MeterRow = METERS[meter.name]
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

/** True if a tracker states this meter at this iteration (from 1). `every`: iterations between two statements. */
export function isStatementDue({ name, used, max }: Meter, iteration: number, every: number): boolean {
  return (METERS[name].isCounted && max - used < TRACKER_NEAR_END) || iteration % every === 0
}

/** True if this is certainly the last call before the run is stopped. Tokens, cost and time never tell it. */
export function isLastCall({ name, used, max }: Meter): boolean {
  const { isCounted, includesCurrent } = METERS[name]
  return isCounted && max - used <= (includesCurrent ? 0 : 1)
}

/** Returns the tier of one meter; `none` if nothing is used yet. */
export function tierOf(meter: Meter, thresholds: Thresholds): Tier {
  if (meter.max <= 0 || meter.used <= 0) return 'none'
  if (reached('warning', meter, thresholds)) return 'warning'
  return reached('caution', meter, thresholds) ? 'caution' : 'none'
}

/** Returns the meter with the highest tier, and the tier; among equals, the one with the largest share used. */
export function pressureOf(meters: readonly Meter[], thresholds: Thresholds): Pressure | undefined {
  const ranks = { none: 0, caution: 1, warning: 2 }
  let highest: Pressure | undefined
  for (const meter of meters) {
    const tier = tierOf(meter, thresholds)
    const above = highest ? ranks[tier] - ranks[highest.tier] : 1
    const isFuller = highest && meter.used / meter.max > highest.meter.used / highest.meter.max
    if (above > 0 || (above === 0 && isFuller)) highest = { tier, meter }
  }
  return highest
}

/**
 * True if a meter with a limit is used up: iteration max + 1 is one too many; of the others, a run that has used `max`
 * may make no further call. The context window is no budget: the provider refuses what does not fit.
 */
export function isExhausted(meter: Meter): meter is Meter<LimitName> {
  const { name, used, max } = meter
  const { limit, includesCurrent } = METERS[name]
  if (max <= 0 || !limit) return false
  return includesCurrent ? used > max : used >= max
}

/** Returns the limit on cost, in US dollars: that of the run, else that of the session, if there is one. */
export function costLimit(limits: {
  readonly enabled: boolean
  readonly run: Amounts
  readonly session: Amounts
}): number | undefined {
  return limits.enabled ? limits.run.cost || limits.session.cost || undefined : undefined
}

/** Returns a meter for each limit that is set, in the order in which limits are checked. */
export function metersOf(used: Amounts, limits: Amounts): Meter[] {
  const meters: Meter[] = []
  for (const name of LIMITS) if (limits[name] > 0) meters.push({ name, used: used[name], max: limits[name] })
  return meters
}
