/** A clock that does not jump. */
import { uptime } from 'node:os'

/** Milliseconds between two checks whether the machine slept; a shorter sleep does not count. */
const SLEEP_CHECK = 2_000

/**
 * Returns a clock, in milliseconds since the epoch: the system's clock at the start and the time since then, so that
 * durations stay right where that clock is set while Governor runs. The time in which the machine sleeps counts: the
 * process measures none of it, but the machine's uptime goes on.
 */
export function createSteadyClock(): () => number {
  const uptimeAhead = () => uptime() * 1_000 - performance.now()
  const aheadAtStart = uptimeAhead()
  let slept = 0
  let checkedAt = performance.now()
  return () => {
    const now = performance.now()
    if (now - checkedAt >= SLEEP_CHECK) {
      checkedAt = now
      const ahead = uptimeAhead() - aheadAtStart
      if (ahead - slept >= SLEEP_CHECK) slept = ahead
    }
    return Math.floor(performance.timeOrigin + now + slept)
  }
}
