import { overTotal } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const workersAi5021: Quirk = {
  id: 'workers-ai-5021',
  provider: 'Cloudflare Workers AI',
  claims: 'Code 5021: an estimate of input and output together is larger than the window.',
  source: 'developers.cloudflare.com/workers-ai error 5021',
  read: says(
    /estimated number of input and maximum output tokens \(\d+\) exceeded this model context window limit \((\d+)\)/,
    (limit) => overTotal(limit),
  ),
  examples: [
    {
      status: 413,
      body: {
        errors: [
          {
            code: 5021,
            message:
              'AiError: The estimated number of input and maximum output tokens (90001) exceeded this model context window limit (32000).',
          },
        ],
        success: false,
      },
      means: 'unknown_overflow',
      limit: 32000,
    },
  ],
}
