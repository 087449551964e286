/**
 * Bounds the memory of all bodies that are buffered at a time: while they are read, decompressed, or held back for a
 * decision. A body for which there is no room waits in a queue, for a short time.
 */
/** Milliseconds that one body may wait for room, in all. */
export const MAX_WAIT = 2_000

/** The bytes that one body takes from the budget. */
export interface Lease {
  /** Takes so many more bytes; returns false if there is no room for them in time or the lease was released. */
  grow(bytes: number): boolean | Promise<boolean>
  /** Gives all bytes back and ends a wait. May be called again. */
  release(): void
}

/** A budget that all bodies share. */
export interface BufferBudget {
  /** Bytes that all leases hold. */
  readonly held: number
  lease(): Lease
}

/** Times in milliseconds. */
export interface Clock {
  now(): number
  /** Calls back once after a delay; returns a function that cancels the call. */
  after(delay: number, call: () => void): () => void
}

const SYSTEM_CLOCK: Clock = {
  now: () => performance.now(),
  after(delay, call) {
    const timer = setTimeout(call, delay)
    return () => clearTimeout(timer)
  },
}

interface LeaseState {
  held: number
  /** Milliseconds that it has waited so far. */
  waited: number
  isReleased: boolean
}

interface Waiting {
  readonly lease: LeaseState
  readonly bytes: number
  readonly settle: (hasRoom: boolean) => void
}

interface BudgetState {
  readonly max: number
  readonly clock: Clock
  held: number
  /** Leases that hold bytes already come first, as they are released the sooner. */
  waiting: Waiting[]
}

/** Returns true if there is room for so many bytes and no other lease comes first. */
function hasRoom({ waiting, held, max }: BudgetState, lease: LeaseState, bytes: number): boolean {
  const [first] = waiting
  const isFirst = !first || (lease.held > 0 && first.lease.held === 0)
  return isFirst && held + bytes <= max
}

function take(budget: BudgetState, lease: LeaseState, bytes: number): void {
  lease.held += bytes
  budget.held += bytes
}

function enqueue({ waiting }: BudgetState, entry: Waiting): void {
  const firstEmpty = waiting.findIndex(({ lease }) => lease.held === 0)
  const isLast = entry.lease.held === 0 || firstEmpty === -1
  waiting.splice(isLast ? waiting.length : firstEmpty, 0, entry)
}

/** Gives room to waiting leases for as long as there is enough for the first of them. */
function serve(budget: BudgetState): void {
  for (let [first] = budget.waiting; first; [first] = budget.waiting) {
    if (budget.held + first.bytes > budget.max) return
    budget.waiting.shift()
    first.settle(true)
  }
}

/** Ends the wait of a lease, without room. */
function endWait(budget: BudgetState, lease: LeaseState): void {
  const ended = budget.waiting.filter((entry) => entry.lease === lease)
  budget.waiting = budget.waiting.filter((entry) => entry.lease !== lease)
  for (const { settle } of ended) settle(false)
  serve(budget)
}

function waitForRoom(budget: BudgetState, lease: LeaseState, bytes: number): Promise<boolean> {
  const { clock } = budget
  const since = clock.now()
  return new Promise((resolve) => {
    const cancel = clock.after(Math.max(0, MAX_WAIT - lease.waited), () => endWait(budget, lease))
    const settle = (isGranted: boolean) => {
      cancel()
      lease.waited += clock.now() - since
      if (isGranted) take(budget, lease, bytes)
      resolve(isGranted)
    }
    enqueue(budget, { lease, bytes, settle })
  })
}

function openLease(budget: BudgetState): Lease {
  const lease: LeaseState = { held: 0, waited: 0, isReleased: false }
  return {
    grow(bytes) {
      if (lease.isReleased || lease.held + bytes > budget.max) return false
      if (!hasRoom(budget, lease, bytes)) return waitForRoom(budget, lease, bytes)
      take(budget, lease, bytes)
      return true
    },
    release() {
      if (lease.isReleased) return
      lease.isReleased = true
      budget.held -= lease.held
      lease.held = 0
      endWait(budget, lease)
    },
  }
}

/** Creates a budget of `max` bytes. */
export function createBufferBudget(max: number, clock: Clock = SYSTEM_CLOCK): BufferBudget {
  const budget: BudgetState = { max, clock, held: 0, waiting: [] }
  return {
    get held() {
      return budget.held
    },
    lease: () => openLease(budget),
  }
}

/** Returns a lease that is released when the response closes, at the latest. */
export function leaseFor(
  budget: BufferBudget,
  response: { once(event: 'close', call: () => void): unknown },
): Lease {
  const lease = budget.lease()
  response.once('close', () => lease.release())
  return lease
}
