import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { readOverflow } from '../../src/overflow/reader/reader.ts'
import { normalised, plainNumbers } from '../../src/overflow/reader/text.ts'

const read = (text: string) => readOverflow(normalised(text))

describe('the general reader of overflow errors', () => {
  it('normalizes numbers, however they are written', () => {
    expect(plainNumbers('131,072; 131 072; 131_072; 131072.0')).toBe('131072; 131072; 131072; 131072')
    expect(plainNumbers('128k, 1.0m context, 12.8万')).toBe('128000, 1000000 context, 128000')
    expect(plainNumbers('gpt-4-32k llama-3.3-70b 2024-08-01')).toBe('gpt-4-32k llama-3.3-70b 2024-08-01')
    expect(plainNumbers('131.072 tokens, limit 128.000, $1.250, 2.345 s')).toBe(
      '131072 tokens, limit 128000, $1.250, 2.345 s',
    )
    expect(plainNumbers('version 1.234')).toBe('version 1.234')
    expect(plainNumbers('1.2m tokens > 1m maximum')).toBe('1200000 tokens > 1000000 maximum')
    expect(plainNumbers('[1, 8192]')).toBe('[1, 8192]')
  })

  it('distinguishes the limit from the prompt, in any order, for any two numbers', () => {
    const sentences: ((prompt: string, limit: string) => string)[] = [
      (prompt, limit) => `Your prompt has ${prompt} tokens but the model takes at most ${limit}`,
      (prompt, limit) => `The maximum context is ${limit} tokens and your input contains ${prompt} tokens`,
      (prompt, limit) => `Input of ${prompt} tokens exceeds the ${limit}-token context window`,
      (prompt, limit) => `Prompt too long (${prompt} > ${limit})`,
      (prompt, limit) => `Context window of ${limit} tokens exceeded: the request has ${prompt} tokens`,
      (prompt, limit) => `context limit (${limit}) exceeded, got ${prompt} tokens`,
      (prompt, limit) => `Your request is over the ${limit} token limit: it has ${prompt} tokens`,
      (prompt, limit) => `The context window is ${limit} tokens, but ${prompt} tokens were given`,
      (prompt, limit) => `Context limit exceeded: input tokens ${prompt}, limit ${limit}`,
      (prompt, limit) => `number of prompt tokens must not exceed ${limit} (got ${prompt})`,
      (prompt, limit) => `输入长度 ${prompt} 超过了模型的最大长度 ${limit}`,
    ]
    const written = fc.constantFrom(
      (count: number) => String(count),
      (count: number) => count.toLocaleString('en-US'),
      (count: number) => count.toLocaleString('en-US').replaceAll(',', '_'),
    )
    fc.assert(
      fc.property(
        fc.constantFrom(...sentences),
        fc.integer({ min: 1_100, max: 1_000_000 }),
        fc.integer({ min: 1, max: 900_000 }),
        written,
        (sentence, limit, more, write) => {
          expect(read(sentence(write(limit + more), write(limit)))).toEqual({
            recovery: 'shrink_context',
            limit,
            promptTokens: limit + more,
          })
        },
      ),
    )
  })

  it('computes the room for the output from any prompt size', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1_100, max: 500_000 }),
        fc.integer({ min: 100, max: 400_000 }),
        fc.integer({ min: 1, max: 100_000 }),
        (limit, share, more) => {
          const prompt = Math.max(600, share % limit)
          const output = limit - prompt + more
          const text = `prompt (${prompt} tokens) + max_tokens (${output}) exceeds the context length (${limit})`
          expect(read(text)).toEqual({
            recovery: 'clamp_output_only',
            limit,
            promptTokens: prompt,
            maxOutput: limit - prompt,
          })
        },
      ),
    )
  })

  it.each([
    ['The prompt is 1,200 tokens over the limit', { recovery: 'compress_only', overflowBy: 1_200 }],
    ['exceeds max context length by 1200 tokens', { recovery: 'compress_only', overflowBy: 1_200 }],
    ['max_tokens must be less than or equal to 4096', { recovery: 'clamp_output_only', maxOutput: 4_096 }],
    [
      'requested max_tokens=4000 with prompt of 7000 tokens exceeds the context of 8192',
      { recovery: 'clamp_output_only', limit: 8_192, promptTokens: 7_000, maxOutput: 1_192 },
    ],
    [
      'Prompt tokens + max tokens exceeds context: 7000 + 2000 = 9000 > 8192',
      { recovery: 'clamp_output_only', limit: 8_192, promptTokens: 7_000, maxOutput: 1_192 },
    ],
    ['only 1192 tokens remain in the context, max_tokens is 2000', { recovery: 'clamp_output_only', maxOutput: 1_192 }],
    ['Total of 9001 tokens is over the maximum of 8192', { recovery: 'unknown_overflow', limit: 8_192 }],
    ['The conversation is too long.', { recovery: 'compress_only' }],
    ['Prompt is too long. Please keep it under your plan.', { recovery: 'compress_only' }],
    ['Your request has too many characters in messages', { recovery: 'compress_only' }],
    ['The input contains too many characters across messages; shorten the prompt.', { recovery: 'compress_only' }],
  ])('understands: %s', (text, overflow) => {
    expect(read(text)).toEqual(overflow)
  })

  it.each([
    'temperature must be between 0 and 2',
    'n must be at most 8',
    'Maximum number of tool calls exceeded: 20 > 10',
    'The token has exceeded its lifetime',
    'previous_response_id not found',
    'Please reduce the number of requests.',
    'Internal server error',
    'messages: too many total images (101 > 100)',
    'The conversation has too many parallel tool calls.',
    'Input contains too many identical tool results',
    'The conversation has too many turns',
  ])('finds no overflow in: %s', (text) => {
    expect(read(text)).toBeUndefined()
  })
})
