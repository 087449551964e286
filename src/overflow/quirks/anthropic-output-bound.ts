import { overOutput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const anthropicOutputBound: Quirk = {
  id: 'anthropic-output-bound',
  provider: 'Anthropic',
  claims: 'max_tokens above what the model can write.',
  source: 'docs.anthropic.com: maximum allowed number of output tokens',
  read: says(/max_tokens: \d+ > (\d+),? which is the maximum/, (most) => overOutput(most)),
  examples: [
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message:
            'max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for the model',
        },
      },
      means: 'clamp_output_only',
      maxOutput: 8192,
    },
  ],
}
