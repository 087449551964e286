import { overInput, overOutput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const cohereTooMany: Quirk = {
  id: 'cohere-too-many',
  provider: 'Cohere',
  claims: 'Too many tokens: of the prompt, of the output, or by a size that is exceeded.',
  source: 'docs.cohere.com/reference/errors',
  read: oneOf(
    says(/max tokens must be less than or equal to (\d+)/, (most) => overOutput(most)),
    says(/tokens in the prompt cannot exceed (\d+) - received (\d+)/, (limit, prompt) =>
      overInput(limit, prompt),
    ),
    says(
      /size limit exceeded by (\d+) tokens[^\n]{0,160}limit for this model is (\d+) tokens/,
      (overflowBy = 0, limit = 0) => ({ recovery: 'shrink_context', limit, overflowBy }),
    ),
    says(/size limit exceeded by (\d+) tokens/, (by = 0) => ({ recovery: 'compress_only', overflowBy: by })),
  ),
  examples: [
    {
      status: 400,
      body: {
        message:
          'too many tokens: size limit exceeded by 900 tokens. Try using shorter inputs. The limit for this model is 4096 tokens.',
      },
      means: 'shrink_context',
      limit: 4096,
      overflowBy: 900,
    },
    {
      status: 400,
      body: {
        message:
          'too many tokens: max tokens must be less than or equal to 4096, the maximum output length for this model - received 9000.',
      },
      means: 'clamp_output_only',
      maxOutput: 4096,
    },
    {
      status: 400,
      body: {
        message: 'too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4500.',
      },
      means: 'shrink_context',
      limit: 4081,
      promptTokens: 4500,
    },
    {
      status: 400,
      body: {
        message:
          'too many tokens: minimal context could not be added to prompt (size limit exceeded by 300 tokens)',
      },
      means: 'compress_only',
      overflowBy: 300,
    },
  ],
}
