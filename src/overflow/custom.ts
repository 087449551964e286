/** Quirks from the configuration: checked before the built-in ones, and worth the same. */
import {
  type Overflow,
  overInput,
  overOutput,
  overTotal,
  type Recovery,
  statedNumbers,
} from '../core/overflow.ts'
import { type LinearPattern, linearPattern } from './pattern.ts'
import type { Quirk } from './quirk.ts'
import { readOverflow } from './reader/reader.ts'
import type { Reply } from './reply.ts'
import { plainNumbers } from './text.ts'

/** A quirk as a user writes it. What `match` leaves out matches anything. */
export interface QuirkSettings {
  readonly id: string
  readonly match: {
    readonly status?: number
    /** A code or type in the reply's fields. */
    readonly code?: string
    /** A pattern (RE2) that the text holds, whatever its case. */
    readonly text?: string
  }
  readonly recovery: Recovery | 'not_overflow'
  /** The named group of `match.text` that holds the limit, or the name of a field of the reply that does. */
  readonly limitFrom?: string
}

function limitIn(reply: Reply, groups: ReadonlyMap<string, string>, from: string): number | undefined {
  const written = groups.get(from)
  const field = from.slice(from.lastIndexOf('.') + 1).toLowerCase()
  const limit =
    written === undefined
      ? reply.numbers.get(field)
      : Number(plainNumbers(written.toLowerCase()).replace(/\D/g, ''))
  return limit !== undefined && Number.isSafeInteger(limit) && limit > 0 ? limit : undefined
}

/** The numbers that are not said to stand anywhere are read as they would be without the quirk. */
function overflowOf(recovery: Recovery, limit: number | undefined, reply: Reply): Overflow {
  const stated = readOverflow(reply.text, true)
  const numbers = stated && statedNumbers(stated)
  switch (recovery) {
    case 'shrink_context':
      // Without a number there is nothing to shrink to.
      return overInput(limit ?? numbers?.limit, numbers?.promptTokens)
    case 'compress_only':
      return { recovery }
    case 'clamp_output_only':
      return overOutput(limit ?? numbers?.maxOutput)
    case 'tier_downgrade':
      return { recovery }
    case 'unknown_overflow':
      return overTotal(limit ?? numbers?.limit)
  }
}

function matcherOf({ match }: QuirkSettings): (reply: Reply) => ReadonlyMap<string, string> | undefined {
  const pattern: LinearPattern | undefined = match.text === undefined ? undefined : linearPattern(match.text)
  const code = match.code?.toLowerCase()
  return (reply) => {
    if (match.status !== undefined && reply.status !== match.status) return undefined
    if (code !== undefined && !reply.codes.has(code)) return undefined
    return pattern ? (pattern.match(reply.original) ?? pattern.match(reply.text)) : new Map()
  }
}

/** @throws {Error} when the pattern is none, or not linear. */
export function customQuirk(settings: QuirkSettings): Quirk {
  const matches = matcherOf(settings)
  const { id, recovery, limitFrom } = settings
  return {
    id,
    provider: 'configuration',
    claims: 'What the configuration says.',
    source: 'overflow.quirks',
    read(reply) {
      const groups = matches(reply)
      if (!groups) return undefined
      if (recovery === 'not_overflow') return 'none'
      const limit = limitFrom === undefined ? undefined : limitIn(reply, groups, limitFrom)
      return overflowOf(recovery, limit, reply)
    },
    examples: [],
  }
}
