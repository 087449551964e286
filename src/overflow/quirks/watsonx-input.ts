import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const watsonxInput: Quirk = {
  id: 'watsonx-input',
  provider: 'IBM watsonx',
  claims: 'Input tokens against the total that the model takes.',
  source: 'cloud.ibm.com/apidocs/watsonx-ai',
  read: says(/number of input tokens (\d+) cannot exceed the total tokens limit (\d+)/, (prompt, limit) =>
    overInput(limit, prompt),
  ),
  examples: [
    {
      status: 400,
      body: {
        errors: [
          {
            code: 'invalid_input_argument',
            message:
              'the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model',
          },
        ],
        status_code: 400,
      },
      means: 'shrink_context',
      limit: 4096,
      promptTokens: 5000,
    },
  ],
}
