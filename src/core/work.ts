/**
 * Counts what reading one request takes, as it is done: everybody else waits for the event loop meanwhile. One step is about
 * 50 nanoseconds.
 */
/** More than is built, or read of one request. To its readers the same as a text that is no JSON. */
export class TooMuchToRead extends SyntaxError {
  override readonly name: string = 'TooMuchToRead'
}

/** Building a value of a JSON text. */
export const STEPS_PER_VALUE = 4
/** Telling what a tool call is, and what it may be made for. */
export const STEPS_PER_CALL = 400
/** Bytes of a text that are hashed in one step, those that are decoded as well, and those that are gone through with expressions. */
const BYTES_HASHED_PER_STEP = 64
const BYTES_DECODED_PER_STEP = 16
const BYTES_SEARCHED_PER_STEP = 4

/** What may be done in one go: 10 ms, and 1 ms for each megabyte of the body. */
const MOST = 200_000
const MOST_PER_BYTE = 0.02

/** Who can pause does so after this many steps. */
const DUE = MOST / 2

export class Work {
  readonly #most: number
  #sincePause = 0
  #steps = 0

  /** `bytes`: the length of the body. */
  constructor(bytes: number) {
    this.#most = MOST + bytes * MOST_PER_BYTE
  }

  /** All steps that were taken. */
  get steps(): number {
    return this.#steps
  }

  /** Others should have their turn before more is read. */
  get isDue(): boolean {
    return this.#sincePause >= DUE
  }

  /** @throws {TooMuchToRead} when that would be more than may be done in one go. */
  spend(steps: number): void {
    this.#sincePause += steps
    this.#steps += steps
    if (this.#sincePause > this.#most) throw new TooMuchToRead()
  }

  /** So many bytes are hashed. @throws {TooMuchToRead} */
  hash(bytes: number): void {
    this.spend(bytes / BYTES_HASHED_PER_STEP)
  }

  /** A text of so many bytes is decoded. @throws {TooMuchToRead} */
  decode(bytes: number): void {
    this.spend(bytes / BYTES_DECODED_PER_STEP)
  }

  /** A text of so many characters is gone through with expressions. @throws {TooMuchToRead} */
  search(characters: number): void {
    this.spend(characters / BYTES_SEARCHED_PER_STEP)
  }

  /** Others had their turn. */
  paused(): void {
    this.#sincePause = 0
  }
}
