import { overInput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const tensorrtPrompt: Quirk = {
  id: 'tensorrt-prompt',
  provider: 'TensorRT-LLM, NVIDIA NIM',
  claims: 'The prompt length over the input or sequence length.',
  source: 'triton-inference-server/tensorrtllm_backend#565, #141',
  read: says(/prompt length \((\d+)\) exceeds maximum (?:input|sequence) length \((\d+)\)/, (prompt, limit) =>
    overInput(limit, prompt),
  ),
  examples: [
    {
      status: 500,
      body: {
        error: {
          message:
            'Encountered an error when fetching new request: Prompt length (9001) exceeds maximum input length (8192).',
        },
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    },
  ],
}
