import type { Row } from './rows.ts'

/** What becomes of overflows. */
export interface OverflowPolicy {
  readonly enabled: boolean
  /** The user's own first. */
  readonly quirks: readonly Row[]
  /** Rewrite them into the one error that the clients of a dialect understand. */
  readonly canonical: boolean
  /** Ask again with a lower output cap. */
  readonly retriesClamped: boolean
  /** Ask again without the beta of long context. */
  readonly retriesWithoutBeta: boolean
  /** Milliseconds for which a session's reduced context holds. */
  readonly effectiveTtl: number
}
