import { describe, expect, it } from 'vitest'
import { chat } from '../../src/dialect/chat/index.ts'
import type { AskedOutput } from '../../src/dialect/dialect.ts'

describe('a request with a lower cap of its output', () => {
  /** What is asked for, and the body with caps of these. */
  const lowered = (body: string, to?: AskedOutput) => {
    let asked: AskedOutput | undefined
    const after = chat.withLowerOutput?.(Buffer.from(body), (found) => {
      asked = found
      return to
    })
    return { asked, body: after?.toString() }
  }

  it.each([
    ['{"max_tokens": 90}', { cap: 90 }],
    ['{"max_completion_tokens":90,"max_tokens":70}', { cap: 90 }],
    ['{"max_tokens":90,"thinking":{"budget_tokens":40}}', { cap: 90, thinking: 40 }],
    ['{"max_tokens":90,"thinking":"auto"}', { cap: 90 }],
    ['{"max_tokens":90,"thinking":{"budget_tokens":"all"}}', { cap: 90 }],
    ['{"generationConfig":{"maxOutputTokens":90,"thinkingConfig":{"thinkingBudget":40}}}', { cap: 90, thinking: 40 }],
  ])('is read from %s', (body, asked) => {
    expect(lowered(body)).toEqual({ asked, body: undefined })
  })

  it.each(['{}', '{"max_tokens":0}', '{"max_tokens":-5}', '{"max_tokens":1.5}', '{"max_tokens":"90"}'])(
    'has no cap to lower: %s',
    (body) => {
      expect(lowered(body, { cap: 1 })).toEqual({ asked: undefined, body: undefined })
    },
  )

  it('changes only the caps that are above it, and the tokens for thinking', () => {
    const body = '{"max_completion_tokens":90, "max_tokens": 30,"thinking":{"budget_tokens":40},"n":1.0}'
    expect(lowered(body, { cap: 50, thinking: 20 }).body).toBe(
      '{"max_completion_tokens":50, "max_tokens": 30,"thinking":{"budget_tokens":20},"n":1.0}',
    )
    expect(lowered(body, { cap: 30, thinking: 40 }).body).toBe(
      '{"max_completion_tokens":30, "max_tokens": 30,"thinking":{"budget_tokens":40},"n":1.0}',
    )
    expect(lowered('{"max_tokens":90,"thinking":{}}', { cap: 50 }).body).toBe('{"max_tokens":50,"thinking":{}}')
  })
})

describe('the betas of a longer context', () => {
  const without = (...headers: readonly string[]) => chat.withoutLongContext?.(headers)

  it('are left out of their header, and the header where there are no others', () => {
    const both = ['Accept', 'x', 'Anthropic-Beta', 'context-1m-2025-08-07, tools-1', 'b', 'y']
    expect(without(...both)).toEqual(['Accept', 'x', 'Anthropic-Beta', 'tools-1', 'b', 'y'])
    expect(without('anthropic-beta', 'context-500k-1', 'b', 'y')).toEqual(['b', 'y'])
    expect(without('anthropic-beta', 'context-1m-1', 'anthropic-beta', 'tools-1')).toEqual([
      'anthropic-beta',
      'tools-1',
    ])
  })

  it('change nothing where there are none', () => {
    expect(without('anthropic-beta', 'tools-1,my-context-1m-x', 'x-beta', 'context-1m-1')).toBeUndefined()
    expect(without()).toBeUndefined()
  })
})
