import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const xaiPrompt: Quirk = {
  id: 'xai-prompt',
  provider: 'xAI',
  claims: 'The maximum prompt length, and what the request contains.',
  source: 'docs.x.ai',
  read: says(/maximum prompt length is (\d+) but the request contains (\d+) tokens/, (limit, prompt) =>
    overInput(limit, prompt),
  ),
  examples: [
    {
      status: 400,
      body: {
        code: 'invalid-argument',
        error: "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
      },
      means: 'shrink_context',
      limit: 131072,
      promptTokens: 140000,
    },
    {
      status: 400,
      body: {
        error: {
          message:
            'litellm.BadRequestError: XaiException - {"code":"invalid-argument","error":"This model\'s maximum prompt length is 131072 but the request contains 140000 tokens."}',
        },
      },
      means: 'shrink_context',
      limit: 131072,
      promptTokens: 140000,
    },
  ],
}
