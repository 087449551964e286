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
