/** How much of its budget a run has used, and how hard the model is told so. */

/** What a limit counts. Each meter has its own words in notices and its own reason when it stops a run. */
export type MeterName = 'iterations' | 'tool_calls'

/** `used` of `max`, in the meter's unit. For iterations the current one is included. */
export interface Meter {
  readonly name: MeterName
  readonly used: number
  readonly max: number
}

export type Tier = 'none' | 'caution' | 'warning'

export interface Thresholds {
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

const TIERS: readonly Tier[] = ['none', 'caution', 'warning']

/** Is tier `name` reached? Compares shares, not products: 42/60 and 0.7 are the same double. */
function reached(name: 'caution' | 'warning', meter: Meter, thresholds: Thresholds): boolean {
  const left = meter.max - meter.used
  const floor = FLOORS[name]
  if (thresholds.adaptive && left <= floor.least) return true
  if (thresholds.adaptive && left > floor.most) return false
  return meter.used / meter.max >= thresholds[name]
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

/**
 * The first meter that is used up, if any. Iterations 1 to max are normal and number max + 1 is one too many;
 * of the others, a model that has used them up can't be let make another call.
 */
export function exhausted(meters: readonly Meter[]): Meter | undefined {
  return meters.find((meter) =>
    meter.name === 'iterations' ? meter.used > meter.max : meter.used >= meter.max,
  )
}
