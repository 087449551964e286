/** Numbers that stand in fields of an error rather than in its words. */
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

/** What the words say, with a limit from the fields where the words have none. */
export function withFields(reply: Reply, overflow: Overflow): Overflow {
  if (overflow.recovery !== 'compress_only' && overflow.recovery !== 'unknown_overflow') return overflow
  const limit = firstOf(reply, LIMITS)
  const prompt = firstOf(reply, PROMPTS)
  if (limit === undefined || ('limit' in overflow && overflow.limit !== undefined)) return overflow
  return prompt !== undefined && prompt <= limit ? overflow : overInput(limit, prompt)
}

/** What a reply means whose code says that the input is too large: the words may say more, and seldom less. */
export function inputTooLarge(reply: Reply): Overflow {
  const stated = readOverflow(reply.text, true)
  const isTold = stated && (stated.recovery !== 'unknown_overflow' || stated.limit !== undefined)
  return withFields(reply, isTold ? stated : { recovery: 'compress_only' })
}
