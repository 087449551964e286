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
  /** The part of `output` that the client does not see. */
  readonly reasoning?: number | undefined
}

/** Returns usage of at least `total` tokens: what its parts lack is of the prompt beside cached tokens, else of the answer. */
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

/** Returns the gap in the sum of two costs. */
export function gapOfSum(one: CostGap | undefined, other: CostGap | undefined): CostGap | undefined {
  return one === 'partial' || other === 'partial' ? 'partial' : (one ?? other)
}

/** The sums of many model calls, in tokens. */
export interface Usage {
  readonly input: number
  readonly output: number
  readonly cachedInput: number
  readonly cost: number
  /** Unset: all prices are known. */
  readonly costGap?: CostGap | undefined
  /** Some tokens were not stated by a provider but estimated from the bytes. */
  readonly estimated: boolean
}

export const NO_USAGE: Usage = { input: 0, output: 0, cachedInput: 0, cost: 0, estimated: false }

/** The usage of one model call. */
export interface CallUsage extends TokenUsage {
  /** US dollars; unset if the price is not known. */
  readonly cost?: number | undefined
  /** Unset where the price is known, or will be. */
  readonly costGap?: CostGap | undefined
  /** The tokens were not stated by the provider but estimated from the bytes. */
  readonly estimated: boolean
}

/** Returns the usage with one more call; `sum` is `undefined` before the first. */
export function addCall(sum: Usage | undefined, call: CallUsage): Usage {
  // A sum that an older version stored may lack a part.
  const { input = 0, output = 0, cachedInput = 0, cost = 0, costGap, estimated = false } = sum ?? NO_USAGE
  return {
    input: input + call.input,
    output: output + call.output,
    cachedInput: cachedInput + (call.cachedInput ?? 0),
    // Sums of fractions drift: round to a billionth of a dollar.
    cost: Math.round((cost + (call.cost ?? 0)) * 1e9) / 1e9,
    costGap: gapOfSum(costGap, call.costGap),
    estimated: estimated || call.estimated,
  }
}

/** Estimates the tokens of a text of so many characters or bytes: four make one, roughly, in English and in code. */
export function estimateTokens(characters: number): number {
  return Math.ceil(characters / 4)
}
