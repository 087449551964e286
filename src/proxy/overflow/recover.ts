/** Makes a smaller request after an overflow that Governor can repair without the client. */

import { STANDARD_TIER } from '../../core/context-window.ts'
import { estimateTokens } from '../../core/usage.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { contentEncoding, withoutFields } from '../../http/headers.ts'
import { lengthOf, type UpstreamCall } from '../../http/upstream.ts'
import { applyEdits } from '../../json/edit.ts'
import type { Overflow } from '../../overflow/overflow.ts'
import type { Row } from '../../overflow/rows.ts'
import { clampOutput } from './clamp.ts'

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

/** Returns the body as one buffer; `undefined` for a stream or a body with a content coding, which are not changed. */
export function bodyOf({ body, headers }: UpstreamCall): Buffer | undefined {
  if (contentEncoding(headers) !== 'identity') return undefined
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
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

/** Returns the request to send instead; `undefined` if only the client can make the input smaller. */
export function recovered(
  dialect: Dialect,
  call: UpstreamCall,
  overflow: Overflow,
  { retriesClamped, retriesWithoutBeta }: OverflowPolicy,
): UpstreamCall | undefined {
  const withJson = (body: Buffer | undefined) =>
    body && { ...call, headers: withoutFields(call.headers, (lower) => lower === 'content-length'), body }
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
