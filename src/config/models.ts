/** Prices and context windows that a user knows better than the catalogue. */
import * as z from 'zod'
import { filled, key, optional } from './units.ts'

const perMillion = z.number().min(0)

const price = z.strictObject({
  input: perMillion.describe('Price of the prompt.'),
  output: perMillion.describe('Price of the answer, reasoning included.'),
  cached_input: optional(perMillion).describe('Price of what the provider read from a cache; without it, as input.'),
  cache_write: optional(perMillion).describe('Price of what the provider wrote to a cache; without it, as input.'),
})

const entry = z
  .strictObject({
    model: filled.describe('Glob of model names, as clients send them.'),
    upstream: optional(filled).describe('Name of one upstream; without it the entry applies to all of them.'),
    context_window: optional(z.int().min(1)).describe('Tokens of prompt and answer together.'),
    price: optional(price).describe(
      'US dollars per million tokens: input, output, cached_input, cache_write. The last two default to input; 0 ' +
        'if a model costs nothing.',
    ),
  })
  .refine(
    (value) => value.context_window !== undefined || value.price !== undefined,
    'has no effect: expected a price, a context_window, or both',
  )

const EXAMPLE = {
  model: 'qwen3-*',
  upstream: 'local',
  context_window: 131072,
  price: { input: 0.2, output: 0.6, cached_input: 0.02 },
}

export const models = key(z.array(entry), [], [EXAMPLE]).describe(
  "Prices and context windows that you know better than Governor's catalogue. For each of the two the first entry " +
    'counts that matches and has one.',
)
