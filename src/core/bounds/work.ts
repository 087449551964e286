/** Counts the work of reading one request, as all others wait for the event loop meanwhile. A step is about 50 ns. */

/** Thrown if a text holds more than Governor reads in one go. Callers treat it as text that is not JSON. */
export class TooMuchToRead extends SyntaxError {
  override readonly name: string = 'TooMuchToRead'
}

/** Steps to build a value of a JSON text. */
export const STEPS_PER_VALUE = 4
/** Steps to hash a tool call, and once more to guess from its words what it does. */
export const STEPS_PER_CALL = 60
/** Steps to search a text with regular expressions, for each of its characters. */
export const STEPS_PER_SEARCHED = 1 / 4

/** Steps in one go: 10 ms, and 6 ms for each megabyte of the body, which the index of small messages takes. */
const MAX_STEPS = 200_000
const MAX_STEPS_PER_BYTE = 0.12

/** Steps after which a reader that can pause does so. */
const STEPS_UNTIL_PAUSE = MAX_STEPS / 2

/** The most values of one body, which are kept until the request is decided on and take a hundred bytes each. */
const MAX_BUILT = 524_288

/** The work of reading one request, in steps. */
export class Work {
  #max: number
  #sincePause = 0
  #steps = 0
  #built = 0

  /** `bytes`: the length of the body. */
  constructor(bytes: number) {
    this.#max = MAX_STEPS + bytes * MAX_STEPS_PER_BYTE
  }

  get steps(): number {
    return this.#steps
  }

  /** True if other requests should have their turn before more is read. */
  get isDue(): boolean {
    return this.#sincePause >= STEPS_UNTIL_PAUSE
  }

  /** Counts steps. Throws `TooMuchToRead` if they are more than may be done in one go. */
  spend(steps: number): void {
    this.#sincePause += steps
    this.#steps += steps
    if (this.#sincePause > this.#max) throw new TooMuchToRead()
  }

  /** Counts the building of so many values; false, and none counted, if they are too many. Throws `TooMuchToRead`. */
  build(values: number): boolean {
    if (this.#built + values > MAX_BUILT) return false
    this.#built += values
    this.spend(values * STEPS_PER_VALUE)
    return true
  }

  /** Counts the hashing of so many bytes. Throws `TooMuchToRead`. */
  hash(bytes: number): void {
    this.spend(bytes / 64)
  }

  /** Counts the decoding of a text of so many bytes. Throws `TooMuchToRead`. */
  decode(bytes: number): void {
    this.spend(bytes / 16)
  }

  /** Nobody else waits: nothing is too much in one go from now on. */
  takeAnyTime(): void {
    this.#max = Number.POSITIVE_INFINITY
  }

  /** Notes that other requests had their turn. */
  paused(): void {
    this.#sincePause = 0
  }
}
