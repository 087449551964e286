import { overWindow } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const sambanovaSequence: Quirk = {
  id: 'sambanova-sequence',
  provider: 'SambaNova',
  claims: 'The prompt and one token more against the sequence length.',
  source: 'community.sambanova.ai',
  read: says(
    /prompt is (\d+) tokens long[^\n]{0,120}maximum supported sequence length is just (\d+)/,
    (prompt = 0, limit = 0) => overWindow(prompt, limit),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            'Requested generation length 1 is not possible! The provided prompt is 9000 tokens long, so generating 1 tokens requires a sequence length of 9001, but the maximum supported sequence length is just 8192!',
        },
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9000,
    },
  ],
}
