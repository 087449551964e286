/**
 * Work of many requests that is done together, at the end of a turn of the event loop: the same code runs for one after
 * the other, while the processor has it in its caches. With eight agents at once that saves a fifth of the CPU time at
 * 1 KB.
 */
import { nextTick } from 'node:process'

/** Requests that wait for the end of a turn, before the next sockets are read. */
export interface Tick {
  /** Returns a promise that resolves once all sockets that are ready have been read; the same one for all of a turn. */
  next(): Promise<void>
  /** Calls back in that turn, in order: before those who wait for `next`, or after them if one of them asks for it. */
  later(call: () => void): void
}

export function createTick(): Tick {
  let calls: (() => void)[] = []
  let next: Promise<void> | undefined
  let resume = () => {}
  let isScheduled = false
  /** Those who waited run now; what they want to be called later follows in this turn. */
  let isResuming = false
  const callAll = () => {
    const due = calls
    calls = []
    let done = 0
    try {
      for (const call of due) {
        done++
        call()
      }
    } finally {
      // After a fault in one of them the others still run.
      for (const call of due.slice(done)) later(call)
    }
  }
  const finish = () => {
    isResuming = false
    callAll()
  }
  const end = () => {
    const wake = resume
    isScheduled = false
    isResuming = true
    next = undefined
    resume = () => {}
    try {
      callAll()
    } finally {
      wake()
      // Comes after all that they do without waiting for something else.
      queueMicrotask(() => nextTick(finish))
    }
  }
  const schedule = () => {
    if (!isScheduled) setImmediate(end)
    isScheduled = true
  }
  const later = (call: () => void) => {
    calls.push(call)
    if (!isResuming) schedule()
  }
  return {
    next() {
      schedule()
      next ??= new Promise((resolve) => {
        resume = resolve
      })
      return next
    },
    later,
  }
}
