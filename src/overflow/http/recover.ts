/** Asks again, once, where Governor can mend by itself what was too large. */

import { STANDARD_TIER } from '../../core/context-window.ts'
import type { Overflow } from '../../core/overflow.ts'
import { estimateTokens } from '../../core/usage.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { contentEncoding, withoutFields } from '../../http/headers.ts'
import { lengthOf, type UpstreamCall } from '../../http/upstream.ts'
import { clampOutput } from '../clamp.ts'
import type { OverflowPolicy } from '../policy.ts'

/** The body in one piece; `undefined` where it is none that can be changed. */
export function bodyOf({ body, headers }: UpstreamCall): Buffer | undefined {
  if (contentEncoding(headers) !== 'identity') return undefined
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
}

function withJson(call: UpstreamCall, json: Buffer): UpstreamCall {
  return { ...call, headers: withoutFields(call.headers, (lower) => lower === 'content-length'), body: json }
}

/** The same request with a lower output cap; `undefined` where it has none, or none would do. */
function clamped(dialect: Dialect, call: UpstreamCall, overflow: Overflow): UpstreamCall | undefined {
  const json = bodyOf(call)
  const lower = json && dialect.withLowerOutput?.(json, (asked) => clampOutput(overflow, asked))
  return lower && withJson(call, lower)
}

/** The same request without the beta of long context; `undefined` where that was not asked for, or is needed. */
function withoutBeta(dialect: Dialect, call: UpstreamCall): UpstreamCall | undefined {
  if (estimateTokens(lengthOf(call.body)) > STANDARD_TIER) return undefined
  const headers = dialect.withoutLongContext?.(call.headers)
  return headers && { ...call, headers }
}

/** The model that a request names, where it was not read otherwise. `path`: as the client asked for it. */
export function modelIn(dialect: Dialect, path: string, call: UpstreamCall): string | undefined {
  try {
    const body = bodyOf(call)
    return body && dialect.modelOf({ path, body })
  } catch {
    return undefined
  }
}

/** What to ask instead; `undefined` where that is the client's to decide. */
export function recovered(
  dialect: Dialect,
  call: UpstreamCall,
  overflow: Overflow,
  { retriesClamped, retriesWithoutBeta }: OverflowPolicy,
): UpstreamCall | undefined {
  switch (overflow.recovery) {
    case 'clamp_output_only':
      return retriesClamped ? clamped(dialect, call, overflow) : undefined
    case 'tier_downgrade':
      return retriesWithoutBeta ? withoutBeta(dialect, call) : undefined
    case 'shrink_context':
    case 'compress_only':
    case 'unknown_overflow':
      return undefined
  }
}
