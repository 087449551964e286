/**
 * Memory for bytes that outlive the request they came with.
 *
 * It is taken in slabs that are used again and again. A request's own buffer that is kept instead makes the collector
 * carry it into the old generation and walk the whole heap for every 64 MB of them; copied, it dies young.
 */

/** What memory is handed out in. Runs of bytes waste half a segment each; smaller ones take more calls to compare. */
export const SEGMENT_BYTES = 16_384
const SLAB_SEGMENTS = 64

/** Segments by number: those of the slabs there are, and those that were given back. */
export class Segments {
  readonly size: number
  readonly #slabs: Buffer[] = []
  readonly #free: number[] = []

  constructor(size = SEGMENT_BYTES) {
    this.size = size
  }

  /** Bytes of memory that a run of so many takes. */
  capacityFor(length: number): number {
    return Math.ceil(length / this.size) * this.size
  }

  take(): number {
    const free = this.#free.pop()
    if (free !== undefined) return free
    const first = this.#slabs.length * SLAB_SEGMENTS
    this.#slabs.push(Buffer.allocUnsafeSlow(SLAB_SEGMENTS * this.size))
    for (let segment = first + SLAB_SEGMENTS - 1; segment > first; segment--) this.#free.push(segment)
    return first
  }

  give(segments: readonly number[]): void {
    for (const segment of segments) this.#free.push(segment)
  }

  /** Are so many bytes of a segment, from `offset` on, those of `bytes` from `start` on? */
  equals(segment: number, offset: number, length: number, bytes: Buffer, start: number): boolean {
    const at = this.#offsetOf(segment) + offset
    return this.#slabOf(segment).compare(bytes, start, start + length, at, at + length) === 0
  }

  write(segment: number, offset: number, bytes: Buffer, start: number, end: number): void {
    bytes.copy(this.#slabOf(segment), this.#offsetOf(segment) + offset, start, end)
  }

  #slabOf(segment: number): Buffer {
    const slab = this.#slabs[Math.floor(segment / SLAB_SEGMENTS)]
    if (!slab) throw new RangeError(`there is no segment ${segment}`)
    return slab
  }

  #offsetOf(segment: number): number {
    return (segment % SLAB_SEGMENTS) * this.size
  }
}

/** A run of bytes in segments; nobody else ever sees these. */
export class KeptBytes {
  readonly #memory: Segments
  #segments: number[] = []
  #length = 0

  constructor(memory: Segments) {
    this.#memory = memory
  }

  get length(): number {
    return this.#length
  }

  /** Are the kept bytes `from` to `to` those of `bytes` from `start` on? Not where either ends before that. */
  equals(from: number, to: number, bytes: Buffer, start: number): boolean {
    if (to > this.#length || start + to - from > bytes.length) return false
    const { size } = this.#memory
    for (let at = from; at < to; ) {
      const offset = at % size
      const length = Math.min(size - offset, to - at)
      const segment = this.#segments[(at - offset) / size]
      const isSame =
        segment !== undefined && this.#memory.equals(segment, offset, length, bytes, start + at - from)
      if (!isSame) return false
      at += length
    }
    return true
  }

  /** Keeps of what there is the first `from` bytes, and after them those of `bytes` from `start` to `end`. */
  replace(from: number, bytes: Buffer, start: number, end: number): void {
    const { size } = this.#memory
    const length = from + end - start
    this.#resize(Math.ceil(length / size))
    for (let at = from; at < length; ) {
      const offset = at % size
      const count = Math.min(size - offset, length - at)
      const segment = this.#segments[(at - offset) / size]
      const read = start + at - from
      if (segment !== undefined) this.#memory.write(segment, offset, bytes, read, read + count)
      at += count
    }
    this.#length = length
  }

  free(): void {
    this.#resize(0)
    this.#length = 0
  }

  #resize(count: number): void {
    while (this.#segments.length < count) this.#segments.push(this.#memory.take())
    if (this.#segments.length > count) this.#memory.give(this.#segments.splice(count))
  }
}
