/** Classifies the error of a provider: by the first row that matches, else by the general reader. */
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

/** A user's pattern may contain characters that the normal form drops, such as quotes. */
function groupsInText(pattern: RegExp | LinearPattern, { text, original }: Reply): Groups | undefined {
  return groupsIn(pattern, text) ?? (pattern instanceof RegExp ? undefined : groupsIn(pattern, original))
}

/** True if a code matches as it is written, or by its letters alone. */
function hasCode(pattern: RegExp | LinearPattern, { codes }: Reply): boolean {
  return [...codes].some((code) => groupsIn(pattern, code) ?? groupsIn(pattern, code.replace(/[^a-z]/g, '')))
}

const NO_GROUPS: Groups = new Map()

/** Returns the named groups of a row's text pattern; `undefined` if the row does not match the reply. */
function matched({ status, code, text, unless }: Row, reply: Reply): Groups | undefined {
  if (status && !status.includes(reply.status)) return undefined
  if (code && !hasCode(code, reply)) return undefined
  if (unless && groupsInText(unless, reply)) return undefined
  return text ? groupsInText(text, reply) : NO_GROUPS
}

function numberIn(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const value = Number(plainNumbers(text.toLowerCase()).replace(/\D/g, ''))
  return Number.isSafeInteger(value) && value > 0 ? value : undefined
}

/** Returns the overflow that a row states; the general reader finds the numbers that the row's pattern does not name. */
function overflowOf(recovery: Recovery, groups: Groups, reply: Reply): Overflow {
  const stated = readOverflow(reply.text, true)
  const numbers = stated && statedNumbers(stated)
  const limit = numberIn(groups.get('limit'))
  switch (recovery) {
    case 'shrink_context':
      // Without a limit it is `compress_only`.
      return overInput(limit ?? numbers?.limit, numberIn(groups.get('prompt')) ?? numbers?.promptTokens)
    case 'clamp_output_only':
      return overOutput(limit ?? numbers?.maxOutput)
    case 'unknown_overflow':
      return overTotal(limit)
    case 'compress_only':
    case 'tier_downgrade':
    case 'loop_refused':
      return { recovery }
  }
}

/**
 * Returns the overflow that an error states and the row that recognised it; `undefined` if it is no overflow. The first
 * row of `rows` that matches counts. `request` returns the request's body without a content coding: what the error quotes
 * of it is not read.
 */
export function classify(
  raw: RawReply,
  rows: readonly Row[],
  request?: () => Buffer | undefined,
): Classified | undefined {
  const reply = unwrap(raw)
  const classified = classifyReply(rows, reply)
  const body = classified && request?.()
  const unquoted = body && withoutQuotes(reply, classified.overflow, body)
  return unquoted ? classifyReply(rows, unquoted) : classified
}

function classifyReply(rows: readonly Row[], reply: Reply): Classified | undefined {
  for (const row of rows) {
    const groups = matched(row, reply)
    if (!groups) continue
    if (row.means === 'not_overflow') return undefined
    const overflow =
      row.means === 'input_too_large' ? inputTooLarge(reply) : overflowOf(row.means, groups, reply)
    return { overflow, quirk: row.id }
  }
  const overflow = readOverflow(reply.text)
  return overflow && { overflow: withFields(reply, overflow), quirk: 'general-reader' }
}
