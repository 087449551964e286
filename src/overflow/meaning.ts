/**
 * The meaning of an error that says that something is too large. A stated limit and an excess are different fields, so
 * that "too large by 2,013 tokens" is never taken for a window of 2,013. All numbers are tokens.
 */

/** The numbers of an overflow, in tokens; `undefined` if the provider does not state them. */
export interface StatedNumbers {
  readonly limit: number | undefined
  readonly promptTokens: number | undefined
  readonly maxOutput: number | undefined
  readonly overflowBy: number | undefined
}

type Stated<Numbers extends keyof StatedNumbers> = Partial<Pick<StatedNumbers, Numbers>>

/** What was too large, as far as the provider says. */
export type Overflow =
  /** The input is too large, and the provider states its limit. `overflowBy`: the excess, if that is stated too. */
  | ({ readonly recovery: 'shrink_context'; readonly limit: number } & Stated<'promptTokens' | 'overflowBy'>)
  /** The input is too large and no usable limit is stated: the client should compress, and the known window stays. */
  | ({ readonly recovery: 'compress_only' } & Stated<'promptTokens' | 'overflowBy'>)
  /**
   * The input fits, the requested output does not. `maxOutput`: the most output that may be requested, which is the
   * model's own limit or the room that the input leaves. `limit`: the window, if input and output together exceed it.
   */
  | ({ readonly recovery: 'clamp_output_only' } & Stated<'maxOutput' | 'limit' | 'promptTokens'>)
  /** Long context is not part of the plan, tier or beta. */
  | { readonly recovery: 'tier_downgrade' }
  /** Certainly an overflow, of input or output. */
  | ({ readonly recovery: 'unknown_overflow' } & Stated<'limit'>)
  /** The provider refuses a conversation for its repeated calls: nothing is too large. */
  | { readonly recovery: 'loop_refused' }

export type Recovery = Overflow['recovery']

export const RECOVERIES = [
  'shrink_context',
  'compress_only',
  'clamp_output_only',
  'tier_downgrade',
  'unknown_overflow',
  'loop_refused',
] as const satisfies readonly Recovery[]

export function statedNumbers(overflow: Overflow): StatedNumbers {
  const stated: Stated<keyof StatedNumbers> & Pick<Overflow, 'recovery'> = overflow
  const { limit, promptTokens, maxOutput, overflowBy } = stated
  return { limit, promptTokens, maxOutput, overflowBy }
}

export function overInput(limit: number | undefined, promptTokens: number | undefined): Overflow {
  return limit === undefined
    ? { recovery: 'compress_only', promptTokens }
    : { recovery: 'shrink_context', limit, promptTokens }
}
