/** One way one provider says no. Each is a file of its own, with real replies as its examples. */
import type { Overflow, Recovery } from '../core/overflow.ts'
import type { RawReply, Reply } from './reply.ts'

/** A real reply, shortened, and what it means. */
export interface Example extends RawReply {
  /** `none`: no overflow, whatever it looks like. */
  readonly means: Recovery | 'none'
  readonly limit?: number
  readonly promptTokens?: number
  readonly maxOutput?: number
  readonly overflowBy?: number
}

export interface Quirk {
  /** Names it in replies and metrics; never changes. */
  readonly id: string
  /** Whose words they are. */
  readonly provider: string
  /** What it recognises, in a sentence. */
  readonly claims: string
  /** What the reply means; `none`: surely no overflow, nobody else is asked; `undefined`: not this quirk's. */
  read(reply: Reply): Overflow | 'none' | undefined
  /** Where the wording is documented or was seen. */
  readonly source: string
  readonly examples: readonly Example[]
}

/** The numbers that a pattern captured, in order; what it left out is `undefined`. */
export type Captured = readonly (number | undefined)[]

/**
 * A reader by one pattern. Patterns see normal form: lower case, plain digits, no quotes; they have no nested and no unbounded repetitions.
 */
export function says(
  pattern: RegExp,
  meaning: (...numbers: Captured) => Overflow | 'none' | undefined,
): Quirk['read'] {
  return ({ text }) => {
    const match = pattern.exec(text)
    if (!match) return undefined
    return meaning(...match.slice(1).map((found) => (found === undefined ? undefined : Number(found))))
  }
}

/** The first of several readings that knows what to say. */
export function oneOf(...readings: readonly Quirk['read'][]): Quirk['read'] {
  return (reply) => {
    for (const read of readings) {
      const meaning = read(reply)
      if (meaning !== undefined) return meaning
    }
    return undefined
  }
}

/** Does a reply carry one of these codes? */
export function hasCode(reply: Reply, codes: ReadonlySet<string>): boolean {
  for (const code of reply.codes) if (codes.has(code)) return true
  return false
}

/** Does a code name it, to judge by its letters alone? */
export function namesCode(reply: Reply, pattern: RegExp): boolean {
  for (const code of reply.codes) if (pattern.test(code.replace(/[^a-z]/g, ''))) return true
  return false
}
