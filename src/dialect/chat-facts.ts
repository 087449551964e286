/** What a Chat Completions response says it took. */
import type { TokenUsage } from '../core/usage.ts'
import type { Facts, Tapped } from './dialect.ts'
import { inside, lastObject, lastText, tokens } from './usage-text.ts'

/** Reads a `usage` object, in OpenAI's words or in those of the providers that have their own. */
export function chatUsage(usage: unknown): TokenUsage | undefined {
  const input = tokens(inside(usage, 'prompt_tokens')) ?? tokens(inside(usage, 'input_tokens'))
  const output = tokens(inside(usage, 'completion_tokens')) ?? tokens(inside(usage, 'output_tokens'))
  if (input === undefined && output === undefined) return undefined
  const cachedInput =
    tokens(inside(inside(usage, 'prompt_tokens_details'), 'cached_tokens')) ??
    tokens(inside(usage, 'prompt_cache_hit_tokens')) ??
    tokens(inside(usage, 'cached_tokens'))
  const reasoning = tokens(inside(inside(usage, 'completion_tokens_details'), 'reasoning_tokens'))
  return {
    input: input ?? 0,
    output: output ?? 0,
    ...(cachedInput === undefined ? {} : { cachedInput: Math.min(cachedInput, input ?? 0) }),
    ...(reasoning === undefined ? {} : { reasoning }),
  }
}

/** It stands at the end of a whole response, and in the last chunk of a stream or, growing, in every one. */
export function chatFacts({ tail }: Tapped): Facts {
  const usage = chatUsage(lastObject(tail, 'usage'))
  return usage ? { usage } : {}
}

/** A list of calls that is not empty; in what the model wrote its quotes would be escaped. */
const CALLS = /"(?:tool_calls"\s{0,4}:\s{0,4}\[\s{0,4}\{|function_call"\s{0,4}:\s{0,4}\{)/

/** Some providers say `stop` beside calls, so that both are looked at. */
export function chatCallsNothing({ tail }: Tapped): boolean {
  const reason = lastText(tail, 'finish_reason')
  if (reason === undefined || reason === 'tool_calls' || reason === 'function_call') return false
  return !CALLS.test(tail.toString('latin1'))
}
