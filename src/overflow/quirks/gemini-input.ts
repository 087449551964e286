import { overInput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const geminiInput: Quirk = {
  id: 'gemini-input',
  provider: 'Google Gemini, Vertex AI',
  claims: 'The input token count against the maximum.',
  source: 'google-gemini/gemini-cli#12214; Vertex AI: only supports up to',
  read: oneOf(
    says(
      /input token count(?: \((\d+)\))? exceeds the maximum number of tokens allowed \((\d+)\)/,
      (prompt, limit) => overInput(limit, prompt),
    ),
    says(/input token count is (\d+) but (?:the )?model only supports up to (\d+)/, (prompt, limit) =>
      overInput(limit, prompt),
    ),
  ),
  examples: [
    {
      status: 400,
      body: [
        {
          error: {
            code: 400,
            message:
              'The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).',
            status: 'INVALID_ARGUMENT',
          },
        },
      ],
      means: 'shrink_context',
      limit: 1048576,
      promptTokens: 1100000,
    },
    {
      status: 400,
      body: {
        error: {
          code: 400,
          message:
            'Unable to submit request because the input token count is 40000 but model only supports up to 32767.',
          status: 'INVALID_ARGUMENT',
        },
      },
      means: 'shrink_context',
      limit: 32767,
      promptTokens: 40000,
    },
  ],
}
