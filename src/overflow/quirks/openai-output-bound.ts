import { overOutput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const openaiOutputBound: Quirk = {
  id: 'openai-output-bound',
  provider: 'OpenAI',
  claims: 'An output cap above what the model can write.',
  source: 'platform.openai.com: max_tokens is too large',
  read: oneOf(
    says(
      /max_(?:completion_|output_)?tokens is too large: \d+\. this model supports at most (\d+) (?:completion|output) tokens/,
      (most) => overOutput(most),
    ),
    says(/invalid '?max_\w*tokens'?: integer above maximum value\. expected a value <= (\d+)/, (most) =>
      overOutput(most),
    ),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            'max_tokens is too large: 9000. This model supports at most 4096 completion tokens, whereas you provided 9000.',
          param: 'max_tokens',
        },
      },
      means: 'clamp_output_only',
      maxOutput: 4096,
    },
    {
      status: 400,
      body: {
        error: {
          message:
            "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 16384, but got 20000 instead.",
          code: 'integer_above_max_value',
        },
      },
      means: 'clamp_output_only',
      maxOutput: 16384,
    },
    {
      status: 400,
      body: {
        errors: [
          {
            code: 5006,
            message:
              'AiError: max_completion_tokens is too large: 9000. This model supports at most 4096 completion tokens.',
          },
        ],
      },
      means: 'clamp_output_only',
      maxOutput: 4096,
    },
  ],
}
