import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const openaiMessagesResulted: Quirk = {
  id: 'openai-messages-resulted',
  provider: 'OpenAI',
  claims: 'The messages are longer than the window.',
  source: 'platform.openai.com, chat completions',
  read: says(
    /maximum context length is (\d+) tokens\. however, (?:your messages resulted in|your request has|the messages resulted in) (\d+) (?:input )?tokens/,
    (limit, prompt) => overInput(limit, prompt),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
          param: 'messages',
        },
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    },
  ],
}
