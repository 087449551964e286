import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const mistralTooLarge: Quirk = {
  id: 'mistral-too-large',
  provider: 'Mistral',
  claims: 'The prompt is too large for the model.',
  source: 'api.mistral.ai, code 3051',
  read: says(
    /prompt contains (\d+) tokens[^.\n]{0,60}too large for model with (\d+) maximum context length/,
    (prompt, limit) => overInput(limit, prompt),
  ),
  examples: [
    {
      status: 400,
      body: {
        object: 'error',
        message:
          'Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length',
        type: 'invalid_request_prompt',
        code: '3051',
      },
      means: 'shrink_context',
      limit: 32768,
      promptTokens: 40000,
    },
  ],
}
