/** Asks again, once, where Governor can mend by itself what was too large. */

import { STANDARD_TIER } from '../../core/context-window.ts'
import type { Overflow } from '../../core/overflow.ts'
import { estimateTokens } from '../../core/usage.ts'
import { contentEncoding, withoutFields } from '../../http/headers.ts'
import { lengthOf, type UpstreamCall } from '../../http/upstream.ts'
import { applyEdits, type Edit, setMember } from '../../json/edit.ts'
import { decode, kindAt, type Member, member, members, root } from '../../json/scan.ts'
import { type AskedOutput, clampOutput } from '../clamp.ts'
import type { OverflowPolicy } from '../policy.ts'

/** Fields by which clients bound the output. */
const CAPS = ['max_completion_tokens', 'max_output_tokens', 'max_tokens', 'max_new_tokens']

/** Betas that open a longer context. */
const LONG_CONTEXT = /^context-\d+[km]-/i

/** The body in one piece; `undefined` where it is none that can be changed. */
export function bodyOf({ body, headers }: UpstreamCall): Buffer | undefined {
  if (contentEncoding(headers) !== 'identity') return undefined
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
}

function withJson(call: UpstreamCall, json: Buffer): UpstreamCall {
  return { ...call, headers: withoutFields(call.headers, (lower) => lower === 'content-length'), body: json }
}

function numberAt(json: Buffer, field: Member | undefined): number | undefined {
  const value = field && decode(json, field.value)
  return typeof value === 'number' && Number.isSafeInteger(value) && value > 0 ? value : undefined
}

/** The same request with a lower output cap; `undefined` where it has none, or none would do. */
function clamped(call: UpstreamCall, overflow: Overflow): UpstreamCall | undefined {
  const json = bodyOf(call)
  if (!json) return undefined
  const fields = members(json, root(json))
  const caps = CAPS.flatMap((key) => {
    const field = member(fields, key)
    const value = numberAt(json, field)
    return field && value !== undefined ? [{ field, value }] : []
  })
  const cap = Math.max(0, ...caps.map(({ value }) => value))
  if (cap === 0) return undefined
  const thinking = member(fields, 'thinking')
  const budget = thinking && kindAt(json, thinking.value) === 'object' ? members(json, thinking.value) : []
  const tokens = numberAt(json, member(budget, 'budget_tokens'))
  const asked: AskedOutput = { cap, ...(tokens === undefined ? {} : { thinking: tokens }) }
  const lower = clampOutput(overflow, asked)
  if (!lower) return undefined
  const edits: Edit[] = caps
    .filter(({ value }) => value > lower.cap)
    .map(({ field }) => ({ ...field.value, text: String(lower.cap) }))
  if (thinking && lower.thinking !== undefined && lower.thinking !== tokens)
    edits.push(setMember(thinking.value, budget, 'budget_tokens', String(lower.thinking)))
  return withJson(call, applyEdits(json, edits))
}

/** The same request without the beta of long context; `undefined` where that was not asked for, or is needed. */
function withoutBeta(call: UpstreamCall): UpstreamCall | undefined {
  if (estimateTokens(lengthOf(call.body)) > STANDARD_TIER) return undefined
  let isFound = false
  const headers: string[] = []
  for (let at = 0; at + 1 < call.headers.length; at += 2) {
    const [name = '', value = ''] = [call.headers[at], call.headers[at + 1]]
    if (name.toLowerCase() !== 'anthropic-beta') {
      headers.push(name, value)
      continue
    }
    const betas = value.split(',').map((beta) => beta.trim())
    const kept = betas.filter((beta) => !LONG_CONTEXT.test(beta))
    isFound ||= kept.length < betas.length
    if (kept.length > 0) headers.push(name, kept.join(','))
  }
  return isFound ? { ...call, headers } : undefined
}

/** The model that a request names, where it was not read otherwise. */
export function modelIn(call: UpstreamCall): string | undefined {
  try {
    const json = bodyOf(call)
    const value = json && member(members(json, root(json)), 'model')?.value
    const model = json && value && decode(json, value)
    return typeof model === 'string' ? model : undefined
  } catch {
    return undefined
  }
}

/** What to ask instead; `undefined` where that is the client's to decide. */
export function recovered(
  call: UpstreamCall,
  overflow: Overflow,
  { retriesClamped, retriesWithoutBeta }: OverflowPolicy,
): UpstreamCall | undefined {
  switch (overflow.recovery) {
    case 'clamp_output_only':
      return retriesClamped ? clamped(call, overflow) : undefined
    case 'tier_downgrade':
      return retriesWithoutBeta ? withoutBeta(call) : undefined
    case 'shrink_context':
    case 'compress_only':
    case 'unknown_overflow':
      return undefined
  }
}
