/** Reads usage, and whether there are calls, from a relayed Chat Completions response. */
import type { ResponseMetadata, ResponseTail } from '../dialect.ts'
import { tokenUsage } from '../openai/usage.ts'
import { lastObject, lastText } from '../shared/usage-text.ts'

/** Reads the usage: at the end of a whole response, and in the last chunk of a stream or, growing, in every one. */
export function chatMetadata({ tail }: ResponseTail): ResponseMetadata {
  const usage = lastObject(tail, 'usage')
  return {
    usage: usage && tokenUsage(usage, usage['prompt_tokens_details'], usage['completion_tokens_details']),
  }
}

/** A list of calls that is not empty. Text of the model can't match, as its quotes are escaped. */
const CALLS = /"(?:tool_calls"\s{0,4}:\s{0,4}\[\s{0,4}\{|function_call"\s{0,4}:\s{0,4}\{)/

/** True if the response certainly contains no tool calls. Some providers send `stop` beside calls. */
export function chatCallsNothing({ tail }: ResponseTail): boolean {
  const reason = lastText(tail, 'finish_reason')
  if (reason === undefined || reason === 'tool_calls' || reason === 'function_call') return false
  return !CALLS.test(tail.toString('latin1'))
}
