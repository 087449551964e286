import { overInput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const sglangInput: Quirk = {
  id: 'sglang-input',
  provider: 'SGLang, Together',
  claims: 'The input is longer than the context.',
  source: 'sgl-project/sglang, tokenizer manager',
  read: oneOf(
    says(
      /the input \((\d+) tokens\) is longer than the model's context length \((\d+) tokens\)/,
      (prompt, limit) => overInput(limit, prompt),
    ),
    says(
      /input length \((\d+) tokens\) exceeds the maximum allowed length \((\d+) tokens\)/,
      (prompt, limit) => overInput(limit, prompt),
    ),
  ),
  examples: [
    {
      status: 400,
      body: {
        object: 'error',
        message: "The input (9001 tokens) is longer than the model's context length (8192 tokens).",
        code: 400,
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    },
    {
      status: 400,
      body: {
        object: 'error',
        message: 'Input length (9001 tokens) exceeds the maximum allowed length (8186 tokens).',
        code: 400,
      },
      means: 'shrink_context',
      limit: 8186,
      promptTokens: 9001,
    },
  ],
}
