/** What model calls take: tokens, as providers count them. */

/** The tokens of one model call as its provider states them. */
export interface TokenUsage {
  /** All tokens of the prompt, those read from and written to a cache included. */
  readonly input: number
  /** All tokens of the answer, reasoning included. */
  readonly output: number
  /** Of `input`, those that were read from a cache. */
  readonly cachedInput?: number | undefined
  /** Of `input`, those that were written to a cache. */
  readonly cacheWrite?: number | undefined
  /** Of `output`, those that the client does not see. */
  readonly reasoning?: number | undefined
}

/** The tokens of many model calls. */
export interface Usage {
  readonly input: number
  readonly output: number
  readonly cachedInput: number
  /** US dollars; of calls whose price is not known, none. */
  readonly cost: number
  /** Some of it was not stated by a provider but worked out from the bytes. */
  readonly estimated: boolean
}

export const NO_USAGE: Usage = { input: 0, output: 0, cachedInput: 0, cost: 0, estimated: false }

/** What one model call took, and whether its provider said so. */
export interface CallUsage extends TokenUsage {
  /** US dollars; unset where the price is not known. */
  readonly cost?: number | undefined
  readonly estimated: boolean
}

/** What model calls took and one more; `undefined`: there were none before. */
export function addCall(sum: Usage | undefined, call: CallUsage): Usage {
  const { input, output, cachedInput, cost, estimated } = sum ?? NO_USAGE
  return {
    input: input + call.input,
    output: output + call.output,
    cachedInput: cachedInput + (call.cachedInput ?? 0),
    // Sums of fractions drift; a billionth of a dollar is no money.
    cost: Math.round((cost + (call.cost ?? 0)) * 1e9) / 1e9,
    estimated: estimated || call.estimated,
  }
}

/** Characters a token stands for, roughly, in English text and in code. */
const CHARACTERS_PER_TOKEN = 4

/** How many tokens a text of so many characters, or bytes, may have. */
export function estimateTokens(characters: number): number {
  return Math.ceil(characters / CHARACTERS_PER_TOKEN)
}
