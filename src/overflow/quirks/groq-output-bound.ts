import { overOutput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const groqOutputBound: Quirk = {
  id: 'groq-output-bound',
  provider: 'Groq',
  claims: 'An output cap above what the model can write.',
  source: 'console.groq.com: max_tokens must be less than or equal to',
  read: says(/max_(?:completion_)?tokens must be less than or equal to (\d+)/, (most) => overOutput(most)),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            '`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model',
        },
      },
      means: 'clamp_output_only',
      maxOutput: 8192,
    },
  ],
}
