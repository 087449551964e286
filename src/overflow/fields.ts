/** Takes the numbers of an overflow from the fields of an error, if its words state none. */
import { type Overflow, overInput } from '../core/overflow.ts'
import { readOverflow } from './reader/reader.ts'
import type { Reply } from './unwrap.ts'

const LIMITS = [
  'n_ctx',
  'max_context_length',
  'context_length',
  'context_window',
  'max_model_len',
  'max_input_tokens',
  'max_prompt_tokens',
  'context_limit',
]
const PROMPTS = [
  'n_prompt_tokens',
  'prompt_tokens',
  'input_tokens',
  'num_prompt_tokens',
  'prompt_token_count',
]

function firstOf({ numbers }: Reply, names: readonly string[]): number | undefined {
  for (const name of names) {
    const value = numbers.get(name)
    if (value !== undefined) return value
  }
  return undefined
}

/** Returns the overflow with the limit and the prompt from the fields, if the words state no limit. */
export function withFields(reply: Reply, overflow: Overflow): Overflow {
  if (overflow.recovery !== 'compress_only' && overflow.recovery !== 'unknown_overflow') return overflow
  const limit = firstOf(reply, LIMITS)
  const prompt = firstOf(reply, PROMPTS)
  if (limit === undefined || ('limit' in overflow && overflow.limit !== undefined)) return overflow
  return prompt !== undefined && prompt <= limit ? overflow : overInput(limit, prompt)
}

/** Returns the overflow of an error whose code says that the input is too large; its words may say more. */
export function inputTooLarge(reply: Reply): Overflow {
  const stated = readOverflow(reply.text, true)
  const saysMore = stated && (stated.recovery !== 'unknown_overflow' || stated.limit !== undefined)
  return withFields(reply, saysMore ? stated : { recovery: 'compress_only' })
}
