import { describe, expect, it } from 'vitest'
import { declaredWindows } from '../../../src/proxy/overflow/model-list.ts'

describe('a list of models', () => {
  it.each([
    ['vLLM', { data: [{ id: 'm', max_model_len: 8192 }] }, 8192],
    ['OpenRouter', { data: [{ id: 'm', context_length: 131072, top_provider: { context_length: 65536 } }] }, 65536],
    ['Groq', { data: [{ id: 'm', context_window: 131072 }] }, 131072],
    ['LM Studio', { data: [{ id: 'm', max_context_length: 131072, loaded_context_length: 4096 }] }, 4096],
    ['llama.cpp', { data: [{ id: 'm', meta: { n_ctx: 4096, n_ctx_train: 32768 } }] }, 4096],
    ['Google', { models: [{ name: 'models/m', inputTokenLimit: 1048576 }] }, 1048576],
    ['a single model', { id: 'm', context_length: 4096 }, 4096],
    ['a bare array', [{ id: 'm', context_length: '4096' }], 4096],
  ])('in the form of %s declares windows', (_, body, window) => {
    expect(declaredWindows(body)).toEqual([{ model: 'm', window }])
  })

  it.each([[null], ['text'], [{ data: [{ id: 'm' }] }], [{ data: [{ context_length: 1 }] }], [{ data: 3 }]])(
    'declares no window when it is %j',
    (body) => {
      expect(declaredWindows(body)).toEqual([])
    },
  )
})
