import { overWindow } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const sglangTotal: Quirk = {
  id: 'sglang-total',
  provider: 'SGLang',
  claims: 'Input and completion, with their sum.',
  source: 'sgl-project/sglang: requested token count exceeds',
  read: says(
    /maximum context length of (\d+) tokens\. you requested a total of \d+ tokens: (\d+) tokens from the input messages and \d+ tokens for the completion/,
    (limit = 0, prompt = 0) => overWindow(prompt, limit),
  ),
  examples: [
    {
      status: 400,
      body: {
        object: 'error',
        message:
          "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9001 tokens: 1001 tokens from the input messages and 8000 tokens for the completion.",
      },
      means: 'clamp_output_only',
      limit: 8192,
      promptTokens: 1001,
      maxOutput: 7191,
    },
  ],
}
