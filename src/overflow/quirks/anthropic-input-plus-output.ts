import { overWindow } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const anthropicInputPlusOutput: Quirk = {
  id: 'anthropic-input-plus-output',
  provider: 'Anthropic',
  claims: 'Input and max_tokens together, as a sum over the window.',
  source: 'docs.anthropic.com: input length and max_tokens exceed context limit',
  read: says(
    /exceed context limit:? ?\(?(?:i\.?e\.?,? ?)?(\d+) \+ (\d+) > (\d+)/,
    (prompt = 0, _, limit = 0) => overWindow(prompt, limit),
  ),
  examples: [
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message:
            'input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again',
        },
      },
      means: 'clamp_output_only',
      limit: 200000,
      promptTokens: 190000,
      maxOutput: 10000,
    },
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message: 'input length and max_tokens exceed context limit (i.e 201000 + 1024 > 200000)',
        },
      },
      means: 'shrink_context',
      limit: 200000,
      promptTokens: 201000,
    },
  ],
}
