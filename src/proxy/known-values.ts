/**
 * Values that the requests of one owner have in common, its tools above all: known again by their bytes, which is many
 * times faster than to find where they end.
 */
import { crc32 } from 'node:zlib'
import type { Span } from '../json/scan.ts'
import { KeptBytes, type Segments } from './kept-bytes.ts'

/** Shorter values are read as fast as they are looked up. */
const WORTHWHILE = 1024

/** Keys are the sender's to choose: values of longer ones are not kept, as nothing would bound what the keys take. */
const MAX_KEY = 64

/** How many values of one key are known of an owner: agents come with others that help them. */
const MAX_VARIANTS = 4

/** A value that takes more than this share of the memory is not kept, so that there is room for all variants of one. */
const MAX_SHARE = 0.5 / MAX_VARIANTS

/** A value in a body, and the checksum of its bytes. */
export interface SummedValue extends Span {
  readonly checksum: number
}

interface KnownValue {
  readonly bytes: KeptBytes
  readonly checksum: number
}

export class KnownValues {
  readonly #memory: Segments
  readonly #maxBytes: number
  /** By owner and key, the one that was not needed for the longest time first; of each, the newest first. */
  readonly #values = new Map<string, KnownValue[]>()
  #size = 0

  constructor(memory: Segments, maxBytes: number) {
    this.#memory = memory
    this.#maxBytes = maxBytes
  }

  /** The value of `key` that starts `start`, where it is known: an object or an array, which ends where its bytes say. */
  find(owner: string, key: string, json: Buffer, start: number): SummedValue | undefined {
    const variants = this.#values.get(nameOf(owner, key))
    if (!variants) return undefined
    for (const { bytes, checksum } of variants) {
      const { length } = bytes
      if (bytes.equals(0, length, json, start)) return { start, end: start + length, checksum }
    }
    return undefined
  }

  /** Takes in an object or an array that was not known; `undefined` where it is too short to matter, or its key too long. */
  add(owner: string, key: string, json: Buffer, start: number, end: number): SummedValue | undefined {
    if (end - start < WORTHWHILE || key.length > MAX_KEY) return undefined
    const checksum = crc32(json.subarray(start, end))
    const size = this.#memory.capacityFor(end - start)
    if (size <= this.#maxBytes * MAX_SHARE) {
      const bytes = this.#room(nameOf(owner, key), size, checksum)
      bytes.replace(0, json, start, end)
    }
    return { start, end, checksum }
  }

  /** Makes room for one more value of a name, the newest. */
  #room(name: string, size: number, checksum: number): KeptBytes {
    const variants = this.#values.get(name) ?? []
    this.#values.delete(name)
    if (variants.length === MAX_VARIANTS) this.#forget(variants.pop())
    for (const [other, oldest] of this.#values) {
      if (this.#size + size <= this.#maxBytes) break
      this.#values.delete(other)
      for (const known of oldest) this.#forget(known)
    }
    const bytes = new KeptBytes(this.#memory)
    variants.unshift({ bytes, checksum })
    // What is put last is forgotten last.
    this.#values.set(name, variants)
    this.#size += size
    return bytes
  }

  #forget(known: KnownValue | undefined): void {
    if (!known) return
    this.#size -= this.#memory.capacityFor(known.bytes.length)
    known.bytes.free()
  }
}

function nameOf(owner: string, key: string): string {
  return `${owner} ${key}`
}
