import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const fireworksPrompt: Quirk = {
  id: 'fireworks-prompt',
  provider: 'Fireworks',
  claims: 'The prompt and the maximum context length of the model.',
  source: 'docs.fireworks.ai',
  read: says(/the prompt is too long: (\d+), model maximum context length: (\d+)/, (prompt, limit) =>
    overInput(limit, prompt),
  ),
  examples: [
    {
      status: 400,
      body: { error: { message: 'The prompt is too long: 140000, model maximum context length: 131071' } },
      means: 'shrink_context',
      limit: 131071,
      promptTokens: 140000,
    },
  ],
}
