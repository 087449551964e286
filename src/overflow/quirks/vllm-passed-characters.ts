import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const vllmPassedCharacters: Quirk = {
  id: 'vllm-passed-characters',
  provider: 'vLLM',
  claims: 'So many characters that they were not even counted as tokens.',
  source: 'vllm-project/vllm, vllm/renderers/params.py: text length check',
  read: says(
    /you passed \d+ input characters[^.]{0,60}\. however, the model's context length is only (\d+) tokens/,
    (limit) => overInput(limit, undefined),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            "You passed 900000 input characters and requested 16 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 8176 tokens (at most 65408 characters).",
        },
      },
      means: 'shrink_context',
      limit: 8192,
    },
  ],
}
