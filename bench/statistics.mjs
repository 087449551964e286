/** The few statistics that the measures need. */

/** The value below which `share` (0 to 1) of the values lie; NaN of none. */
export function percentile(values, share) {
  const sorted = Float64Array.from(values).sort()
  return sorted.length === 0 ? Number.NaN : sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
}

/** The middle value, or the mean of the two middle ones; NaN of none. Values that are not numbers do not count. */
export function median(values) {
  const sorted = Float64Array.from(values.filter((value) => !Number.isNaN(value))).sort()
  const middle = sorted.length >> 1
  if (sorted.length === 0) return Number.NaN
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

/** a ÷ b for every round: both values of a round were measured within seconds of each other. */
export function ratios(a, b) {
  return a.slice(0, b.length).map((value, round) => value / b[round])
}

/** The value below which a fifth of the values lie: what a task costs where other work of the machine adds least to it. */
export function lowerFifth(values) {
  return percentile(values, 0.2)
}

/** The lower fifth of a ÷ the lower fifth of b, with the least and the greatest a ÷ b of one round. */
export function costRatio(a, b) {
  const perRound = ratios(a, b)
  const bounds = perRound.length > 1 ? ` (${Math.min(...perRound).toFixed(2)}–${Math.max(...perRound).toFixed(2)})` : ''
  return { value: lowerFifth(a) / lowerFifth(b), text: `${(lowerFifth(a) / lowerFifth(b)).toFixed(2)}${bounds}` }
}

/** a − b for every round. */
export function differences(a, b) {
  return a.slice(0, b.length).map((value, round) => value - b[round])
}

/** The median as a text, with the least and the greatest value where there are several. */
export function spread(values, digits = 0) {
  const text = (value) => value.toFixed(digits)
  const known = values.filter((value) => !Number.isNaN(value))
  if (known.length < 2) return text(median(known))
  return `${text(median(known))} (${text(Math.min(...known))}–${text(Math.max(...known))})`
}
