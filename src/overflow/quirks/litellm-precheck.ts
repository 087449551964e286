import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const litellmPrecheck: Quirk = {
  id: 'litellm-precheck',
  provider: 'LiteLLM',
  claims: 'No model of the group takes an input of this size.',
  source: 'BerriAI/litellm, pre-call checks',
  read: says(/max input tokens=(\d+), got=(\d+)/, (limit, prompt) => overInput(limit, prompt)),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            'litellm.ContextWindowExceededError: Context Window exceeded for given call.\nModel=gpt-4, Max Input Tokens=8192, Got=9001.',
        },
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    },
  ],
}
