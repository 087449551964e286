/** What a Chat Completions response says it took. */
import type { TokenUsage } from '../../core/usage.ts'
import type { ResponseMetadata, ResponseTail } from '../dialect.ts'
import { type Json, propertyOf } from '../shared/json-object.ts'
import { lastObject, lastText, tokens } from '../shared/usage-text.ts'

/** Reads a `usage` object, in OpenAI's words or in those of the providers that have their own. */
export function chatUsage(usage: Json | undefined): TokenUsage | undefined {
  if (!usage) return undefined
  return tokenUsage(usage, usage['prompt_tokens_details'], usage['completion_tokens_details'])
}

/** The same for a `usage` whose details stand elsewhere. */
export function tokenUsage(usage: Json, ofInput: unknown, ofOutput: unknown): TokenUsage | undefined {
  const input = tokens(usage['prompt_tokens']) ?? tokens(usage['input_tokens'])
  const output = tokens(usage['completion_tokens']) ?? tokens(usage['output_tokens'])
  if (input === undefined && output === undefined) return undefined
  const cached =
    tokens(propertyOf(ofInput, 'cached_tokens')) ??
    tokens(usage['prompt_cache_hit_tokens']) ??
    tokens(usage['cached_tokens'])
  return {
    input: input ?? 0,
    output: output ?? 0,
    cachedInput: cached === undefined ? undefined : Math.min(cached, input ?? 0),
    cacheWrite: undefined,
    reasoning: tokens(propertyOf(ofOutput, 'reasoning_tokens')),
  }
}

/** It stands at the end of a whole response, and in the last chunk of a stream or, growing, in every one. */
export function chatMetadata({ tail }: ResponseTail): ResponseMetadata {
  return { usage: chatUsage(lastObject(tail, 'usage')) }
}

/** A list of calls that is not empty; in what the model wrote its quotes would be escaped. */
const CALLS = /"(?:tool_calls"\s{0,4}:\s{0,4}\[\s{0,4}\{|function_call"\s{0,4}:\s{0,4}\{)/

/** Some providers say `stop` beside calls, so that both are looked at. */
export function chatCallsNothing({ tail }: ResponseTail): boolean {
  const reason = lastText(tail, 'finish_reason')
  if (reason === undefined || reason === 'tool_calls' || reason === 'function_call') return false
  return !CALLS.test(tail.toString('latin1'))
}
