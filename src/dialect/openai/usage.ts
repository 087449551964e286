/** Reads the usage that Chat Completions and Responses state. */
import { type Json, propertyOf } from '../../core/json-object.ts'
import type { TokenUsage } from '../../core/usage.ts'
import { tokens } from '../shared/usage-text.ts'

/** Reads a `usage` object with the names of OpenAI or of other providers; `undefined` if it states no tokens. */
export function tokenUsage(
  usage: Json,
  inputDetails: unknown,
  outputDetails: unknown,
): TokenUsage | undefined {
  const input = tokens(usage['prompt_tokens']) ?? tokens(usage['input_tokens'])
  const output = tokens(usage['completion_tokens']) ?? tokens(usage['output_tokens'])
  if (input === undefined && output === undefined) return undefined
  const cached =
    tokens(propertyOf(inputDetails, 'cached_tokens')) ??
    tokens(usage['prompt_cache_hit_tokens']) ??
    tokens(usage['cached_tokens'])
  return {
    input: input ?? 0,
    output: output ?? 0,
    cachedInput: cached === undefined ? undefined : Math.min(cached, input ?? 0),
    cacheWrite: undefined,
    reasoning: tokens(propertyOf(outputDetails, 'reasoning_tokens')),
  }
}
