import { overWindow } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const vllmRoom: Quirk = {
  id: 'vllm-room',
  provider: 'vLLM',
  claims: 'The output cap is larger than what the input leaves; the arithmetic stands in brackets.',
  source: 'vllm-project/vllm, get_max_tokens',
  read: says(
    /is too large: \d+\. this model's maximum context length is (\d+) tokens and your request has (\d+) input tokens/,
    (limit = 0, prompt = 0) => overWindow(prompt, limit),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 4096 tokens and your request has 96 input tokens (4096 > 4096 - 96). None",
        },
      },
      means: 'clamp_output_only',
      limit: 4096,
      promptTokens: 96,
      maxOutput: 4000,
    },
  ],
}
