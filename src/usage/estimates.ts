/** What a request may use, by what the answers of its model have used so far. */
import { LRUCache } from 'lru-cache'
import { estimateTokens, type TokenUsage } from '../core/usage.ts'

/** The newest answers count most: the mean is one of about so many. */
const MOST_COUNTED = 50
/** The most models that are known: clients choose the names. */
const MAX_KNOWN = 1_000
/** Tokens of the answer of a model that has not answered yet. */
const UNKNOWN_OUTPUT = 4_096

interface Means {
  readonly answers: number
  /** Tokens. */
  readonly output: number
  /** Tokens of the prompt for each byte of the request. */
  readonly perByte: number
}

export type Estimates = ReturnType<typeof createEstimates>

/** Creates the estimates of a process. Models are known by their upstream too. */
export function createEstimates() {
  const known = new LRUCache<string, Means>({ max: MAX_KNOWN })
  return {
    /** Returns the tokens that a request of so many bytes may use; `cap`: of its answer, if it states one. */
    of(model: string, bytes: number, cap = Number.POSITIVE_INFINITY): TokenUsage & { readonly isGuess: boolean } {
      const means = known.get(model)
      const output = Math.ceil(Math.min(cap, means ? 2 * means.output : UNKNOWN_OUTPUT))
      return { input: means ? Math.ceil(bytes * means.perByte) : estimateTokens(bytes), output, isGuess: !means }
    },
    /** Learns from an answer whose provider states its tokens. */
    learn(model: string, bytes: number, { input, lastInput = input, output }: TokenUsage): void {
      const { answers, ...before } = known.get(model) ?? { answers: 0, output: 0, perByte: 0 }
      const weight = 1 / Math.min(answers + 1, MOST_COUNTED)
      const mean = (old: number, one: number) => old + (one - old) * weight
      const perByte = mean(before.perByte, lastInput / Math.max(1, bytes))
      known.set(model, { answers: answers + 1, output: mean(before.output, output), perByte })
    },
  }
}
