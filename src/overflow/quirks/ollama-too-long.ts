import { oneOf, type Quirk, says } from '../quirk.ts'

export const ollamaTooLong: Quirk = {
  id: 'ollama-too-long',
  provider: 'Ollama',
  claims: 'The prompt is too long by so many tokens, or just too long.',
  source: 'ollama/ollama, runner and server',
  read: oneOf(
    says(/prompt too long; exceeded max context length by (\d+) tokens/, (by = 0) => ({
      recovery: 'compress_only',
      overflowBy: by,
    })),
    says(
      /prompt is longer than the context length currently available|input (?:length )?exceeds (?:the )?(?:maximum )?context length/,
      () => ({ recovery: 'compress_only' }),
    ),
  ),
  examples: [
    {
      status: 400,
      body: { error: { message: 'prompt too long; exceeded max context length by 2013 tokens' } },
      means: 'compress_only',
      overflowBy: 2013,
    },
    { status: 400, body: { error: 'the input length exceeds the context length' }, means: 'compress_only' },
  ],
}
