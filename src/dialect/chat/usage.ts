/** Reads usage, and whether there are calls, from a relayed Chat Completions response. */
import type { TokenUsage } from '../../core/usage.ts'
import type { ResponseMetadata, ResponseTail } from '../dialect.ts'
import { type Json, propertyOf } from '../shared/json-object.ts'
import { lastObject, lastText, tokens } from '../shared/usage-text.ts'

/** Reads a `usage` object with the names of OpenAI or of other providers; `undefined` if it states no tokens. */
function chatUsage(usage: Json | undefined): TokenUsage | undefined {
  if (!usage) return undefined
  return tokenUsage(usage, usage['prompt_tokens_details'], usage['completion_tokens_details'])
}

/** Reads a `usage` object whose details have other names; `undefined` if it states no tokens. */
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

/** Reads the usage, which is at the end of a whole response, and in the last chunk of a stream or, growing, in every one. */
export function chatMetadata({ tail }: ResponseTail): ResponseMetadata {
  return { usage: chatUsage(lastObject(tail, 'usage')) }
}

/** A list of calls that is not empty. Text of the model can't match, as its quotes are escaped. */
const CALLS = /"(?:tool_calls"\s{0,4}:\s{0,4}\[\s{0,4}\{|function_call"\s{0,4}:\s{0,4}\{)/

/** True if the response certainly contains no tool calls. Some providers send `stop` beside calls, so it checks both. */
export function chatCallsNothing({ tail }: ResponseTail): boolean {
  const reason = lastText(tail, 'finish_reason')
  if (reason === undefined || reason === 'tool_calls' || reason === 'function_call') return false
  return !CALLS.test(tail.toString('latin1'))
}
