/** Short pieces of a measurement, so that those in which the machine stood still can be told from the others. */
import { median } from '../statistics.mjs'

/** A window is long enough for the clock and for what is under way at its ends, and short beside a stall. */
const WINDOW_MS = 8
const WINDOW_COUNT = 4

/** A window that cost so many times the usual was not the proxy's doing. */
const STALLED = 1.75

/** Counts what is done and cuts the time into windows; `read` is a CpuMeter's. */
export class Windows {
  #meter
  #count = 0
  #time = performance.now()
  #cpu
  #done = []

  constructor(meter) {
    this.#meter = meter
    this.#cpu = meter.read()
  }

  get length() {
    return this.#done.length
  }

  /** One more request answered, or event arrived. */
  count() {
    this.#count++
    const now = performance.now()
    if (this.#count < WINDOW_COUNT || now - this.#time < WINDOW_MS) return
    const cpu = this.#meter.read()
    this.#done.push({ count: this.#count, cpu: cpu - this.#cpu, time: now - this.#time })
    this.#count = 0
    this.#time = now
    this.#cpu = cpu
  }

  /**
   * Per thing counted: `cpu` in µs; `rate` in things a second; `busy`: share of a core; `stalled`: share of windows left
   * out of `cpu`. The first window, in which everything begins, is not in it.
   */
  summary() {
    const windows = this.#done.slice(1)
    const usual = median(windows.map(({ cpu, count }) => cpu / count))
    const kept = windows.filter(({ cpu, count }) => cpu / count <= STALLED * usual)
    const sum = (field) => kept.reduce((total, window) => total + window[field], 0)
    return {
      cpu: sum('cpu') / sum('count'),
      rate: median(windows.map(({ count, time }) => count / (time / 1000))),
      busy: median(windows.map(({ cpu, time }) => cpu / 1000 / time)),
      stalled: 1 - kept.length / windows.length,
    }
  }
}
