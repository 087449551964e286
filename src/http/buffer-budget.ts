/**
 * Bounds what all bodies together take that are in hand: being read, being unpacked, or held back until it is known what becomes of
 * them. Where there is no room one waits for some, in order, and not for long.
 */
/** Milliseconds that are waited for room, for one body in all. */
export const MAX_WAIT = 2_000

/** What one body takes. */
export interface Lease {
  /** Takes so many bytes more; false where there is no room for them in time, or the lease was released. */
  grow(bytes: number): boolean | Promise<boolean>
  /** Gives all of it back, and ends any wait. May be called again. */
  release(): void
}

export interface BufferBudget {
  /** Bytes in hand. */
  readonly held: number
  lease(): Lease
}

/** Times in milliseconds. */
export interface Clock {
  now(): number
  /** Calls back once, later; returns the way to call that off. */
  after(delay: number, call: () => void): () => void
}

export const SYSTEM_CLOCK: Clock = {
  now: () => performance.now(),
  after(delay, call) {
    const timer = setTimeout(call, delay)
    return () => clearTimeout(timer)
  },
}

interface Waiting {
  readonly lease: BudgetLease
  readonly bytes: number
  readonly settle: (hasRoom: boolean) => void
}

class Budget implements BufferBudget {
  readonly max: number
  readonly clock: Clock
  held = 0
  /** Those that hold something already come first, as they give it back the sooner. */
  #waiting: Waiting[] = []

  constructor(max: number, clock: Clock) {
    this.max = max
    this.clock = clock
  }

  lease(): Lease {
    return new BudgetLease(this)
  }

  /** Is there room for so many bytes, and nobody waits who comes first? */
  hasRoom(bytes: number, holdsSome: boolean): boolean {
    const first = this.#waiting[0]
    const isFirst = !first || (holdsSome && first.lease.held === 0)
    return isFirst && this.held + bytes <= this.max
  }

  wait(waiting: Waiting): void {
    const next = this.#waiting.findIndex(({ lease }) => lease.held === 0)
    const isLast = waiting.lease.held === 0 || next === -1
    this.#waiting.splice(isLast ? this.#waiting.length : next, 0, waiting)
  }

  leave(lease: BudgetLease): void {
    const left = this.#waiting.filter((waiting) => waiting.lease === lease)
    this.#waiting = this.#waiting.filter((waiting) => waiting.lease !== lease)
    for (const { settle } of left) settle(false)
    this.serve()
  }

  /** Gives room to those who wait, for as long as there is enough for the first of them. */
  serve(): void {
    for (let first = this.#waiting[0]; first; first = this.#waiting[0]) {
      if (this.held + first.bytes > this.max) return
      this.#waiting.shift()
      first.settle(true)
    }
  }
}

class BudgetLease implements Lease {
  readonly #budget: Budget
  held = 0
  #waited = 0
  #isReleased = false

  constructor(budget: Budget) {
    this.#budget = budget
  }

  grow(bytes: number): boolean | Promise<boolean> {
    const budget = this.#budget
    if (this.#isReleased || this.held + bytes > budget.max) return false
    if (budget.hasRoom(bytes, this.held > 0)) {
      this.#take(bytes)
      return true
    }
    return this.#wait(bytes)
  }

  #take(bytes: number): void {
    this.held += bytes
    this.#budget.held += bytes
  }

  #wait(bytes: number): Promise<boolean> {
    const { clock } = this.#budget
    const since = clock.now()
    return new Promise((resolve) => {
      const callOff = clock.after(Math.max(0, MAX_WAIT - this.#waited), () => this.#budget.leave(this))
      this.#budget.wait({
        lease: this,
        bytes,
        settle: (hasRoom) => {
          callOff()
          this.#waited += clock.now() - since
          if (hasRoom) this.#take(bytes)
          resolve(hasRoom)
        },
      })
    })
  }

  release(): void {
    if (this.#isReleased) return
    this.#isReleased = true
    this.#budget.held -= this.held
    this.held = 0
    this.#budget.leave(this)
  }
}

/** `max`: bytes. */
export function createBufferBudget(max: number, clock: Clock = SYSTEM_CLOCK): BufferBudget {
  return new Budget(max, clock)
}

/** A lease for what is held for a response: it is released when that is over, at the latest. */
export function leaseFor(
  budget: BufferBudget,
  response: { once(event: 'close', call: () => void): unknown },
): Lease {
  const lease = budget.lease()
  response.once('close', () => lease.release())
  return lease
}
