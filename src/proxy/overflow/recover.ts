/** Makes a smaller request after an overflow that Governor can repair without the client. */

import { STANDARD_TIER } from '../../core/context-window.ts'
import { estimateTokens } from '../../core/usage.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { contentEncoding, withoutFields } from '../../http/headers.ts'
import { lengthOf, type UpstreamCall } from '../../http/upstream.ts'
import { applyEdits } from '../../json/edit.ts'
import type { Overflow } from '../../overflow/overflow.ts'
import { clampOutput } from './clamp.ts'
import type { OverflowPolicy } from './policy.ts'

/** Returns the body as one buffer; `undefined` for a stream or a body with a content coding, which are not changed. */
export function bodyOf({ body, headers }: UpstreamCall): Buffer | undefined {
  if (contentEncoding(headers) !== 'identity') return undefined
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
}

function withJson(call: UpstreamCall, json: Buffer): UpstreamCall {
  return { ...call, headers: withoutFields(call.headers, (lower) => lower === 'content-length'), body: json }
}

/** Returns the request with a lower output cap; `undefined` if it has no cap or no lower one helps. */
function clamped(dialect: Dialect, call: UpstreamCall, overflow: Overflow): UpstreamCall | undefined {
  const json = bodyOf(call)
  const lower = json && dialect.withLowerOutput?.(json, (asked) => clampOutput(overflow, asked))
  return lower && withJson(call, lower)
}

/** Returns the request without the long-context beta; `undefined` if the request does not use it or needs it. */
function withoutBeta(dialect: Dialect, call: UpstreamCall): UpstreamCall | undefined {
  if (estimateTokens(lengthOf(call.body)) > STANDARD_TIER) return undefined
  const headers = dialect.withoutLongContext?.(call.headers)
  return headers && { ...call, headers }
}

/** Returns the model of a request that was not read before; `undefined` if it cannot be read. `path`: the client's. */
export function modelIn(dialect: Dialect, path: string, call: UpstreamCall): string | undefined {
  try {
    const body = bodyOf(call)
    return body && dialect.modelOf({ path, body })
  } catch {
    return undefined
  }
}

/** Returns the request without repeated calls; `undefined` if none is repeated in it. */
function collapsed(dialect: Dialect, call: UpstreamCall): UpstreamCall | undefined {
  const body = bodyOf(call)
  const edits = body && dialect.read({ path: call.path, body })?.collapseRepeats()
  return body && edits?.length ? withJson(call, applyEdits(body, edits)) : undefined
}

/** Returns the request to send instead; `undefined` if only the client can make the input smaller. */
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
    case 'loop_refused':
      return collapsed(dialect, call)
    case 'shrink_context':
    case 'compress_only':
    case 'unknown_overflow':
      return undefined
  }
}
