import { describe, expect, it } from 'vitest'
import { classify } from '../../src/overflow/classify.ts'
import { customQuirk } from '../../src/overflow/custom.ts'
import { declaredWindows } from '../../src/overflow/listing.ts'
import { QUIRKS } from '../../src/overflow/quirks/index.ts'

const refused = (message: string, status = 400, more: object = {}) => ({
  status,
  body: { error: { message, ...more } },
})

describe('a quirk from the configuration', () => {
  it('comes before the built-in ones and takes its limit from a named group', () => {
    const own = customQuirk({
      id: 'house-gateway',
      match: { status: 400, text: 'budget of (?P<limit>[\\d,]+) units' },
      recovery: 'shrink_context',
      limitFrom: 'limit',
    })
    expect(classify(refused('over the Budget of 131,072 units'), [own, ...QUIRKS])).toEqual({
      quirk: 'house-gateway',
      overflow: { recovery: 'shrink_context', limit: 131_072 },
    })
    expect(classify(refused('over the budget of 131,072 units', 422), [own, ...QUIRKS])).toBeUndefined()
  })

  it('takes its limit from a field of the reply', () => {
    const own = customQuirk({
      id: 'own',
      match: { code: 'TOO_BIG' },
      recovery: 'shrink_context',
      limitFrom: 'error.window',
    })
    expect(classify(refused('no', 400, { code: 'too_big', window: 4096 }), [own])?.overflow).toEqual({
      recovery: 'shrink_context',
      limit: 4096,
    })
  })

  it('can say that something is no overflow', () => {
    const own = customQuirk({ id: 'own', match: { text: 'prompt is too long' }, recovery: 'not_overflow' })
    expect(classify(refused('prompt is too long: 9 tokens > 8 maximum'), [own, ...QUIRKS])).toBeUndefined()
  })

  it('is refused where its pattern could be slow', () => {
    const quirk = (text: string) => () =>
      customQuirk({ id: 'own', match: { text }, recovery: 'compress_only' })
    expect(quirk('(a)\\1')).toThrow(/escape/)
    expect(quirk('(?=a)b')).toThrow()
    expect(quirk('(unclosed')).toThrow()
  })

  it('is fast on any text, with any pattern that is taken', () => {
    const own = customQuirk({ id: 'own', match: { text: '(a+)+$' }, recovery: 'compress_only' })
    const began = performance.now()
    expect(classify(refused(`${'a'.repeat(60_000)}!`), [own])).toBeUndefined()
    expect(performance.now() - began).toBeLessThan(1_000)
  })
})

describe('a list of models', () => {
  it.each([
    ['vLLM', { data: [{ id: 'm', max_model_len: 8192 }] }, 8192],
    [
      'OpenRouter',
      { data: [{ id: 'm', context_length: 131072, top_provider: { context_length: 65536 } }] },
      65536,
    ],
    ['Groq', { data: [{ id: 'm', context_window: 131072 }] }, 131072],
    ['LM Studio', { data: [{ id: 'm', max_context_length: 131072, loaded_context_length: 4096 }] }, 4096],
    ['llama.cpp', { data: [{ id: 'm', meta: { n_ctx: 4096, n_ctx_train: 32768 } }] }, 4096],
    ['Google', { models: [{ name: 'models/m', inputTokenLimit: 1048576 }] }, 1048576],
    ['a single model', { id: 'm', context_length: 4096 }, 4096],
    ['a bare array', [{ id: 'm', context_length: '4096' }], 4096],
  ])('of %s declares windows', (_, body, window) => {
    expect(declaredWindows(body)).toEqual([{ model: 'm', window }])
  })

  it.each([[null], ['text'], [{ data: [{ id: 'm' }] }], [{ data: [{ context_length: 1 }] }], [{ data: 3 }]])(
    'declares nothing in %j',
    (body) => {
      expect(declaredWindows(body)).toEqual([])
    },
  )
})
