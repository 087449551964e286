/** The few statistics that the measures need. */

/** The value below which `share` (0 to 1) of the values lie; NaN of none. */
export function percentile(values, share) {
  const sorted = Float64Array.from(values).sort()
  return sorted.length === 0
    ? Number.NaN
    : sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
}

/** The middle value, or the mean of the two middle ones; NaN of none. Values that are not numbers do not count. */
export function median(values) {
  const sorted = Float64Array.from(values.filter((value) => !Number.isNaN(value))).sort()
  const middle = sorted.length >> 1
  if (sorted.length === 0) return Number.NaN
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

/** The median over rounds of `combine(a, b)`: both values of a round were measured within seconds of each other. */
export function medianOfRounds(a, b, combine) {
  return median(a.slice(0, b.length).map((value, round) => combine(value, b[round])))
}

/** The median over rounds of a ÷ b. */
export function ratio(a, b) {
  return medianOfRounds(a, b, (one, other) => one / other)
}

/** The median over rounds of a − b. */
export function difference(a, b) {
  return medianOfRounds(a, b, (one, other) => one - other)
}
