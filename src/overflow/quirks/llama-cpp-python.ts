import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const llamaCppPython: Quirk = {
  id: 'llama-cpp-python',
  provider: 'llama-cpp-python',
  claims: 'The tokens of the prompt against the window.',
  source: 'abetlen/llama-cpp-python, Llama.create_completion',
  read: says(/requested tokens \((\d+)\) exceed context window of (\d+)/, (prompt, limit) =>
    overInput(limit, prompt),
  ),
  examples: [
    {
      status: 500,
      body: { error: { message: 'Requested tokens (2300) exceed context window of 2048' } },
      means: 'shrink_context',
      limit: 2048,
      promptTokens: 2300,
    },
  ],
}
