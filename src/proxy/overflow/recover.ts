/** Makes a smaller request after an overflow that Governor can repair without the client. */
import { STANDARD_TIER } from '../../core/context-window.ts'
import { estimateTokens } from '../../core/usage.ts'
import type { AskedOutput, Dialect } from '../../dialect/dialect.ts'
import { lengthOf } from '../../http/body.ts'
import { contentEncoding, withoutBodyFields } from '../../http/headers.ts'
import type { UpstreamCall } from '../../http/upstream.ts'
import { applyEdits } from '../../json/edit.ts'
import type { Overflow } from '../../overflow/meaning.ts'
import type { Exchange } from '../begin-exchange.ts'
import { noteFault } from '../fault.ts'

/** Returns the body as one buffer; `undefined` for a stream or a body with a content coding. */
export function bodyOf({ body, headers }: UpstreamCall): Buffer | undefined {
  if (contentEncoding(headers) !== 'identity') return undefined
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
}

/** Returns the smaller request to send; `undefined` if only the client can make one, or after a fault of Governor. */
export function recovered(
  { services }: Exchange,
  dialect: Dialect,
  call: UpstreamCall,
  overflow: Overflow,
): UpstreamCall | undefined {
  const { retriesClamped, retriesWithoutBeta } = services.policies.overflow
  try {
    let body: Buffer | undefined
    switch (overflow.recovery) {
      case 'clamp_output_only': {
        const json = retriesClamped ? bodyOf(call) : undefined
        body = json && dialect.withLowerOutput?.(json, (asked) => clampOutput(overflow, asked))
        break
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
        body = json && edits?.length ? applyEdits(json, edits) : undefined
        break
      }
      case 'shrink_context':
      case 'compress_only':
      case 'unknown_overflow':
        return undefined
    }
    return body && { ...call, headers: withoutBodyFields(call.headers), body }
  } catch (error) {
    noteFault(services.emit, error)
    return undefined
  }
}

/** The smallest cap that leaves room for an answer. */
const LEAST_OUTPUT = 16
/** The smallest thinking budget that providers accept. */
const LEAST_THINKING = 1_024

/**
 * Returns the cap for a second attempt. Returns `undefined`
 * - if the error states no room, or the cap would not be lower than before;
 * - if the cap is too small for an answer, or for the thinking that the client wants.
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
