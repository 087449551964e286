/**
 * Virtual machines stand still now and then, for longer than anything that is measured here takes. A process that has
 * nothing to do but to look at the clock notices. What fell into such a time is left out.
 */

/** Milliseconds of the clock that all processes of the machine share. */
export function sharedTime() {
  return Number(process.hrtime.bigint()) / 1e6
}

/**
 * The lengths in ms of those spans (pairs of shared times) in which nothing stood still, nor in the `settling`
 * milliseconds before, while what had piled up was still being worked off.
 */
export function lengthsOutside(stalls, spans, settling = 0) {
  const isOutside = ([from, to]) => stalls.every(([begin, end]) => end < from - settling || begin > to)
  return spans.filter(isOutside).map(([from, to]) => to - from)
}

/** The length in ms of a span without the stalls in it. */
export function lengthWithout(stalls, [from, to]) {
  let at = from
  let length = 0
  for (const [begin, end] of [...stalls.toSorted(([a], [b]) => a - b), [to, to]]) {
    length += Math.max(0, Math.min(begin, to) - at)
    at = Math.max(at, end)
  }
  return length
}
