/** Makes a smaller request after an overflow that Governor can repair without the client. */

import { STANDARD_TIER } from '../../core/context-window.ts'
import { estimateTokens } from '../../core/usage.ts'
import type { AskedOutput, Dialect } from '../../dialect/dialect.ts'
import { contentEncoding, withoutBodyFields } from '../../http/headers.ts'
import { lengthOf, type UpstreamCall } from '../../http/upstream.ts'
import { applyEdits } from '../../json/edit.ts'
import type { Overflow } from '../../overflow/overflow.ts'
import type { Row } from '../../overflow/rows.ts'

/** How Governor handles overflows. */
export interface OverflowPolicy {
  readonly enabled: boolean
  /** Rows for wordings that the general reader would misread, those of the user first. */
  readonly quirks: readonly Row[]
  /** Rewrites overflow errors into the one that the clients of an API understand. */
  readonly canonical: boolean
  /** Sends a request again with a lower output cap. */
  readonly retriesClamped: boolean
  /** Sends a request again without the beta of long context. */
  readonly retriesWithoutBeta: boolean
  /** Milliseconds for which a session's reduced context holds. */
  readonly effectiveTtl: number
}

/** Returns the body as one buffer; `undefined` for a stream or a body with a content coding. */
export function bodyOf({ body, headers }: UpstreamCall): Buffer | undefined {
  if (contentEncoding(headers) !== 'identity') return undefined
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
}

/** Returns the model of a request that was not read before, if it can be read. `path`: the client's. */
export function modelIn(dialect: Dialect, path: string, call: UpstreamCall): string | undefined {
  try {
    const body = bodyOf(call)
    return body && dialect.modelOf({ path, body })
  } catch {
    return undefined
  }
}

/** Returns the request to send instead; `undefined` if only the client can make the input smaller. */
export function recovered(
  dialect: Dialect,
  call: UpstreamCall,
  overflow: Overflow,
  { retriesClamped, retriesWithoutBeta }: OverflowPolicy,
): UpstreamCall | undefined {
  const withJson = (body: Buffer | undefined) => body && { ...call, headers: withoutBodyFields(call.headers), body }
  switch (overflow.recovery) {
    case 'clamp_output_only': {
      const json = retriesClamped ? bodyOf(call) : undefined
      return withJson(json && dialect.withLowerOutput?.(json, (asked) => clampOutput(overflow, asked)))
    }
    case 'tier_downgrade': {
      // A larger request needs the beta.
      if (!retriesWithoutBeta || estimateTokens(lengthOf(call.body)) > STANDARD_TIER) return undefined
      const headers = dialect.withoutLongContext?.(call.headers)
      return headers && { ...call, headers }
    }
    case 'loop_refused': {
      const json = bodyOf(call)
      const edits = json && dialect.read({ path: call.path, body: json })?.collapseRepeats()
      return withJson(json && edits?.length ? applyEdits(json, edits) : undefined)
    }
    case 'shrink_context':
    case 'compress_only':
    case 'unknown_overflow':
      return undefined
  }
}

/** The smallest cap that leaves room for an answer. */
const LEAST_OUTPUT = 16
/** The smallest thinking budget that providers accept. */
const LEAST_THINKING = 1_024

/**
 * Returns the cap for a second attempt; `undefined` if that would not help:
 *
 * - no room is stated;
 * - the cap would not be lower than before;
 * - it is too small for an answer, or for the thinking that the client wants.
 */
export function clampOutput(overflow: Overflow, asked: AskedOutput): AskedOutput | undefined {
  if (overflow.recovery !== 'clamp_output_only') return undefined
  const { maxOutput, limit, promptTokens } = overflow
  const room = maxOutput ?? (limit !== undefined && promptTokens !== undefined ? limit - promptTokens : undefined)
  if (room === undefined) return undefined
  // Room in a window shrinks by 1 %, because counts differ a little from one request to the next.
  const cap = limit === undefined ? room : room - Math.min(512, Math.max(1, Math.ceil(room * 0.01)))
  if (cap < LEAST_OUTPUT || cap >= asked.cap) return undefined
  if (asked.thinking === undefined || asked.thinking < cap) return { ...asked, cap }
  const thinking = Math.max(LEAST_THINKING, Math.floor(cap * 0.8))
  return thinking < cap ? { cap, thinking } : undefined
}
