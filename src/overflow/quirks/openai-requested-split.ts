import { overWindow } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const openaiRequestedSplit: Quirk = {
  id: 'openai-requested-split',
  provider: 'OpenAI, vLLM, DeepSeek',
  claims: 'Messages and completion, each with its number.',
  source: 'platform.openai.com, completions and chat; api-docs.deepseek.com',
  read: says(
    /maximum context length is (\d+) tokens[.,] however,? you requested (?:about |~)?\d+ tokens \((\d+) in (?:the messages|your prompt)[,;] \d+ (?:in|for) the completion\)/,
    (limit = 0, prompt = 0) => overWindow(prompt, limit),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            "This model's maximum context length is 4097 tokens. However, you requested 5000 tokens (3000 in the messages, 2000 in the completion).",
        },
      },
      means: 'clamp_output_only',
      limit: 4097,
      promptTokens: 3000,
      maxOutput: 1097,
    },
    {
      status: 400,
      body: {
        error: {
          message:
            "This model's maximum context length is 4097 tokens, however you requested 5001 tokens (4745 in your prompt; 256 for the completion).",
        },
      },
      means: 'shrink_context',
      limit: 4097,
      promptTokens: 4745,
    },
  ],
}
