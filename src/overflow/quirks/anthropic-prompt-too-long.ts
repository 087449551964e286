import { overInput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const anthropicPromptTooLong: Quirk = {
  id: 'anthropic-prompt-too-long',
  provider: 'Anthropic',
  claims: 'The prompt, with both numbers or with none.',
  source: 'docs.anthropic.com/en/api/errors; anthropics/claude-code',
  read: oneOf(
    says(/prompt is too long: (\d+) tokens > (\d+) maximum/, (prompt, limit) => overInput(limit, prompt)),
    says(/^(?:[^.\n]{0,120}: ?)?(?:\d{3} )?prompt is too long\.?$/m, () => overInput(undefined, undefined)),
  ),
  examples: [
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message: 'prompt is too long: 205000 tokens > 200000 maximum',
        },
      },
      means: 'shrink_context',
      limit: 200000,
      promptTokens: 205000,
    },
    {
      status: 400,
      body: { type: 'error', error: { type: 'invalid_request_error', message: 'prompt is too long' } },
      means: 'compress_only',
    },
  ],
}
