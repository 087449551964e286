import { overTotal } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const vllmPassedTokens: Quirk = {
  id: 'vllm-passed-tokens',
  provider: 'vLLM',
  claims: 'It stops counting at the limit, so that its count of input tokens says nothing about the prompt.',
  source: 'vllm-project/vllm, vllm/renderers/params.py: tokenising is cut at limit - output + 1',
  read: oneOf(
    says(
      /you passed \d+ input tokens and requested \d+ output tokens\. however, the model's context length is only (\d+) tokens/,
      (limit) => overTotal(limit),
    ),
    says(
      /context length is (\d+) tokens\. however, you requested \d+ output tokens and your prompt contains at least \d+ input tokens/,
      (limit) => overTotal(limit),
    ),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            "You passed 7169 input tokens and requested 1024 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 7168 tokens.",
        },
      },
      means: 'unknown_overflow',
      limit: 8192,
    },
    {
      status: 400,
      body: {
        error: {
          message:
            "This model's maximum context length is 8192 tokens. However, you requested 1024 output tokens and your prompt contains at least 7169 input tokens, for a total of at least 8193 tokens.",
        },
      },
      means: 'unknown_overflow',
      limit: 8192,
    },
  ],
}
