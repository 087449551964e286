import { overInput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const lmstudioKeep: Quirk = {
  id: 'lmstudio-keep',
  provider: 'LM Studio',
  claims: 'The tokens that it tries to keep do not fit into the context that the model was loaded with.',
  source: 'lmstudio-ai/lmstudio-bug-tracker',
  read: oneOf(
    says(
      /keep the first (\d+) tokens when context the overflows\. however, the model is loaded with context length of only (\d+) tokens/,
      (prompt, limit) => overInput(limit, prompt),
    ),
    says(/n_keep[: (]{1,3}(\d+)\)? ?>= ?n_ctx[: (]{1,3}(\d+)/, (prompt, limit) => overInput(limit, prompt)),
    says(/tokens to keep from the initial prompt is greater than the context length/, () => ({
      recovery: 'compress_only',
    })),
  ),
  examples: [
    {
      status: 400,
      body: {
        error:
          'Trying to keep the first 9001 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.',
      },
      means: 'shrink_context',
      limit: 4096,
      promptTokens: 9001,
    },
    {
      status: 400,
      body: {
        error:
          'The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 5000>= n_ctx: 4096).',
      },
      means: 'shrink_context',
      limit: 4096,
      promptTokens: 5000,
    },
    {
      status: 400,
      body: {
        error: 'The number of tokens to keep from the initial prompt is greater than the context length.',
      },
      means: 'compress_only',
    },
  ],
}
