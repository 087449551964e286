/**
 * What a provider means when it says that something is too large. A stated limit and an excess are different fields of
 * different variants, so that "too large by 2,013 tokens" can never be taken for a window of 2,013. All numbers are
 * tokens.
 */

/** The input is too large, and the provider states what it takes. */
interface ShrinkContext {
  readonly recovery: 'shrink_context'
  readonly limit: number
  readonly promptTokens?: number
  /** By how many tokens the input is too large, where that is stated too. */
  readonly overflowBy?: number
}

/** The input is too large and no usable limit is stated: compress, but go on believing in the window. */
interface CompressOnly {
  readonly recovery: 'compress_only'
  readonly promptTokens?: number
  /** By how many tokens the input is too large, where just that is stated. */
  readonly overflowBy?: number
}

/** The input fits, the asked-for output does not. */
interface ClampOutputOnly {
  readonly recovery: 'clamp_output_only'
  /** The most that may be asked for: the model's own bound, or the room that the input leaves. */
  readonly maxOutput?: number
  /** The window, where that is what input and output together exceed. */
  readonly limit?: number
  readonly promptTokens?: number
}

/** Long context is not part of this plan, tier or beta. */
interface TierDowngrade {
  readonly recovery: 'tier_downgrade'
}

/** Surely an overflow; whether of input or output is not said. */
interface UnknownOverflow {
  readonly recovery: 'unknown_overflow'
  readonly limit?: number
}

/** What a refused request overflowed, as far as the provider says. */
export type Overflow = ShrinkContext | CompressOnly | ClampOutputOnly | TierDowngrade | UnknownOverflow

/** What to do about an overflow. */
export type Recovery = Overflow['recovery']

export const RECOVERIES = [
  'shrink_context',
  'compress_only',
  'clamp_output_only',
  'tier_downgrade',
  'unknown_overflow',
] as const satisfies readonly Recovery[]

/** The numbers of an overflow by the names that clients are told; `undefined` where nothing is stated. */
export interface StatedNumbers {
  readonly limit: number | undefined
  readonly promptTokens: number | undefined
  readonly maxOutput: number | undefined
  readonly overflowBy: number | undefined
}

export function statedNumbers(overflow: Overflow): StatedNumbers {
  return {
    limit: 'limit' in overflow ? overflow.limit : undefined,
    promptTokens: 'promptTokens' in overflow ? overflow.promptTokens : undefined,
    maxOutput: 'maxOutput' in overflow ? overflow.maxOutput : undefined,
    overflowBy: 'overflowBy' in overflow ? overflow.overflowBy : undefined,
  }
}

/** What of an input and an output, both stated, does not fit into a window: the output, as long as the input does. */
export function overWindow(promptTokens: number, limit: number): Overflow {
  return promptTokens < limit
    ? { recovery: 'clamp_output_only', limit, promptTokens, maxOutput: limit - promptTokens }
    : { recovery: 'shrink_context', limit, promptTokens }
}

/** An input that is too large, with what is known of it. */
export function overInput(limit: number | undefined, promptTokens: number | undefined): Overflow {
  const prompt = promptTokens === undefined ? {} : { promptTokens }
  return limit === undefined
    ? { recovery: 'compress_only', ...prompt }
    : { recovery: 'shrink_context', limit, ...prompt }
}

/** An output that is asked too much of; `maxOutput`: what may be asked for. */
export function overOutput(maxOutput: number | undefined): Overflow {
  return maxOutput === undefined
    ? { recovery: 'clamp_output_only' }
    : { recovery: 'clamp_output_only', maxOutput }
}

/** Input and output together are too much, and only their sum, or nothing, is stated. */
export function overTotal(limit: number | undefined): Overflow {
  return limit === undefined ? { recovery: 'unknown_overflow' } : { recovery: 'unknown_overflow', limit }
}
