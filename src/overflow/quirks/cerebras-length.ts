import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const cerebrasLength: Quirk = {
  id: 'cerebras-length',
  provider: 'Cerebras',
  claims: 'The current length while the limit is lower.',
  source: 'cline/cline#5140',
  read: says(/current length is (\d+) while limit is (\d+)/, (length, limit) => overInput(limit, length)),
  examples: [
    {
      status: 400,
      body: {
        message:
          'Please reduce the length of the messages or completion. Current length is 42000 while limit is 40000',
        type: 'invalid_request_error',
      },
      means: 'shrink_context',
      limit: 40000,
      promptTokens: 42000,
    },
  ],
}
