import { type Quirk, says } from '../quirk.ts'

export const memory: Quirk = {
  id: 'memory',
  provider: 'llama.cpp, Ollama, vLLM, LM Studio',
  claims: 'The machine has too little memory; no shorter prompt is asked for.',
  source: 'ollama/ollama: model requires more system memory; vLLM KV cache check',
  read: says(
    /out of memory|system memory|memory (?:is )?(?:insufficient|available|required)|(?:insufficient|not enough|requires more) (?:system |gpu )?(?:memory|resources)|\boom\b|stored in kv cache|cuda error|\bvram\b|memory guard|available memory|memory budget|memory limit|failed to allocate|显存|内存不足/,
    () => 'none',
  ),
  examples: [
    {
      status: 500,
      body: { error: 'model requires more system memory (8.4 GiB) than is available (6.2 GiB)' },
      means: 'none',
    },
    {
      status: 500,
      body: {
        error: {
          message:
            "The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (40960).",
        },
      },
      means: 'none',
    },
  ],
}
