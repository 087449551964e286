/** Bounds the memory of all bodies that are held at a time, until their responses are over. */

/** The bytes that one body takes from the budget. */
export interface Lease {
  /**
   * Takes so many more bytes; returns false, and takes none, if there is no room for them or the lease was
   * released. `part`: how much of the budget may be taken afterwards, from 0 to 1.
   */
  grow(bytes: number, part?: number): boolean
  /** Gives all bytes back. May be called again. */
  release(): void
}

/** A budget that all bodies share. */
export interface BufferBudget {
  /** Bytes that all leases hold. */
  readonly held: number
  lease(): Lease
}

/**
 * The part of the budget that bodies of requests may take as they come: a quarter is left for decoded bodies
 * and for the last answers of stopped runs.
 */
export const REQUESTS_PART = 0.75

/** Creates a budget of `max` bytes. */
export function createBufferBudget(max: number): BufferBudget {
  let held = 0
  return {
    get held() {
      return held
    },
    lease() {
      let own = 0
      let isReleased = false
      return {
        grow(bytes, part = 1) {
          if (isReleased || held + bytes > max * part) return false
          own += bytes
          held += bytes
          return true
        },
        release() {
          isReleased = true
          held -= own
          own = 0
        },
      }
    },
  }
}

/** What of a response a lease needs. */
interface Closing {
  readonly closed: boolean
  once(event: 'close', call: () => void): unknown
}

/** Returns a lease that is released when the response closes, at the latest. */
export function leaseFor(budget: BufferBudget, response: Closing): Lease {
  const lease = budget.lease()
  response.once('close', () => lease.release())
  if (response.closed) lease.release()
  return lease
}
