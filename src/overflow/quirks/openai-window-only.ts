import { type Quirk, says } from '../quirk.ts'

export const openaiWindowOnly: Quirk = {
  id: 'openai-window-only',
  provider: 'OpenAI, Codex',
  claims: 'The window is exceeded, and no number is given.',
  source: 'platform.openai.com, responses',
  read: says(
    /(?:your |the )?input exceeds the (?:context window|maximum context (?:length|window)) of this model/,
    () => ({ recovery: 'compress_only' }),
  ),
  examples: [
    {
      status: 200,
      body: {
        type: 'error',
        message:
          'Your input exceeds the context window of this model. Please adjust your input and try again.',
      },
      means: 'compress_only',
    },
  ],
}
