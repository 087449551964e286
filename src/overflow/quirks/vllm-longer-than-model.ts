import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const vllmLongerThanModel: Quirk = {
  id: 'vllm-longer-than-model',
  provider: 'vLLM',
  claims: 'The prompt alone is longer than the model length.',
  source: 'vllm-project/vllm, processor checks',
  read: says(
    /prompt(?: \(length (\d+)\)| \(total length (\d+)\)) is (?:too long to fit into the model \((?:context length )?|longer than the maximum model length of )(\d+)?/,
    (prompt, total, limit) => overInput(limit, prompt ?? total),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            'The decoder prompt (length 9001) is longer than the maximum model length of 8192. Make sure that `max_model_len` is no smaller than the number of text tokens.',
        },
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    },
  ],
}
