import { overTotal } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const moonshotTokenLimit: Quirk = {
  id: 'moonshot-token-limit',
  provider: 'Moonshot',
  claims: 'Input and max_tokens together are over the limit; only their sum is given.',
  source: 'platform.moonshot.ai error codes: tokens of the request plus max_tokens',
  read: says(/exceeded model token limit(?:: ?(\d+))?/, (limit) => overTotal(limit)),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message: 'Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)',
        },
      },
      means: 'unknown_overflow',
      limit: 262144,
    },
  ],
}
