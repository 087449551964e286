import { hasCode, type Quirk } from '../quirk.ts'
import { readOverflow } from '../reader/reader.ts'

const CODES = new Set([
  'model_max_prompt_tokens_exceeded',
  'max_prompt_tokens_exceeded',
  'tokens_limit_reached',
  'prompt_too_long',
  'input_too_long',
  'prompt_too_large',
  'prompttoolong',
  'inputtoolong',
])

export const promptTokensCode: Quirk = {
  id: 'prompt-tokens-code',
  provider: 'GitHub Copilot, GitHub Models',
  claims: 'Codes that are about the prompt alone; its message holds the numbers.',
  source: 'error codes model_max_prompt_tokens_exceeded and tokens_limit_reached',
  read: (reply) =>
    hasCode(reply, CODES) ? (readOverflow(reply.text, true) ?? { recovery: 'compress_only' }) : undefined,
  examples: [
    {
      status: 400,
      body: {
        error: {
          code: 'model_max_prompt_tokens_exceeded',
          message: 'prompt token count of 140001 exceeds the limit of 128000',
        },
      },
      means: 'shrink_context',
      limit: 128000,
      promptTokens: 140001,
    },
    {
      status: 413,
      body: {
        error: {
          code: 'tokens_limit_reached',
          message: 'Request body too large for gpt-4o model. Max size: 8000 tokens.',
        },
      },
      means: 'shrink_context',
      limit: 8000,
    },
  ],
}
