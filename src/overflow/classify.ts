/** Classifies the error of a provider: by the first row that matches, else by the general reader. */
import { type Overflow, overInput, statedNumbers } from './meaning.ts'
import { type QuotedRequest, withoutQuotes } from './quotes.ts'
import { readOverflow } from './reader/reader.ts'
import { plainNumbers } from './reader/text.ts'
import { type Groups, type Pattern, ROWS, type Row } from './rows.ts'
import { type RawReply, type Reply, unwrap } from './unwrap.ts'

/** An overflow, and the id of the row that recognised it, or `general-reader`. */
export interface Classified {
  readonly overflow: Overflow
  readonly quirk: string
}

export interface ClassifyOptions {
  /** Rows that are tried in this order instead of the built-in ones (`ROWS`); the first that matches counts. */
  readonly rows?: readonly Row[]
  /** Returns the request's body as it was sent, as a string or a buffer: what the error quotes of it is not read. */
  readonly request?: () => QuotedRequest | undefined
}

/**
 * Returns the overflow that an error states and the row that recognised it; `undefined` if it is no overflow. Takes any
 * reply and never throws. Reads the beginning and the end of a text with more than 12 K characters.
 */
export function classify(raw: RawReply, { rows = ROWS, request }: ClassifyOptions = {}): Classified | undefined {
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
    const overflow = overflowOf(row, groups, reply)
    return overflow && { overflow, quirk: row.id }
  }
  const overflow = readOverflow(reply.text)
  return overflow && { overflow: withFields(reply, overflow), quirk: 'general-reader' }
}

/** Returns the named groups of a row's text pattern; `undefined` if the row does not match the reply. */
function matched({ status, code, text, unless }: Row, reply: Reply): Groups | undefined {
  if (status && !status.includes(reply.status)) return undefined
  if (code) {
    // As the code is written, or by its letters alone.
    const hasCode = (one: string) => groupsIn(code, one) ?? groupsIn(code, one.replace(/[^a-z]/g, ''))
    if (![...reply.codes].some(hasCode)) return undefined
  }
  if (unless && groupsInReply(unless, reply)) return undefined
  return text ? groupsInReply(text, reply) : {}
}

/** A user's pattern may contain characters that the normal form drops, such as quotes. */
function groupsInReply(pattern: Pattern, { text, original }: Reply): Groups | undefined {
  return groupsIn(pattern, text) ?? (pattern instanceof RegExp ? undefined : groupsIn(pattern, original))
}

function groupsIn(pattern: Pattern, text: string): Groups | undefined {
  if (!(pattern instanceof RegExp)) return pattern.match(text)
  const match = pattern.exec(text)
  return match ? (match.groups ?? {}) : undefined
}

function numberIn(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const value = Number(plainNumbers(text.toLowerCase()).replace(/\D/g, ''))
  return Number.isSafeInteger(value) && value > 0 ? value : undefined
}

/**
 * Returns the overflow that a row states, `undefined` for `not_overflow`. The general reader finds the numbers that the
 * row's pattern does not name.
 */
function overflowOf({ means }: Row, groups: Groups, reply: Reply): Overflow | undefined {
  if (means === 'not_overflow') return undefined
  const stated = readOverflow(reply.text, true)
  const numbers = stated && statedNumbers(stated)
  const limit = numberIn(groups['limit'])
  switch (means) {
    case 'input_too_large': {
      const saysMore = stated && (stated.recovery !== 'unknown_overflow' || stated.limit !== undefined)
      return withFields(reply, saysMore ? stated : { recovery: 'compress_only' })
    }
    case 'shrink_context':
      return overInput(limit ?? numbers?.limit, numberIn(groups['prompt']) ?? numbers?.promptTokens)
    case 'clamp_output_only':
      return { recovery: 'clamp_output_only', maxOutput: limit ?? numbers?.maxOutput }
    case 'unknown_overflow':
      return { recovery: 'unknown_overflow', limit }
    case 'compress_only':
    case 'tier_downgrade':
    case 'loop_refused':
      return { recovery: means }
  }
}

/** Fields of errors that hold the limit or the size of the prompt, in the order in which they are looked for. */
const LIMITS = `n_ctx max_context_length context_length context_window max_model_len max_input_tokens max_prompt_tokens
  context_limit`.split(/\s+/)
const PROMPTS = 'n_prompt_tokens prompt_tokens input_tokens num_prompt_tokens prompt_token_count'.split(' ')

/** Returns the overflow with the limit and the prompt from the error's fields, if its words state no limit. */
function withFields({ numbers }: Reply, overflow: Overflow): Overflow {
  const { recovery } = overflow
  if (recovery !== 'compress_only' && recovery !== 'unknown_overflow') return overflow
  if (statedNumbers(overflow).limit !== undefined) return overflow
  const firstOf = (names: readonly string[]) => names.map((name) => numbers.get(name)).find((one) => one !== undefined)
  const [limit, prompt] = [firstOf(LIMITS), firstOf(PROMPTS)]
  return limit === undefined || (prompt !== undefined && prompt <= limit) ? overflow : overInput(limit, prompt)
}
