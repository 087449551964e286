/** Usage of model calls: tokens, as providers count them, and cost. */

/** The tokens of one model call as its provider states them. */
export interface TokenUsage {
  /** All tokens of the prompt, or of all prompts where the provider asked the model several times. */
  readonly input: number
  /** Those of the last prompt, if there were several. */
  readonly lastInput?: number | undefined
  /** All tokens of the answer, reasoning included. */
  readonly output: number
  /** The parts of `input` that were read from and written to a cache. */
  readonly cachedInput?: number | undefined
  readonly cacheWrite?: number | undefined
  /** The part of `cacheWrite` that the cache keeps for an hour. */
  readonly hourWrite?: number | undefined
  /** The parts of `input`, but for what was read from a cache, and of `output` that are audio. */
  readonly audioInput?: number | undefined
  readonly audioOutput?: number | undefined
  /** The part of `output` that the client does not see. */
  readonly reasoning?: number | undefined
  /** The parts of all these that other models used than the one that was asked, such as its advisor. */
  readonly ofOthers?: readonly (TokenUsage & { readonly model: string })[] | undefined
}

/**
 * Returns usage of at least `total` tokens: what its parts lack is of the prompt beside cached tokens, else of the
 * answer.
 */
export function withTotal(usage: TokenUsage, total: number | undefined): TokenUsage {
  const { cachedInput = 0, cacheWrite = 0, reasoning = 0 } = usage
  const cached = cachedInput + cacheWrite
  const input = Math.max(usage.input, cached)
  const output = Math.max(usage.output, reasoning)
  const missing = Math.max(0, (total ?? 0) - input - output)
  const fresh = cached > usage.input ? Math.min(missing, usage.input) : missing === cached ? cached : 0
  return { ...usage, input: input + fresh, output: output + missing - fresh }
}

/** What a response says of its price, in the provider's words; unset where it says nothing. */
export interface StatedBill {
  /** US dollars. */
  readonly cost?: number | undefined
  /** The model that answered. */
  readonly model?: string | undefined
  /** OpenAI and others name a tier, Anthropic a speed and a region. */
  readonly tier?: string | undefined
  readonly speed?: string | undefined
  readonly region?: string | undefined
  /** How often the provider searched the web for it, which costs more than the tokens. */
  readonly searches?: number | undefined
}

/** What a response says of itself, for its span. */
export interface ResponseFacts {
  readonly id: string | undefined
  readonly model: string | undefined
  /** One for each choice of the response, in the provider's words. */
  readonly finishReasons: readonly string[]
}

/** A cost is not exact: calls of unknown price count 0 (`partial`), or as the provider's dearest model (`estimate`). */
export type CostGap = 'partial' | 'estimate'

/** The usage of one model call. */
export interface CallUsage extends TokenUsage {
  /** The part of the prompt that tools have brought since the answer before; unset for a request that is no step. */
  readonly added?: number
  /** US dollars; unset if the price is not known. */
  readonly cost?: number | undefined
  /** Unset where the price is known, or will be. */
  readonly costGap?: CostGap | undefined
  /** The tokens were not stated by the provider but estimated from the bytes. */
  readonly estimated: boolean
}

/** Estimates the tokens of a text of so many characters or bytes: four make one, roughly, in English and in code. */
export function estimateTokens(characters: number): number {
  return Math.ceil(characters / 4)
}
