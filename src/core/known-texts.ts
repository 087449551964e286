/**
 * Names of long texts that come again and again, such as the system texts of the agents that a machine runs: told by
 * their JSON, which is compared many times faster than it is decoded and hashed.
 */
import { type Hash, hashOfText } from './hash.ts'

/** How many are known: agents and those that help them. */
const MAX_TEXTS = 16

/** Bytes. Shorter ones are hashed as fast, and of longer ones there are few. */
const SHORTEST = 512
const LONGEST = 131_072

interface KnownText {
  readonly json: Uint8Array
  readonly hash: Hash
}

/** What is kept is a function of the bytes alone: losing it costs time and nothing else. */
export class KnownTexts {
  readonly #known: KnownText[] = []
  /** Which one goes next, once there are as many as there may be. */
  #next = 0

  /** The hash of a text whose JSON, in the same form whoever asks, is `json`. */
  hashOf(json: Uint8Array, decoded: () => string): Hash {
    if (json.length < SHORTEST || json.length > LONGEST) return hashOfText(decoded())
    for (const known of this.#known) {
      if (known.json.length === json.length && Buffer.compare(known.json, json) === 0) return known.hash
    }
    const hash = hashOfText(decoded())
    // A copy: the request's own buffer is not to be kept.
    this.#known[this.#next] = { json: new Uint8Array(json), hash }
    this.#next = (this.#next + 1) % MAX_TEXTS
    return hash
  }
}
