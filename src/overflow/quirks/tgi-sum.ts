import { overInput, overWindow } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const tgiSum: Quirk = {
  id: 'tgi-sum',
  provider: 'Text Generation Inference, Together',
  claims: 'Inputs and max_new_tokens, with both numbers.',
  source: 'huggingface/text-generation-inference, router validation',
  read: oneOf(
    says(
      /inputs tokens \+ max_new_tokens must be <= (\d+)\. given: (\d+) inputs tokens and \d+ max_new_tokens/,
      (limit = 0, prompt = 0) => overWindow(prompt, limit),
    ),
    says(/inputs must have less than (\d+) tokens\. given: (\d+)/, (limit, prompt) =>
      overInput(limit, prompt),
    ),
  ),
  examples: [
    {
      status: 422,
      body: {
        error:
          'Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 200 `max_new_tokens`',
        error_type: 'validation',
      },
      means: 'clamp_output_only',
      limit: 4096,
      promptTokens: 4000,
      maxOutput: 96,
    },
    {
      status: 422,
      body: {
        error: 'Input validation error: `inputs` must have less than 1024 tokens. Given: 1500',
        error_type: 'validation',
      },
      means: 'shrink_context',
      limit: 1024,
      promptTokens: 1500,
    },
  ],
}
