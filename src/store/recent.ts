/** Things by name, of which the most recently used are kept: bounded in number, age and size. */

export interface RecentLimits<V> {
  readonly max: number
  /** Milliseconds since something was last used. */
  readonly ttl: number
  /** Bytes that all of them together may take, roughly; what alone takes more is not kept. */
  readonly maxBytes: number
  /** Bytes. */
  readonly sizeOf: (value: V) => number
  /** Milliseconds that only grow. */
  readonly now: () => number
}

export interface Entry<V> {
  readonly name: string
  value: V
  bytes: number
  usedAt: number
  older: Entry<V> | undefined
  newer: Entry<V> | undefined
}

/** A list through a map: what is used moves to its end, and what there is no room for goes from its beginning. */
export class Recent<V> {
  readonly #entries = new Map<string, Entry<V>>()
  readonly #limits: RecentLimits<V>
  #oldest: Entry<V> | undefined
  #newest: Entry<V> | undefined
  #bytes = 0

  constructor(limits: RecentLimits<V>) {
    this.#limits = limits
  }

  get size(): number {
    return this.#entries.size
  }

  /** Finds what is not too old, and counts that as use. */
  use(name: string): Entry<V> | undefined {
    const entry = this.#entries.get(name)
    if (!entry) return undefined
    const now = this.#limits.now()
    if (now - entry.usedAt > this.#limits.ttl) {
      this.remove(entry)
      return undefined
    }
    entry.usedAt = now
    if (entry !== this.#newest) {
      this.#unlink(entry)
      this.#append(entry)
    }
    return entry
  }

  set(name: string, value: V): void {
    const known = this.use(name)
    if (known) this.replace(known, value)
    else this.add(name, value)
  }

  /** Keeps something under a name that nothing is kept under. */
  add(name: string, value: V): void {
    const { sizeOf, now } = this.#limits
    const bytes = sizeOf(value)
    const entry: Entry<V> = { name, value, bytes, usedAt: now(), older: undefined, newer: undefined }
    this.#entries.set(name, entry)
    this.#append(entry)
    this.#bytes += bytes
    this.#makeRoom(entry)
  }

  /** Keeps something in the place of what was found a moment ago. */
  replace(entry: Entry<V>, value: V): void {
    const bytes = this.#limits.sizeOf(value)
    this.#bytes += bytes - entry.bytes
    entry.value = value
    entry.bytes = bytes
    this.#makeRoom(entry)
  }

  remove(entry: Entry<V>): void {
    this.#entries.delete(entry.name)
    this.#unlink(entry)
    this.#bytes -= entry.bytes
  }

  #makeRoom(newest: Entry<V>): void {
    const { max, maxBytes } = this.#limits
    if (newest.bytes > maxBytes) this.remove(newest)
    while (this.#oldest && (this.#entries.size > max || this.#bytes > maxBytes)) this.remove(this.#oldest)
  }

  #append(entry: Entry<V>): void {
    const before = this.#newest
    entry.older = before
    entry.newer = undefined
    if (before) before.newer = entry
    else this.#oldest = entry
    this.#newest = entry
  }

  #unlink({ older, newer }: Entry<V>): void {
    if (older) older.newer = newer
    else this.#oldest = newer
    if (newer) newer.older = older
    else this.#newest = older
  }
}
