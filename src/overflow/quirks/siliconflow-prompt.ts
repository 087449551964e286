import { overInput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const siliconflowPrompt: Quirk = {
  id: 'siliconflow-prompt',
  provider: 'SiliconFlow',
  claims: 'prompt_tokens against max_seq_len or max_prompt_tokens.',
  source: 'langgenius/dify#19394; code 20015',
  read: oneOf(
    says(/length of prompt_tokens \((\d+)\) must be less than max_seq_len \((\d+)\)/, (prompt, limit) =>
      overInput(limit, prompt),
    ),
    says(/number of input tokens \((\d+)\) has exceeded max_prompt_tokens \((\d+)\)/, (prompt, limit) =>
      overInput(limit, prompt),
    ),
  ),
  examples: [
    {
      status: 400,
      body: {
        code: 20015,
        message: 'length of prompt_tokens (40000) must be less than max_seq_len (32768).',
        data: null,
      },
      means: 'shrink_context',
      limit: 32768,
      promptTokens: 40000,
    },
    {
      status: 400,
      body: {
        code: 20015,
        message: 'number of input tokens (210000) has exceeded max_prompt_tokens (202752) limit.',
        data: null,
      },
      means: 'shrink_context',
      limit: 202752,
      promptTokens: 210000,
    },
  ],
}
