/** What a provider's refusal means: the first row that fits says, and where none does, the general reader. */
import {
  type Overflow,
  overInput,
  overOutput,
  overTotal,
  type Recovery,
  statedNumbers,
} from '../core/overflow.ts'
import { inputTooLarge, withFields } from './fields.ts'
import { type Groups, groupsIn, type LinearPattern } from './pattern.ts'
import { withoutQuotes } from './quotes.ts'
import { readOverflow } from './reader/reader.ts'
import type { Row } from './rows.ts'
import { plainNumbers } from './text.ts'
import { type RawReply, type Reply, unwrap } from './unwrap.ts'

/** An overflow, and the id of the row that recognised it, or `general-reader`. */
export interface Classified {
  readonly overflow: Overflow
  readonly quirk: string
}

/** A user's pattern may hold what the normal form has lost, such as quotes. */
function groupsInText(pattern: RegExp | LinearPattern, { text, original }: Reply): Groups | undefined {
  return groupsIn(pattern, text) ?? (pattern instanceof RegExp ? undefined : groupsIn(pattern, original))
}

/** A code matches as it is written or by its letters alone. */
function hasCode(pattern: RegExp | LinearPattern, { codes }: Reply): boolean {
  return [...codes].some((code) => groupsIn(pattern, code) ?? groupsIn(pattern, code.replace(/[^a-z]/g, '')))
}

const NO_GROUPS: Groups = new Map()

/** The named groups of a row's text where the reply is as the row says; `undefined` where it is not. */
function matched({ status, code, text, unless }: Row, reply: Reply): Groups | undefined {
  if (status && !status.includes(reply.status)) return undefined
  if (code && !hasCode(code, reply)) return undefined
  if (unless && groupsInText(unless, reply)) return undefined
  return text ? groupsInText(text, reply) : NO_GROUPS
}

function numberIn(written: string | undefined): number | undefined {
  if (written === undefined) return undefined
  const value = Number(plainNumbers(written.toLowerCase()).replace(/\D/g, ''))
  return Number.isSafeInteger(value) && value > 0 ? value : undefined
}

function limitIn(groups: Groups, reply: Reply, from: string | undefined): number | undefined {
  if (from === undefined || groups.has(from)) return numberIn(groups.get(from ?? 'limit'))
  return reply.numbers.get(from.slice(from.lastIndexOf('.') + 1).toLowerCase())
}

/** What `shrink_context` and `clamp_output_only` need and the row does not name is read from the text. */
function overflowOf(recovery: Recovery, row: Row, groups: Groups, reply: Reply): Overflow {
  const stated = readOverflow(reply.text, true)
  const numbers = stated && statedNumbers(stated)
  const limit = limitIn(groups, reply, row.limitFrom)
  switch (recovery) {
    case 'shrink_context':
      // Without a number there is nothing to shrink to.
      return overInput(limit ?? numbers?.limit, numberIn(groups.get('prompt')) ?? numbers?.promptTokens)
    case 'clamp_output_only':
      return overOutput(limit ?? numbers?.maxOutput)
    case 'unknown_overflow':
      return overTotal(limit)
    case 'compress_only':
    case 'tier_downgrade':
      return { recovery }
  }
}

/**
 * What a reply means, in tokens, and which row says so; `undefined`: no overflow. `rows` in order: those of the
 * configuration come before the built-in ones. `request`: the body that was refused, without a content coding; what the
 * reply quotes of it is not read.
 */
export function classify(
  raw: RawReply,
  rows: readonly Row[],
  request?: () => Buffer | undefined,
): Classified | undefined {
  const reply = unwrap(raw)
  const found = firstOf(rows, reply)
  const body = found && request?.()
  const own = body && withoutQuotes(reply, found.overflow, body)
  return own ? firstOf(rows, own) : found
}

function firstOf(rows: readonly Row[], reply: Reply): Classified | undefined {
  for (const row of rows) {
    const groups = matched(row, reply)
    if (!groups) continue
    if (row.means === 'not_overflow') return undefined
    const overflow =
      row.means === 'input_too_large' ? inputTooLarge(reply) : overflowOf(row.means, row, groups, reply)
    return { overflow, quirk: row.id }
  }
  const overflow = readOverflow(reply.text)
  return overflow && { overflow: withFields(reply, overflow), quirk: 'general-reader' }
}
